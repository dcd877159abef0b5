"""The port of a search within a run of training: blocks of steps at one setting after another.

A `Search` finds the best setting, however long that takes. A `RunSearch` gives a whole run the least cost, of which its
own trials are a part. So it never ends: after the search it asks for blocks at its choice, which are data as well, and
may correct the choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from zeus_core.search.run.run_plan import Prediction, SearchCost
from zeus_core.search.trial import Trial


@dataclass(frozen=True)
class Block:
    """Steps to run next.

    Attributes:
        setting: Their setting.
        steps: How many of them to measure, after the device has settled.
        is_choice: Whether training would continue at this setting if nothing more was learned. The original setting
            counts as chosen until there is another choice.
    """

    setting: int
    steps: int
    is_choice: bool


class RunSearch(Protocol):
    """Decides what each step of a run is run at. Pure: it knows no device, no source of time and no framework.

    The caller runs the block it is given, waits until the device has settled if the setting is another one, measures
    the steps, and receives what was measured:

        while training:
            block = search.ask()
            ...  # apply block.setting, let the device settle, and measure up to block.steps steps;
            ...  # end the block early once not search.may_continue(steps, seconds)
            search.tell(trial, run_steps, run_seconds)

    It knows nothing but these blocks. To resume a search, give a new one the same blocks: it asks for the same one
    next. A block whose measurement is lost is not reported; the search asks for it again.

    By itself it runs each block as a whole, and predicts nothing.
    """

    def ask(self) -> Block:
        """Return what to run next. It changes with `tell` only."""
        ...

    def may_continue(self, steps: int, seconds: float) -> bool:
        """Return whether the block asked for may go on.

        False if it takes longer than the run can afford, or than it was expected to take. The steps that were measured
        are counted like those of a complete block.

        Args:
            steps: The steps of the block so far, with those in which the device settled.
            seconds: The time they took.
        """
        return True

    def tell(self, trial: Trial, run_steps: int, run_seconds: float) -> None:
        """Add a block: the one asked for, a shorter one, or one of an earlier process.

        Args:
            trial: The measured steps.
            run_steps: All steps of the run so far, also those that were not measured; 0 for a block of an earlier run,
                which teaches as much, and is no part of the time of this one.
            run_seconds: The time they took, without pauses of training.
        """
        ...

    @property
    def is_done(self) -> bool:
        """Whether no other trial is planned. Later blocks, at the choice or at the original, may correct it."""
        ...

    @property
    def choice(self) -> int | None:
        """The setting that training would continue at now; None before the original was measured."""
        ...

    @property
    def cost(self) -> SearchCost | None:
        """The cost of the rest of the search, and what it brings; None while nobody knows."""
        return None

    @property
    def stepped_aside(self) -> str | None:
        """The reason that the run stays at its original setting, for people; None if it need not."""
        return None

    def prediction(self, setting: int | None = None) -> Prediction | None:
        """Predict what a setting would do, beside the original one; None if it is not known.

        Args:
            setting: The setting; that of `choice` if None.
        """
        return None
