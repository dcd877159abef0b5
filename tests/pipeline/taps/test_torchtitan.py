"""Planned clocks in torchtitan: two processes over gloo, without CUDA.

torchtitan's own models need a GPU (their attention is compiled). So the pipeline function here is one of ours, of small
stages. All around it is either torchtitan's own (its `ModelSpec`, `ParallelDims` and what builds the schedule), where
it is installed, or a stand-in with the same fields. The calls are those of torchtitan's trainer, but for microbatches
that torch 2.13 still splits itself.
"""

import dataclasses
import importlib.util
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

from tests.support.ranks import run_ranks
from tests.support.virtual_time import A100, Run, SharedTimes, computing_optimizer, true_profile
from zeus_core.errors import UsageError
from zeus_core.pipeline import PipelineFrequencySettings
from zeus_core.pipeline.taps import pipelining, torchtitan

WIDTH, MICROBATCHES, STEPS = 4, 8, 50

is_installed = importlib.util.find_spec("torchtitan") is not None
OWN = pytest.param(True, marks=[pytest.mark.long, pytest.mark.skipif(not is_installed, reason="torchtitan is missing")])


@dataclasses.dataclass
class ModelSpecStandIn:
    name: str
    flavor: str
    model: Any
    parallelize_fn: Callable
    pipelining_fn: Callable | None
    post_optimizer_build_fn: Callable | None
    state_dict_adapter: Any


def make_pipeline(model, *, parallel_dims, training, parallelism, device, loss_fn, **others):
    """As torchtitan's `pipeline_llm`: split the model, build the schedule, and say what this rank has."""
    rank = torch.distributed.get_rank()
    stage = PipelineStage(model[rank], rank, 2, device)
    if not isinstance(parallelism, SimpleNamespace):
        from torchtitan.distributed.pipeline_parallel import _build_pipeline_schedule

        schedule = _build_pipeline_schedule(
            parallelism=parallelism, local_batch_size=training.local_batch_size, stages=[stage], loss_fn=loss_fn
        )
    else:
        kind = get_schedule_class(parallelism.pipeline_parallel_schedule)
        schedule = kind(stage, MICROBATCHES, loss_fn=lambda *tensors, **facts: loss_fn(*tensors, **facts)[0])
    return schedule, [stage.submod], stage.is_first, stage.is_last


def loss_of(guess, target, global_valid_tokens):
    return torch.nn.functional.mse_loss(guess, target) / global_valid_tokens, {}


def make_spec(is_own):
    fields = ("llama3", "small", None, lambda model: model, make_pipeline, None, None)
    if is_own:
        from torchtitan.protocols.model_spec import ModelSpec

        return ModelSpec(*fields)
    return ModelSpecStandIn(*fields)


def arguments_of(is_own):
    """The arguments of torchtitan's trainer."""
    if is_own:
        from torchtitan.config import ParallelismConfig, TrainingConfig
        from torchtitan.distributed.parallel_dims import ParallelDims

        parallelism = ParallelismConfig(pipeline_parallel_degree=2, pipeline_parallel_schedule="1F1B")
        dims = ParallelDims.from_config(parallelism, 2)
        training = TrainingConfig(local_batch_size=MICROBATCHES, seq_len=WIDTH)
    else:
        parallelism = SimpleNamespace(pipeline_parallel_schedule="1F1B")
        dims = SimpleNamespace(pp=2, dp_replicate=1, dp_shard=1, cp=1, tp=1)
        training = SimpleNamespace(local_batch_size=MICROBATCHES, seq_len=WIDTH)
    others = {"compile_config": None, "ac_config": None, "dump_folder": "", "model_config": None}
    return {
        "parallel_dims": dims,
        "training": training,
        "parallelism": parallelism,
        "loss_fn": loss_of,
        "device": torch.device("cpu"),
        "parallelize_fn": None,
        **others,
    }


def train(spec, is_own, steps):
    """The steps of torchtitan's trainer; returns all that was computed, as bytes."""
    torch.manual_seed(5)
    layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Dropout(0.2)) for _ in range(2)]
    schedule, parts, has_first, has_last = spec.pipelining_fn(layers, **arguments_of(is_own))
    optimizer = torch.optim.Adam(parts[0].parameters(), lr=0.01)
    generator, computed = torch.Generator().manual_seed(0), []
    for _ in range(steps):
        optimizer.zero_grad()
        inputs, targets = torch.randn(2, MICROBATCHES, WIDTH, generator=generator)
        losses = [] if has_last else None
        schedule.step(
            *([inputs] if has_first else []),
            target=targets if has_last else None,
            losses=losses,
            loss_kwargs={"global_valid_tokens": torch.tensor(8.0)},
            return_outputs=False,
        )
        optimizer.step()
        computed += losses or []
    return [tensor.detach().numpy().tobytes() for tensor in (*computed, *parts[0].parameters())]


def set_up():
    warnings.simplefilter("ignore")  # of the import of torchtitan
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")


def train_with_and_without(is_own, has_gpu):
    set_up()
    spec, made = make_spec(is_own), []
    attach = pipelining.attach
    torchtitan.attach = lambda *arguments, **named: made.append((attach(*arguments, **named), named)) or made[-1][0]
    planned = torchtitan.with_planned_clocks(spec, PipelineFrequencySettings(quiet=True), identity={"data": "random"})
    is_same = train(spec, is_own, 4) == train(planned, is_own, 4)
    answer = {"is_same": is_same, "kept": spec.pipelining_fn is make_pipeline, "attached": len(made)}
    if has_gpu:
        ((attached, named),) = made
        answer |= {"gpus": list(named["monitor"].gpus), "pipeline": named["pipeline"], "identity": named["identity"]}
        attached.detach()
    return answer


@pytest.mark.parametrize("is_own", [False, OWN])
def test_training_is_bit_identical_and_each_rank_has_its_gpu(monkeypatch, is_own):
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "A40:2")
    for rank, answer in enumerate(run_ranks(2, train_with_and_without, is_own, True)):
        identity = answer.pop("identity")
        assert answer == {"is_same": True, "kept": True, "attached": 1, "gpus": [rank], "pipeline": 0}
        wanted = {"stages": 2, "batch_size": MICROBATCHES, "sequence_length": WIDTH, "data": "random"}
        assert {**identity, **wanted} == identity


def test_without_a_gpu_training_is_the_same(monkeypatch):
    monkeypatch.delenv("ZEUS_SIMULATED_GPUS", raising=False)
    wanted = {"is_same": True, "kept": True, "attached": 0}
    assert run_ranks(2, train_with_and_without, False, False) == [wanted] * 2


def train_to_the_plan(is_own, times):
    set_up()
    spec = make_spec(is_own)
    if times is None:
        return train(spec, is_own, STEPS)
    optimizer = computing_optimizer(times)
    torchtitan.rank_monitor = lambda device: optimizer._monitor
    pipelining.PipelineFrequencyOptimizer = lambda *arguments, **named: optimizer
    losses = train(torchtitan.with_planned_clocks(spec), is_own, STEPS)
    optimizer.close()
    optimizer.record.losses = losses
    return optimizer.record


@pytest.mark.long
@pytest.mark.parametrize("is_own", [False, OWN])
def test_a_plan_keeps_its_promise_and_changes_nothing_that_is_computed(is_own):
    run = Run(run_ranks(2, train_to_the_plan, is_own, SharedTimes(2, MICROBATCHES)))
    run.check_against(true_profile(2, A100), run.records[0].latest["schedule"])
    assert [record.losses for record in run.records] == run_ranks(2, train_to_the_plan, is_own, None)


@pytest.mark.parametrize(
    ("rank", "degrees", "pipeline"),
    [
        (0, {"pp": 2, "dp_replicate": 2, "dp_shard": 2, "cp": 1, "tp": 2}, 0),
        (5, {"pp": 2, "dp_replicate": 2, "dp_shard": 2, "cp": 1, "tp": 2}, 2),
        (13, {"pp": 2, "dp_replicate": 2, "dp_shard": 2, "cp": 1, "tp": 2}, 2),
        (7, {"pp": 2, "dp_replicate": 1, "dp_shard": 2, "cp": 2, "tp": 1}, 1),
    ],
)
def test_the_pipeline_is_the_place_among_the_data_parallel_ranks(monkeypatch, rank, degrees, pipeline):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
    assert torchtitan._pipeline_of(SimpleNamespace(**degrees)) == pipeline


def test_what_has_no_pipelines_is_refused():
    spec = make_spec(False)
    for wrong in (None, dataclasses.replace(spec, pipelining_fn=None), ModelSpecStandIn):
        with pytest.raises(UsageError, match="it must be a ModelSpec of torchtitan with a pipelining_fn"):
            torchtitan.with_planned_clocks(wrong)
