"""What all phases have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum

from zeus_core.optimizer.pipeline_frequency._timeline import RecordedStep
from zeus_core.pipeline import Instruction
from zeus_core.ports import DeviceEvent

__all__ = ["Phase", "PhaseName"]


class PhaseName(Enum):
    """The phases, by name."""

    RESTING = "resting"
    WARMING_UP = "warming up"
    BASELINE = "baseline"
    PROFILING = "profiling"
    PLANNING = "planning"
    REPLAYING = "replaying"
    OBSERVED = "observed"
    OFF = "off"

    @property
    def is_without_plan(self) -> bool:
        """Whether this is the end of planning, without a plan in force."""
        return self in {PhaseName.OBSERVED, PhaseName.OFF}


class Phase(ABC):
    """Receives what happens while it lasts. Computations are the instructions whose clock can be chosen."""

    name: PhaseName

    def begin_step(self, begin: DeviceEvent) -> None:  # noqa: B027 - most phases have nothing to do here, nor below
        """A step begins, at a mark."""

    def begin_computation(self, instruction: Instruction) -> None:  # noqa: B027
        """A computation begins."""

    def end_computation(self, end: DeviceEvent) -> None:  # noqa: B027
        """A computation has ended, at a mark."""

    @abstractmethod
    def end_step(self, step: RecordedStep) -> Phase:
        """A step has ended. Returns the next phase, or itself.

        Raises:
            Exception: Something has failed on some rank; it is reported to all ranks.
        """

    def pause(self, now: DeviceEvent) -> None:  # noqa: B027
        """Something other than training begins, at a mark."""

    def leave(self) -> None:  # noqa: B027
        """Training is over, or something has failed."""
