"""Planned clocks for the pipelines of torchtitan: its schedules are those of torch, and its `ModelSpec` makes them."""

from __future__ import annotations

import dataclasses
import functools
import logging
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed

from zeus_core.errors import UsageError
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor.no_monitor import checked_monitor
from zeus_core.pipeline import PipelineFrequencySettings
from zeus_core.pipeline.taps._rank_monitor import rank_monitor, training_device
from zeus_core.pipeline.taps.pipelining import AttachedOptimizer, attach
from zeus_core.ports import World
from zeus_core.ports.accelerator import INDEXED_TYPES
from zeus_core.ports.exchange import Exchange
from zeus_core.ports.world import checked_world
from zeus_core.pytorch.torch_world import torch_world
from zeus_core.pytorch.work_facts import facts_of_models
from zeus_core.validate import shown

__all__ = ["with_planned_clocks"]

_logger = logging.getLogger(__name__)


def with_planned_clocks(
    model_spec: Any,
    settings: PipelineFrequencySettings | None = None,
    *,
    monitor: ZeusMonitor | None = None,
    world: World | None = None,
    identity: Mapping[str, Any] | None = None,
) -> Any:
    """Return a copy of a `ModelSpec` of torchtitan whose pipelines plan their clocks. The one passed stays as it is.

    Its `pipelining_fn` makes the schedule as before, and then attaches to it, which is a collective call of all ranks,
    as making a pipeline is. If something is missing on one of them, such as a GPU, all train without, and the log says
    why.

    Args:
        model_spec: A `ModelSpec` with a `pipelining_fn`.
        settings: The goal and its limits; no slowdown if None.
        monitor: Measures the one GPU of this rank; that of the stage's device if None.
        world: The ranks of the job; those of torch.distributed if None.
        identity: Properties that the profile depends on besides the GPU, the model and its parallelism.

    Raises:
        UsageError: An argument is wrong; the message names it.
    """
    make_pipeline = getattr(model_spec, "pipelining_fn", None)
    if not callable(make_pipeline) or not dataclasses.is_dataclass(model_spec) or isinstance(model_spec, type):
        raise UsageError(
            f"model_spec is {shown(model_spec)}; it must be a ModelSpec of torchtitan with a pipelining_fn, such as "
            "llama3's"
        )
    if monitor is not None:
        checked_monitor(monitor)
    if world is not None:
        checked_world(world)

    @functools.wraps(make_pipeline)
    def pipelining_fn(*args: Any, **kwargs: Any) -> Any:
        made = make_pipeline(*args, **kwargs)
        try:
            ranks = torch_world() if world is None else world
            _attached(made, kwargs, ranks, functools.partial(_arguments, settings, monitor, identity))
        except Exception as error:
            _logger.warning("Perseus is off; training continues: %s", error)
        return made

    return dataclasses.replace(model_spec, pipelining_fn=pipelining_fn)


def _attached(made: Any, arguments: Mapping[str, Any], world: World, read: Callable[..., dict[str, Any]]) -> None:
    """Attach to the schedule of a pipeline, as long as that lives."""
    schedule = getattr(made[0], "schedule", made[0])  # GraphPP's runtime holds it
    read_arguments = Exchange(world).make(lambda: read(made, arguments))
    attached: AttachedOptimizer = attach(schedule, world=world, **read_arguments)
    weakref.finalize(schedule, attached.optimizer.show_result)  # most programs just end


def _arguments(
    settings: PipelineFrequencySettings | None,
    monitor: ZeusMonitor | None,
    identity: Mapping[str, Any] | None,
    made: Any,
    arguments: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the arguments of `attach` for the pipeline that torchtitan has made from its own arguments."""
    device, dims = arguments.get("device", training_device()), arguments.get("parallel_dims")
    if getattr(device, "type", None) in INDEXED_TYPES and device.index is None:
        device = training_device()
    facts = {
        **facts_of_models(made[1]),
        "stages": sum(1 for _ in made[1]) * getattr(dims, "pp", 1),
        "tensor_parallel": getattr(dims, "tp", 1),
        "context_parallel": getattr(dims, "cp", 1),
        "batch_size": getattr(arguments.get("training"), "local_batch_size", 0),
        "sequence_length": getattr(arguments.get("training"), "seq_len", 0),
    }
    return {
        "monitor": rank_monitor(device) if monitor is None else monitor,
        "settings": settings,
        "pipeline": _pipeline_of(dims),
        "identity": {**facts, **(identity or {})},
    }


def _pipeline_of(dims: Any) -> int:
    """Return the number of this rank's pipeline: torchtitan orders ranks by pp, dp_replicate, dp_shard, cp, tp."""
    if dims is None:
        return 0
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    return int(rank // (dims.cp * dims.tp) % (dims.dp_replicate * dims.dp_shard))
