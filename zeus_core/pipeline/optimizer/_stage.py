"""A stage: the effects of a phase, and the means of the rank it acts on.

`_course.py` makes the stage of each phase.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from zeus_core.codec import decode, encode
from zeus_core.device import Gpu
from zeus_core.monitor import ZeusMonitor
from zeus_core.pipeline.optimizer._clock_setter import ClockSetter
from zeus_core.pipeline.optimizer.frequency_phases import Conclusion, PlanningPhase
from zeus_core.pipeline.optimizer.frequency_settings import PipelineFrequencySettings
from zeus_core.pipeline.planner.pipeline_schedule import Instruction
from zeus_core.pipeline.profile.pipeline_job import PipelineRank
from zeus_core.pipeline.profile.step_timeline import RecordedStep
from zeus_core.ports import Background, DeviceEvent
from zeus_core.ports.exchange import Exchange

_Value = TypeVar("_Value")

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RankContext:
    """The means of one rank.

    Attributes:
        monitor: Measures its GPU.
        pipeline_rank: Its position among the pipelines.
        settings: The user's settings.
        identity: Properties that its profile depends on besides its GPU.
        work: Facts that distinguish its work from other work; they may change during training.
        exchange: Its exchanges with the other ranks.
        clock_background: Where clocks are set. Nothing else runs there: a clock waits for no plan.
        planning_background: Where the GPU is watched, and where rank 0 plans.
    """

    monitor: ZeusMonitor
    pipeline_rank: PipelineRank
    settings: PipelineFrequencySettings
    identity: Mapping[str, Any]
    work: Mapping[str, Any]
    exchange: Exchange
    clock_background: Background
    planning_background: Background

    @property
    def gpu(self) -> Gpu:
        """Its GPU."""
        (gpu,) = self.monitor.gpus.values()
        return gpu

    @cached_property
    def setter(self) -> ClockSetter:
        """The setter of its clock. Made when first needed, in an exchange: all ranks learn of a fault."""
        original_mhz = self.settings.original_clock_mhz
        return ClockSetter(self.gpu, self.monitor.time_source, self.clock_background, original_mhz)

    @property
    def identity_now(self) -> dict[str, Any]:
        """The identity and the work as of now."""
        return {**self.identity, **self.work}

    @property
    def is_first(self) -> bool:
        """Whether facts that only one rank can have are taken from this one."""
        return self.exchange.rank == 0

    def gather(self, kind: type[_Value], report: Callable[[], _Value], phase: PlanningPhase) -> list[_Value]:
        """Return the record of each rank, by rank; see `Exchange.gather`."""
        return [decode(kind, fields) for fields in self.exchange.gather(lambda: encode(report()), phase)]

    def decide(self, kind: type[_Value], decide: Callable[[], _Value], phase: PlanningPhase) -> _Value:
        """Return the record of rank 0; see `Exchange.decide`."""
        return decode(kind, self.exchange.decide(lambda: encode(decide()), phase))

    def warn(self, text: str) -> None:
        """Log what all ranks know, on the first of them."""
        if self.is_first:
            _logger.warning("%s", text)

    def set_clock(self, clock_mhz: int | None) -> float | None:
        """Set the clock at once, or the original one for None.

        Returns:
            The seconds the driver took; None if it failed.
        """
        return self.exchange.attempt(lambda: self.setter.set_now(clock_mhz))

    def check_clocks(self) -> None:
        """Check that the clocks requested so far were set.

        Raises:
            Exception: The error of the driver.
        """
        if self.setter.fault is not None:
            raise self.setter.fault

    def restore(self) -> None:
        """Restore the original clock, for good."""
        if "setter" in vars(self):  # made before
            self.setter.restore()


class Stage(ABC):
    """The effects of a phase while it lasts. Computations are the instructions whose clock can be chosen.

    Args:
        phase: The phase.
    """

    def __init__(self, phase: PlanningPhase) -> None:
        self.phase = phase

    def begin_step(self, begin: DeviceEvent) -> None:  # noqa: B027 - most phases have nothing to do here, nor below
        """Begin a step, at a device event."""

    def begin_computation(self, instruction: Instruction, begin: DeviceEvent) -> None:  # noqa: B027
        """Begin a computation, at a device event."""

    def end_computation(self, end: DeviceEvent) -> None:  # noqa: B027
        """End a computation, at a device event."""

    @abstractmethod
    def end_step(self, step: RecordedStep) -> Conclusion | None:
        """End a step. Returns the conclusion of the phase, or None while it goes on.

        Raises:
            Exception: Something has failed on some rank; it is reported to all ranks.
        """

    def pause(self, now: DeviceEvent) -> None:  # noqa: B027
        """Something other than training begins, at a device event."""

    def leave(self) -> None:  # noqa: B027
        """Leave the phase."""


class Resting(Stage):
    """Does nothing: before training, after it, and where there is nothing more to do."""

    def end_step(self, step: RecordedStep) -> None:
        """Stay in this phase."""
