"""How the ranks of a job decide as one: what each tells the others, and what all make of it.

Rules:

- Every rank makes the same exchanges at the same training steps, whatever happens to it in between. A rank on which
  something has failed goes on counting steps, and tells of it at the next exchange, where all give up together.
- What is made of the reports is a pure function of them, and so the same on every rank.
- What one rank alone can know (what its user's selector prefers, what is in its file), rank 0 knows for all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TypeVar, cast

from zeus_core.errors import WorldError, ZeusError
from zeus_core.world import World

__all__ = ["Agreement"]

_Value = TypeVar("_Value")

_logger = logging.getLogger(__name__)


class Agreement:
    """What one rank does together with the others: all succeed, or all give up.

    Args:
        world: The ranks.
        put_back: Puts this rank's hardware back. Never raises.
        purpose: What they do together, for messages, such as "the search for a power limit".
    """

    def __init__(self, world: World, put_back: Callable[[], object], purpose: str) -> None:
        self.world = world
        """The ranks. May be replaced between two trainings."""
        self._put_back = put_back
        self._purpose = purpose
        self._failure: str | None = None

    def attempt(self, effect: Callable[[], _Value]) -> _Value | None:
        """Do something on this rank, unless something has failed on it before.

        After a failure, a job of one process gives up at once. A rank of several puts its hardware back at once, but
        goes on counting steps until the next exchange, where all give up together.

        Raises:
            Exception: What has failed, in a job of one process.
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
        """What each rank has to tell in this phase, in JSON's types, by rank. Every rank must call this.

        Raises:
            WorldError: Something has failed on a rank, or one did not answer in time, or is in another phase.
            Exception: What has failed, in a job of one process.
        """
        told = self.attempt(tell)
        reports = self.world.gather([phase.value, told, self._failure])
        phases, values, failures = zip(*reports, strict=True)
        if any(failures):
            raise WorldError(self.complaint(failures))
        _check_in_step(phases)
        return list(values)

    def decide(self, phase: Enum, decide: Callable[[], _Value]) -> _Value:
        """What rank 0 decides. Every rank must call this, and for the rest it is as an exchange."""
        return cast(_Value, self.exchange(phase, lambda: decide() if self.world.rank == 0 else None)[0])

    def complaint(self, reasons: Sequence[str | None]) -> str:
        """This rank's own reason; without one, those of the others with their names."""
        others = [f"rank {rank}: {reason}" for rank, reason in enumerate(reasons) if reason]
        return reasons[self.world.rank] or "; ".join(others)

    def give_up(self, error: Exception) -> None:
        """Put the hardware back; and say why, once."""
        self._put_back()
        if self._failure is None:
            self._failure = (isinstance(error, ZeusError) and str(error)) or repr(error)
            _logger.error(
                "%s has stopped, and training goes on without it: %s",
                self._purpose,
                error,
                exc_info=not isinstance(error, ZeusError),
            )


def _check_in_step(phases: Sequence[str]) -> None:
    for rank, phase in enumerate(phases):
        if phase != phases[0]:
            raise WorldError(
                f"the ranks are out of step: rank 0 is at {phases[0]!r} and rank {rank} at {phase!r}; "
                "report the same steps on every rank"
            )
