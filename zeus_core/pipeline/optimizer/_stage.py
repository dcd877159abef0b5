"""A stage: the effects of a phase. Each stage that has any lies in a module that is named after its phase."""

from __future__ import annotations

from abc import ABC, abstractmethod

from zeus_core.pipeline import Instruction
from zeus_core.pipeline.optimizer.frequency_phases import Conclusion, Phase
from zeus_core.pipeline.profile.step_timeline import RecordedStep
from zeus_core.ports import DeviceEvent

__all__ = ["Resting", "Stage"]


class Stage(ABC):
    """The effects of a phase while it lasts. Computations are the instructions whose clock can be chosen.

    Args:
        phase: The phase.
    """

    def __init__(self, phase: Phase) -> None:
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
