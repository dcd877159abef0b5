"""Megatron-core's own pipeline schedules on processes without CUDA, over gloo, with a model of small chunks.

Megatron-core names the device "cuda" in some calls; here they make tensors on the CPU. Megatron-LM, whose training loop
calls the schedules, is in no package registry: `megatron.training` is the smallest stand-in, with the functions that
the tap uses, their names and arguments, and the order in which they call each other.
"""

import importlib
import sys
import warnings
from types import SimpleNamespace

import torch
import torch.distributed
from torch.overrides import TorchFunctionMode

WIDTH, LENGTH, SIZE, MICROBATCHES = 4, 2, 3, 8

_TRAINING = '''
"""A stand-in for megatron.training.training."""

from megatron.core.pipeline_parallel.schedules import get_forward_backward_func


def train(step_function, model, optimizer, scheduler, data, config, steps, evaluate_every):
    forward_backward_func = get_forward_backward_func()  # once, as Megatron-LM does
    losses = []
    for iteration in range(1, steps + 1):
        losses += train_step(step_function, data, model, optimizer, scheduler, config, forward_backward_func)
        if iteration % evaluate_every == 0:
            losses += evaluate(step_function, data, model, None, config)
            save_checkpoint_and_time(iteration, model, optimizer, scheduler)
    return losses


def train_step(forward_step_func, data_iterator, model, optimizer, opt_param_scheduler, config, forward_backward_func):
    optimizer.zero_grad()
    losses = run(forward_backward_func, forward_step_func, data_iterator, model, False)
    optimizer.step()
    opt_param_scheduler.step()
    return losses


def evaluate(forward_step_func, data_iterator, model, process_non_loss_data_func, config):
    return run(get_forward_backward_func(), forward_step_func, data_iterator, model, True)


def save_checkpoint_and_time(iteration, model, optimizer, opt_param_scheduler):
    pass


def run(forward_backward_func, forward_step_func, data, model, forward_only):
    is_single = len(model) == 1
    return forward_backward_func(
        forward_step_func=forward_step_func,
        data_iterator=data[0] if is_single else data,
        model=model,
        num_microbatches=8,
        seq_length=2,
        micro_batch_size=3,
        forward_only=forward_only,
    )
'''


def is_installed():
    return importlib.util.find_spec("megatron") is not None and importlib.util.find_spec("megatron.core") is not None


def add_megatron_lm(folder):
    """Add the stand-in to the namespace package `megatron`, which Megatron-core leaves open."""
    package = folder / "megatron" / "training"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text("")
    (package / "training.py").write_text(_TRAINING)
    sys.path.insert(0, str(folder))


class _CudaIsCpu(TorchFunctionMode):
    def __torch_function__(self, function, types, arguments=(), options=None):
        options = dict(options or {})
        if str(options.get("device", "")).startswith("cuda"):
            options["device"] = "cpu"
        return function(*arguments, **options)


def prepare(chunks):
    """Make this process a rank of a pipeline of all processes: two, or one for none."""
    warnings.simplefilter("ignore")  # Megatron-core warns that Transformer Engine is missing, on import
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda *arguments: None
    from megatron.core import parallel_state

    options = {"virtual_pipeline_model_parallel_size": chunks} if chunks > 1 else {}
    parallel_state.initialize_model_parallel(1, torch.distributed.get_world_size(), **options)


def make_run(chunks):
    """The chunks of this rank, always with the same weights, and all that training needs."""
    from megatron.core.enums import ModelType
    from megatron.core.transformer import TransformerConfig

    class Chunk(torch.nn.Module):
        model_type = ModelType.encoder_or_decoder

        def __init__(self, config, number, count):
            super().__init__()
            torch.manual_seed(number)
            self.config, self.is_first, self.is_last = config, number == 0, number == count - 1
            self.layer, self.dropout = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Dropout(0.2)

        def set_input_tensor(self, tensors):
            self.input = tensors[0]

        def forward(self, tokens):
            return self.dropout(torch.tanh(self.layer(tokens if self.is_first else self.input)))

    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    options = {"virtual_pipeline_model_parallel_size": chunks, "microbatch_group_size_per_vp_stage": 2}
    config = TransformerConfig(
        num_layers=ranks * chunks,
        hidden_size=WIDTH,
        num_attention_heads=1,
        pipeline_model_parallel_size=ranks,
        pipeline_dtype=torch.float32,
        finalize_model_grads_func=lambda *arguments, **options: None,
        deallocate_pipeline_outputs=True,  # as Megatron-LM has it: only the identity of an output stays
        **(options if chunks > 1 else {}),
    )
    models = [Chunk(config, rank + ranks * chunk, ranks * chunks) for chunk in range(chunks)]
    parameters = [parameter for model in models for parameter in model.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    data = [_endless_data() for _ in models]
    return SimpleNamespace(config=config, models=models, optimizer=optimizer, scheduler=scheduler, data=data)


def _endless_data():
    generator = torch.Generator().manual_seed(3)
    while True:
        yield torch.randn(LENGTH, SIZE, WIDTH, generator=generator)


def _step_function(data, model):
    return model(next(data)), lambda output: (output.square().mean(), {"loss": output.square().mean().detach()})


def train(run, steps, evaluate_every=1000):
    """Train by the stand-in's loop; return all that was computed, as bytes."""
    from megatron.training import training

    torch.manual_seed(7)
    with _CudaIsCpu():
        arguments = (_step_function, run.models, run.optimizer, run.scheduler, run.data, run.config)
        losses = training.train(*arguments, steps, evaluate_every)
    return computed(run, losses)


def run_schedule(run):
    """One iteration by the schedule alone, as a loop of one's own does."""
    from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
    from megatron.training import training

    with _CudaIsCpu():
        return training.run(get_forward_backward_func(), _step_function, run.data, run.models, False)


def computed(run, losses):
    parameters = [parameter for model in run.models for parameter in model.parameters()]
    return [tensor.detach().numpy().tobytes() for tensor in (*(loss["loss"] for loss in losses), *parameters)]
