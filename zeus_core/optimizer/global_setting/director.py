"""The hook for what directs training once its search is over, such as a signal that training follows.

The argument `carbon_aware` of an optimizer takes a `Directive`. It makes a `Director` on every rank of each training,
which is asked at the end of every block of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from zeus_core.monitor import ZeusMonitor
from zeus_core.ports.exchange import Exchange
from zeus_core.search import Trial
from zeus_core.search.run.run_plan import Prediction


@dataclass(frozen=True)
class DuePause:
    """A pause of training, before its next step.

    Attributes:
        seconds: How long to wait, until the next decision.
        until_seconds: When training is expected to go on, in seconds since 1970; None for never, as a budget is spent.
        ends_process: Whether the process ends meanwhile.
    """

    seconds: float
    until_seconds: float | None
    ends_process: bool


@dataclass(frozen=True)
class Decision:
    """The course of training until the next decision.

    Attributes:
        setting: The setting; None for the setting that the search asks for.
        steps: The steps at it.
        reason: The reason for it, for people.
        pause: The pause before them; None for none.
    """

    setting: int | None = None
    steps: int = 0
    reason: str = ""
    pause: DuePause | None = None


class DirectedSearch(Protocol):
    """The search that a training makes before it is directed. A director reads it, and changes nothing in it."""

    @property
    def settings(self) -> Sequence[int]:
        """The settings that may be chosen, the original one first."""

    @property
    def unit(self) -> str:
        """Their unit, such as "W"."""

    @property
    def max_steps(self) -> int | None:
        """The steps of the run; None if nobody knows, which leaves the choice to the search."""

    @property
    def run_steps(self) -> int:
        """The steps of the run so far."""

    @property
    def cycle_seconds(self) -> float:
        """The time of steps and activities until the end of the latest block, without pauses of training."""

    @property
    def is_done(self) -> bool:
        """Whether the search has chosen."""

    @property
    def choice(self) -> int:
        """The setting that the search asks for next."""

    @property
    def present(self) -> int:
        """The setting of the steps since the latest decision."""

    @property
    def cycle_trials(self) -> Sequence[Trial]:
        """All blocks of steps that were measured, each step with its share of activities that were measured apart."""

    @property
    def original_trial(self) -> Trial | None:
        """The steps at the original setting, as in `cycle_trials`, and activities at theirs; None if none was measured.

        Training at full power is as these.
        """

    def predicted(self, setting: int) -> Prediction | None:
        """Predict what a setting would do; None if nobody knows."""


class Director(Protocol):
    """Directs one training, on one rank. Each method is called on all ranks at the same step, but for the last two."""

    def direct(self, search: DirectedSearch) -> Decision:
        """Return what to do next, the same on all ranks, at the end of a block of steps.

        Args:
            search: The search of the training. It is another one after somebody else has lowered a limit.
        """

    def pause(self, pause: DuePause, meanwhile: Callable[[], object]) -> None:
        """Wait before the next step, or end the process, as a decision has said.

        Args:
            pause: The pause of that decision.
            meanwhile: Called each minute of the pause.

        Raises:
            SystemExit: The process ends.
        """

    def rows(self) -> dict[str, str]:
        """Return what following its rule has gained, as labelled lines; empty if it is not known on this rank."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps beside the searches, in JSON types."""


class Directive(Protocol):
    """The rule by which training is directed, as a user passes it."""

    @property
    def rule(self) -> str:
        """The rule in words, such as "the price of electricity"."""

    def director(self, monitor: ZeusMonitor, exchange: Exchange, resumed: Mapping[str, Any]) -> Director:
        """Make the director of a training, before its first step. All ranks call this.

        Args:
            monitor: Measures the GPUs of this rank.
            exchange: The exchanges with the other ranks.
            resumed: The checkpoint that the training continues from, with the `state` of its director; else empty.
        """
