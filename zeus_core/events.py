"""Events of a training loop, independent of any framework.

Adapters translate the hooks of their framework into these events and report them to a `TrainingObserver`: an optimizer,
which chooses settings, or `TrainingEnergy`, which accounts for the energy. The order is

    TRAIN_BEGIN, { EPOCH_BEGIN, { STEP_BEGIN, STEP_END, [PAUSE] }*, EPOCH_END }*, TRAIN_END

where a step is one optimizer step. Loops that report less (no TRAIN_BEGIN, no STEP_END) are understood too.
"""

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from zeus_core.ports import World

__all__ = ["Activity", "PipelineObserver", "TrainingObserver"]


class Event(Enum):
    """One event of a training loop."""

    TRAIN_BEGIN = "train begin"
    EPOCH_BEGIN = "epoch begin"
    STEP_BEGIN = "step begin"
    STEP_END = "step end"
    PAUSE = "pause"
    """Work other than training (evaluation, saving) is about to start; training continues at the next STEP_BEGIN."""
    INTERFERENCE = "interference"
    """Work other than training has started without a PAUSE; the current measurement contains some of it."""
    EPOCH_END = "epoch end"
    TRAIN_END = "train end"


class Activity(Enum):
    """Use of time and energy in a training job. The values are part of the names of metrics."""

    STEPS = "steps"
    """Training steps, with the loading of their data and the logging in between."""
    GENERATION = "generation"
    """Text generated for training, as in reinforcement learning."""
    REFERENCE = "reference"
    """Passes of a reference model, as in preference optimization."""
    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"
    BETWEEN_STEPS = "between_steps"
    """Unusually long times between two steps that nothing announced: an evaluation maybe, or a stall of the data."""
    IDLE = "idle"
    """Everything else between the beginning and the end of training."""

    @property
    def words(self) -> str:
        """The activity in words, for people."""
        return str(self.value).replace("_", " ")

    # Members are single objects. `Enum` hashes their names, in Python, and an account is looked up by them at each log.
    if not TYPE_CHECKING:  # type checkers know that it has a hash
        __hash__ = object.__hash__


class TrainingObserver(Protocol):
    """Receives the events of a training loop. No event raises, and none blocks longer than a timeout of its own."""

    @property
    def saving_fraction(self) -> float | None:
        """Energy per step saved by the setting the observer chose, against the original one; None if unknown."""
        ...

    @property
    def is_end_due(self) -> bool:
        """Whether the process ends before the next step, to go on later: now a checkpoint is to be saved."""
        ...

    def result(self) -> dict[str, str]:
        """Return the result of the latest training for people, as labelled lines; empty if there is none."""
        ...

    def use_world(self, world: World) -> None:
        """Set the ranks of the job. Call before training begins."""
        ...

    def use_work(self, work: Mapping[str, int | str]) -> None:
        """Tell the work of a step from other work, by facts such as the size of the model. Call it before training."""
        ...

    def forget(self) -> None:
        """Discard all that was learned from steps: from now on a step is another amount of work."""
        ...

    def on_train_begin(self, *, max_steps: int | None = None) -> None:
        """Report that training begins.

        Args:
            max_steps: The steps it will take, if the loop knows.
        """
        ...

    def on_epoch_begin(self) -> None:
        """Report that an epoch begins."""
        ...

    def on_step_begin(self) -> None:
        """Report that a training step begins. A step whose end was not reported ends here."""
        ...

    def on_step_end(self) -> None:
        """Report that the training step has ended."""
        ...

    def on_pause(self, activity: Activity = Activity.IDLE, on_all_ranks: bool = False) -> None:
        """Report that work other than training is about to start, until `on_resume` or the next step.

        Args:
            activity: The work.
            on_all_ranks: Whether every rank reports it.
        """
        ...

    def on_resume(self) -> None:
        """Report the end of the work that the latest `on_pause` announced."""
        ...

    def on_interference(self) -> None:
        """Report that work other than training has already happened since the last step ended."""
        ...

    def on_epoch_end(self) -> None:
        """Report that the epoch has ended. No training follows until the next step begins."""
        ...

    def on_train_end(self) -> None:
        """Report that training has ended, normally or by an error."""
        ...


class NoObserver:
    """An observer that does nothing."""

    saving_fraction: float | None = None
    is_end_due = False

    def result(self) -> dict[str, str]:
        """Return no lines."""
        return {}

    def use_world(self, world: World) -> None:
        """Do nothing."""

    def use_work(self, work: Mapping[str, int | str]) -> None:
        """Do nothing."""

    def on_pause(self, activity: Activity = Activity.IDLE, on_all_ranks: bool = False) -> None:
        """Do nothing."""

    def forget(self) -> None:
        """Do nothing."""

    def on_train_begin(self, *, max_steps: int | None = None) -> None:
        """Do nothing."""

    def on_epoch_begin(self) -> None:
        """Do nothing."""

    def on_step_begin(self) -> None:
        """Do nothing."""

    def on_step_end(self) -> None:
        """Do nothing."""

    def on_resume(self) -> None:
        """Do nothing."""

    def on_interference(self) -> None:
        """Do nothing."""

    def on_epoch_end(self) -> None:
        """Do nothing."""

    def on_train_end(self) -> None:
        """Do nothing."""


class PipelineObserver(Protocol):
    """Receives what one rank of a training pipeline does, in order. No event raises.

    A step is one iteration: all microbatches, and the optimizer step. Within it, instructions do not nest.
    """

    def on_step_begin(self) -> None:
        """Report that an iteration begins."""
        ...

    def on_step_end(self) -> None:
        """Report that the iteration has ended."""
        ...

    def on_instruction_begin(self, name: str, stage: int | None = None, microbatch: int | None = None) -> None:
        """Report that an instruction begins.

        Args:
            name: Its kind: one of `zeus_core.pipeline.COMPUTE_KINDS`, `TRANSFER_KINDS`, "optimizer-step" or
                "all-reduce".
            stage: The stage it belongs to, for ranks that have several; the rank's only one if None.
            microbatch: The microbatch it works on; counted by stage and kind if None.
        """
        ...

    def on_instruction_end(self, name: str) -> None:
        """Report that the instruction that began last has ended."""
        ...

    def on_pause(self, activity: Activity = Activity.IDLE) -> None:
        """Report that work other than training is about to start, until `on_resume` or the next step."""
        ...

    def on_resume(self) -> None:
        """Report the end of the work that the latest `on_pause` announced."""
        ...

    def close(self) -> None:
        """Report that training has ended, normally or by an error."""
        ...
