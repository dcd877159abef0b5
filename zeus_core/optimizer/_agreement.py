"""How the ranks of a job decide together: what each reports to the others, and what all conclude from it.

Rules:

- Every rank makes the same exchanges at the same training steps, whatever happens to it in between. A rank on which
  something has failed continues to count steps and reports the failure at the next exchange, where all give up.
- What is concluded from the reports is a pure function of them, and so the same on every rank.
- Facts only one rank can have (what its user's selector prefers, what is in its file) are taken from rank 0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TypeVar, cast

from zeus_core.errors import WorldError, ZeusError
from zeus_core.ports import World

__all__ = ["Agreement"]

_Value = TypeVar("_Value")

_logger = logging.getLogger(__name__)


class Agreement:
    """Joint action of one rank with the others: all succeed, or all give up.

    Args:
        world: The ranks.
        put_back: Restores this rank's hardware settings. Never raises.
        purpose: What they do together, as the subject of messages, such as "the search for a power limit".
    """

    def __init__(self, world: World, put_back: Callable[[], object], purpose: str) -> None:
        self.world = world
        """The ranks. May be replaced between two training runs."""
        self._put_back = put_back
        self._purpose = purpose
        self._failure: str | None = None

    def attempt(self, effect: Callable[[], _Value]) -> _Value | None:
        """Do something on this rank, unless something has failed on it before.

        After a failure, a job of one process gives up at once. One of several ranks restores its hardware at once, but
        continues to count steps until the next exchange, where all give up together.

        Returns:
            What `effect` returns; None after a failure.

        Raises:
            Exception: What `effect` raised, in a job of one process.
        """
        if self._failure is None:
            try:
                return effect()
            except Exception as error:
                self.give_up(error)
                if self.world.size == 1:
                    raise
        return None

    def exchange(self, phase: Enum, tell: Callable[[], _Value]) -> list[_Value]:
        """What each rank reports in this phase, in JSON types, by rank. Every rank must call this.

        Raises:
            WorldError: Something has failed on a rank, or a rank did not answer in time or is in another phase.
            Exception: What `tell` raised, in a job of one process.
        """
        told = self.attempt(tell)
        reports = self.world.gather([phase.value, told, self._failure])
        phases, values, failures = zip(*reports, strict=True)
        if any(failures):
            raise WorldError(self.complaint(failures))
        _check_in_step(phases)
        return list(values)

    def decide(self, phase: Enum, decide: Callable[[], _Value]) -> _Value:
        """What rank 0 decides, in JSON types. Every rank must call this; it raises as `exchange` does."""
        return cast(_Value, self.exchange(phase, lambda: decide() if self.world.rank == 0 else None)[0])

    def complaint(self, reasons: Sequence[str | None]) -> str:
        """This rank's own reason; without one, those of the other ranks, each with its rank."""
        others = [f"rank {rank}: {reason}" for rank, reason in enumerate(reasons) if reason]
        return reasons[self.world.rank] or "; ".join(others)

    def give_up(self, error: Exception) -> None:
        """Restore the hardware, and log the reason, once."""
        self._put_back()
        if self._failure is None:
            self._failure = (isinstance(error, ZeusError) and str(error)) or repr(error)
            _logger.error(
                "%s is off for the rest of this run; training continues: %s",
                self._purpose,
                error,
                exc_info=not isinstance(error, ZeusError),
            )


def _check_in_step(phases: Sequence[str]) -> None:
    for rank, phase in enumerate(phases):
        if phase != phases[0]:
            raise WorldError(
                f"the ranks disagree on the current phase: rank 0 is at {phases[0]!r} and rank {rank} at {phase!r}; "
                "report the same steps on every rank"
            )
