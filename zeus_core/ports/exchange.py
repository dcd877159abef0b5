"""Exchanges between the ranks of a job: gather a value or a fault from every rank, then all ranks act alike.

Rules:

- Every rank makes the same exchanges at the same training steps. A rank on which something has failed continues to
  count steps, and reports the failure at the next exchange, where all ranks learn of it.
- A conclusion from the values is a pure function of them, and so the same on every rank.
- Facts that only one rank can have (the choice of a user's selector, the content of a file) are taken from rank 0.
- After one timeout, no rank is waited for again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from enum import Enum
from typing import TypeVar, cast

from zeus_core.codec import decode, encode
from zeus_core.errors import WorldError, ZeusError
from zeus_core.ports.world import World
from zeus_core.process.deadline import waiting_for

_Value = TypeVar("_Value")


class Exchange:
    """Joint action of one rank with the others: it succeeds on all ranks, or fails on all.

    Args:
        world: The ranks.
        on_fault: Called at once with every error of this rank, before the other ranks are waited for: restores its
            hardware. Must not raise.
    """

    def __init__(self, world: World, on_fault: Callable[[Exception], object] = lambda error: None) -> None:
        self.world: World = world
        """The ranks."""
        self._on_fault = on_fault
        # Not the exception, whose traceback would keep the variables of the training loop alive.
        self._failure: str | None = None
        self.is_cut_off: bool = False
        """Whether an exchange has failed as such, as by a timeout: no rank is waited for again."""

    def use_world(self, world: World) -> None:
        """Replace the ranks, between two training runs."""
        self.world, self.is_cut_off = world, False

    @property
    def rank(self) -> int:
        """This rank."""
        return self.world.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.world.size

    def gather(self, tell: Callable[[], _Value], phase: Enum | None = None) -> list[_Value]:
        """Return the value of each rank, by rank. Every rank must call this.

        Args:
            tell: Returns the value of this rank, in JSON types. Not called after a failure of this rank.
            phase: The current phase, which must be the same on all ranks.

        Raises:
            Exception: `tell` raised it.
            WorldError: Something failed on another rank, or on this one before; or a rank did not answer in time or is
                in another phase.
        """
        value = None
        if self._failure is None:
            try:
                value = tell()
            except Exception as error:
                self._on_fault(error)
                with suppress(Exception):  # the error of this rank says more than that of another
                    self._send([phase and phase.value, None, _reason(error)])
                raise
        reports = self._send([phase and phase.value, value, self._failure])
        phases, values, reasons = zip(*reports, strict=True)
        if any(reasons):
            raise WorldError(self.complaint(reasons))
        _check_in_step(phases)
        return list(values)

    def decide(self, decide: Callable[[], _Value], phase: Enum | None = None) -> _Value:
        """Return the decision of rank 0, in JSON types. Every rank must call this; it raises as `gather` does."""
        return cast(_Value, self.gather(lambda: decide() if self.rank == 0 else None, phase)[0])

    def gather_of(self, kind: type[_Value], tell: Callable[[], _Value], phase: Enum | None = None) -> list[_Value]:
        """Gather values of a class that `encode` knows, as `gather` does; those of one process stay as they are."""
        if self.size > 1:
            return [decode(kind, fields) for fields in self.gather(lambda: encode(tell()), phase)]
        if self._failure is not None:
            raise WorldError(self._failure)
        try:
            return [tell()]
        except Exception as error:
            self._on_fault(error)
            raise

    def decide_of(self, kind: type[_Value], decide: Callable[[], _Value], phase: Enum | None = None) -> _Value:
        """Return the decision of rank 0, a value of a class that `encode` knows; see `gather_of`."""
        if self.size > 1:
            return decode(kind, self.decide(lambda: encode(decide()), phase))
        return self.gather_of(kind, decide, phase)[0]

    def make(
        self,
        make: Callable[[], _Value],
        unmake: Callable[[_Value], object] = lambda made: None,
        phase: Enum | None = None,
    ) -> _Value:
        """Make something on every rank, or on none. Every rank must call this; it raises as `gather` does.

        Args:
            make: Makes the thing of this rank, which this returns.
            unmake: Called with the thing if another rank has failed.
            phase: See `gather`.
        """
        made: list[_Value] = []
        try:
            self.gather(lambda: made.append(make()), phase)
        except Exception:
            for thing in made:
                unmake(thing)
            raise
        return made[0]

    def attempt(self, effect: Callable[[], _Value]) -> _Value | None:
        """Do something on this rank alone, unless something failed here before.

        Returns:
            The result of `effect`; None after a failure.

        Raises:
            Exception: The error of `effect`, in a job of one process. One of several ranks reports it at the next
                exchange.
        """
        if self._failure is None:
            try:
                return effect()
            except Exception as error:
                self.fail(error)
                if self.size == 1:
                    raise
        return None

    def fail(self, error: Exception) -> None:
        """Report this error of this rank at every exchange from now on."""
        self._failure = self._failure or _reason(error)
        self._on_fault(error)

    def complaint(self, reasons: Sequence[str | None]) -> str:
        """Return this rank's own reason; without one, those of the other ranks, each with its ranks."""
        by_reason: dict[str, list[str]] = {}
        for rank, reason in enumerate(reasons):
            if reason:
                by_reason.setdefault(reason, []).append(str(rank))
        others = "; ".join(f"rank {', '.join(ranks)}: {reason}" for reason, ranks in by_reason.items())
        return reasons[self.rank] or others

    def _send(self, report: list[object]) -> list[list[object]]:
        if self.is_cut_off:
            raise WorldError("a rank of this job did not answer before; see its own log")
        try:
            with waiting_for("ranks") if self.size > 1 else nullcontext():
                return self.world.gather(report)
        except Exception:
            self.is_cut_off = True
            raise


def _reason(error: Exception) -> str:
    return (isinstance(error, ZeusError) and str(error)) or repr(error)


def _check_in_step(phases: Sequence[str]) -> None:
    for rank, phase in enumerate(phases):
        if phase != phases[0]:
            raise WorldError(
                f"the ranks disagree on the current phase: rank 0 is at {phases[0]!r} and rank {rank} at {phase!r}; "
                "report the same steps on every rank"
            )
