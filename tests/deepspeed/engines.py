"""Small engines of DeepSpeed on CPUs, in several real processes, and what is told of them."""

import traceback
from datetime import timedelta

import deepspeed
import torch
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from deepspeed.runtime.pipe.topology import PipeDataParallelTopology

from tests.support.ranks import run_ranks

WIDTH = 4
MICROBATCHES = 3

_FAILED = "failed"


class RecordingOptimizer:
    """In the place of a `PipelineFrequencyOptimizer`: notes what it is told."""

    def __init__(self, *arguments, **options):
        self.arguments, self.options = arguments, options
        self.events = []
        self.loaded = []
        self.state = {"found": 1}
        self.is_closed = False

    def on_step_begin(self):
        self.events.append("step begin")

    def on_step_end(self):
        self.events.append("step end")

    def on_instruction_begin(self, name, stage=None, microbatch=None):
        self.events.append(f"{name} begin" if stage is None else f"{name} of stage {stage} begin")

    def on_instruction_end(self, name):
        self.events.append(f"{name} end")

    def on_pause(self, activity):
        self.events.append(f"{activity.value} begin")

    def on_resume(self):
        self.events.append("resume")

    def close(self):
        self.is_closed = True

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.loaded.append(state["found"])

    def set_straggler(self, time_seconds):
        pass

    def take(self):
        """The events since this was asked last."""
        events, self.events = self.events, []
        return events


def run_engines(count, rank_main, *arguments):
    """Return a function's result on each of several ranks, which are connected."""
    answers = run_ranks(count, _initialized, rank_main, arguments)
    assert _FAILED not in answers, "a rank has failed: see its traceback"
    return answers


def _initialized(rank_main, arguments):
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False, timeout=timedelta(seconds=240))
    torch.set_num_threads(1)
    try:
        return rank_main(*arguments)
    except Exception:
        traceback.print_exc()
        return _FAILED


def config(**blocks):
    """A configuration, with these top-level keys in place of its own."""
    adam = {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}}
    sizes = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": MICROBATCHES}
    return {**sizes, "optimizer": adam, "steps_per_print": 1000, **blocks}


def make_module(stages, pipelines=1, layers=4, is_tied=False, **options):
    torch.manual_seed(0)
    specs = [LayerSpec(torch.nn.Linear, WIDTH, WIDTH) for _ in range(layers)]
    if is_tied:
        specs = [tied := TiedLayerSpec("ends", torch.nn.Linear, WIDTH, WIDTH), *specs, tied]
    return PipelineModule(
        specs,
        topology=PipeDataParallelTopology(num_pp=stages, num_dp=pipelines),
        loss_fn=torch.nn.functional.mse_loss,
        partition_method="uniform",
        **options,
    )


def make_engine(module, initialize=deepspeed.initialize, **blocks):
    return initialize(model=module, model_parameters=list(module.parameters()), config=config(**blocks))[0]


def batches(seed=0):
    """Microbatches without end."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randn(2, WIDTH, generator=generator), torch.randn(2, WIDTH, generator=generator)
