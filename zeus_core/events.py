"""What a training loop reports, in words no framework owns.

Adapters translate the hooks of their framework into these events, and tell a `TrainingObserver`: an optimizer, which
turns them into settings, or the account of where the energy goes. The order is

    TRAIN_BEGIN, { EPOCH_BEGIN, { STEP_BEGIN, STEP_END, [PAUSE] }*, EPOCH_END }*, TRAIN_END

where a step is one optimizer step. Loops that report less (no TRAIN_BEGIN, no STEP_END) are understood too.
"""

from enum import Enum
from typing import Protocol

from zeus_core.ports import World

__all__ = ["Activity", "Event", "NoObserver", "PipelineObserver", "TrainingObserver"]


class Event(Enum):
    """One thing that happened in a training loop."""

    TRAIN_BEGIN = "train begin"
    EPOCH_BEGIN = "epoch begin"
    STEP_BEGIN = "step begin"
    STEP_END = "step end"
    PAUSE = "pause"
    """Work that is not training (evaluation, saving) is about to start; training is back at the next STEP_BEGIN."""
    INTERFERENCE = "interference"
    """Work that is not training has already started without a PAUSE: what is being measured holds some of it."""
    EPOCH_END = "epoch end"
    TRAIN_END = "train end"


class Activity(Enum):
    """What a training job spends time and energy on; the values are part of the names of what is logged."""

    STEPS = "steps"
    """Training steps, with the loading of their data and the logging in between."""
    GENERATION = "generation"
    """Text generated for training, as in reinforcement learning."""
    REFERENCE = "reference"
    """Passes of a reference model, as in preference optimisation."""
    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"
    IDLE = "idle"
    """Everything else between the beginning and the end of training."""


class TrainingObserver(Protocol):
    """Is told what happens in a training loop. No event raises, and none blocks longer than a timeout of its own."""

    def use_world(self, world: World) -> None:
        """The ranks of the job, of whom adapters learn late. To be told before training begins."""
        ...

    def on_train_begin(self) -> None:
        """Training begins."""
        ...

    def on_epoch_begin(self) -> None:
        """An epoch begins."""
        ...

    def on_step_begin(self) -> None:
        """A training step begins. A step whose end was not reported ends here."""
        ...

    def on_step_end(self) -> None:
        """The training step has ended."""
        ...

    def on_pause(self, activity: Activity = Activity.IDLE, on_all_ranks: bool = False) -> None:
        """Something else than training is about to happen, until `on_resume` or the next step.

        Args:
            activity: What it is.
            on_all_ranks: Whether every rank reports it.
        """
        ...

    def on_resume(self) -> None:
        """What the latest `on_pause` announced is over."""
        ...

    def on_interference(self) -> None:
        """Something else than training has already happened since the last step ended."""
        ...

    def on_epoch_end(self) -> None:
        """The epoch has ended; what follows is not training until the next step begins."""
        ...

    def on_train_end(self) -> None:
        """Training has ended, in whatever way."""
        ...


class NoObserver:
    """Is told, and does nothing."""

    def use_world(self, world: World) -> None:
        """Do nothing."""

    def on_train_begin(self) -> None:
        """Do nothing, as at all other events."""

    on_epoch_begin = on_step_begin = on_step_end = on_resume = on_train_begin
    on_interference = on_epoch_end = on_train_end = on_train_begin

    def on_pause(self, activity: Activity = Activity.IDLE, on_all_ranks: bool = False) -> None:
        """Do nothing."""


class PipelineObserver(Protocol):
    """Is told what one rank of a training pipeline does, in the order it does it. No event raises.

    A step is one iteration: all microbatches, and the optimizer step. Within it, instructions do not nest.
    """

    def on_step_begin(self) -> None:
        """An iteration begins."""
        ...

    def on_step_end(self) -> None:
        """The iteration has ended."""
        ...

    def on_instruction_begin(self, name: str, stage: int | None = None, microbatch: int | None = None) -> None:
        """An instruction begins.

        Args:
            name: Its kind: one of `zeus_core.pipeline.COMPUTE_KINDS`, `TRANSFER_KINDS`, "optimizer-step" or
                "all-reduce".
            stage: The stage it belongs to, for ranks that have several; the rank's only one if None.
            microbatch: What it works on; counted by stage and kind if None.
        """
        ...

    def on_instruction_end(self, name: str) -> None:
        """The instruction that began last has ended."""
        ...

    def on_pause(self, activity: Activity = Activity.IDLE) -> None:
        """Something else than training is about to happen, until `on_resume` or the next step."""
        ...

    def on_resume(self) -> None:
        """What the latest `on_pause` announced is over."""
        ...

    def close(self) -> None:
        """Training has ended, in whatever way."""
        ...
