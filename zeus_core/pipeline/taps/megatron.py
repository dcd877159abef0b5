"""Plan the clocks of Megatron's pipelines: those of Megatron-LM, of NeMo, and of loops of your own on Megatron-core."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor.no_monitor import checked_monitor
from zeus_core.pipeline import PipelineFrequencyOptimizer, PipelineFrequencySettings, PipelineRank
from zeus_core.pipeline.taps._megatron_tap import MegatronRun, MegatronTap, megatron_core
from zeus_core.pipeline.taps._rank_monitor import rank_monitor, training_device
from zeus_core.ports import World
from zeus_core.ports.exchange import Exchange
from zeus_core.ports.world import checked_world
from zeus_core.pytorch.torch_events import device_events_for
from zeus_core.pytorch.torch_world import torch_world
from zeus_core.pytorch.work_facts import facts_of_models
from zeus_core.validate import wrong_argument

__all__ = ["attach"]


class AttachedMegatron:
    """Plans the clocks of Megatron's pipelines, from the first training step on.

    Args:
        make_optimizer: Makes the optimizer of a run.

    Attributes:
        optimizer: The optimizer; None before the first training step, and if it could not be made.
        tap: Reports what Megatron does to it.

    Raises:
        UsageError: See `MegatronTap`.
    """

    def __init__(self, make_optimizer: Callable[[MegatronRun], PipelineFrequencyOptimizer]) -> None:
        if not callable(make_optimizer):  # such as an optimizer: it would fail in the first step
            raise wrong_argument("make_optimizer", make_optimizer, "a function of a MegatronRun")
        self._make_optimizer = make_optimizer
        self.optimizer: PipelineFrequencyOptimizer | None = None
        self.tap: MegatronTap = MegatronTap(self._start)

    def detach(self) -> None:
        """Leave Megatron as it was, and close the optimizer, which restores the clocks and shows the result."""
        self.tap.detach()
        if self.optimizer is not None:
            self.optimizer.close()

    def _start(self, run: MegatronRun) -> PipelineFrequencyOptimizer:
        self.optimizer = optimizer = self._make_optimizer(run)
        weakref.finalize(self, optimizer.show_result)  # most programs just end
        return optimizer


def attach(
    settings: PipelineFrequencySettings | None = None,
    *,
    monitor: ZeusMonitor | None = None,
    world: World | None = None,
    identity: Mapping[str, Any] | None = None,
) -> AttachedMegatron:
    """Plan the clocks of Megatron's pipelines. Every rank calls it, before training begins: before `pretrain`.

    The ranks meet at the first training step. If something is missing on one of them, such as a GPU, all train without,
    and the log says why.

    Args:
        settings: The goal and its limits; no slowdown if None.
        monitor: Measures the one GPU of this rank; that of the present CUDA device if None.
        world: The ranks of the job; those of torch.distributed if None.
        identity: Properties that the profile depends on besides the GPU, the model and its parallelism.

    Raises:
        UsageError: An argument is wrong; Megatron-core is not installed, or lacks what this relies on.
    """
    if monitor is not None:
        checked_monitor(monitor)
    if world is not None:
        checked_world(world)

    def make_optimizer(run: MegatronRun) -> PipelineFrequencyOptimizer:
        ranks = torch_world() if world is None else world  # first, as all ranks must take part

        def make() -> PipelineFrequencyOptimizer:
            device = training_device()
            measuring = rank_monitor(device) if monitor is None else monitor
            return PipelineFrequencyOptimizer(
                measuring,
                PipelineRank(run.rank, megatron_core("parallel_state").get_data_parallel_rank()),
                settings,
                world=ranks,
                identity={**_identity_of(run), **(identity or {})},
                device_events=device_events_for(device, measuring.time_source),
            )

        return Exchange(ranks).make(make, unmake=PipelineFrequencyOptimizer.close)

    return AttachedMegatron(make_optimizer)


def _identity_of(run: MegatronRun) -> dict[str, Any]:
    length, size = run.microbatch_shape
    return {
        **facts_of_models(run.models),
        "stages": run.ranks * len(run.models),
        "stage": run.rank,
        "sequence_length": length,
        "micro_batch_size": size,
        "tensor_parallel": int(getattr(run.config, "tensor_model_parallel_size", 1)),
        "recompute": str(getattr(run.config, "recompute_granularity", None)),
    }
