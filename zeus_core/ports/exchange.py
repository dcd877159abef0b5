"""Exchanges between the ranks of a job: a value or a fault from every rank, then all ranks act alike.

Frequent exchanges are those of `reduce`, `decide` and `make`, whose cost on a rank does not depend on the number of
ranks, and `gather_first`, which costs the first rank alone what all ranks send: where the world offers that. `gather`
costs it on every rank.

Rules:

- Every rank makes the same exchanges at the same training steps. A rank on which something has failed continues to
  count steps, and reports the failure at the next exchange, where all ranks learn of it.
- A conclusion from the values is a pure function of them, and so the same on every rank.
- Facts that only one rank can have (the choice of a user's selector, the content of a file) are taken from rank 0.
- After one timeout, no rank is waited for again.
"""

from __future__ import annotations

import json
import zlib
from array import array
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from enum import Enum
from typing import Any, TypeVar, cast

from zeus_core.codec import decode, encode
from zeus_core.errors import WorldError, ZeusError
from zeus_core.ports.world import ReducingWorld, WholeNumbers, World
from zeus_core.process.deadline import waiting_for

_SHORT_BYTES = 768  # of the decision of a rank, which one message holds

_Value = TypeVar("_Value")
_Result = TypeVar("_Result")


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

    def gather(self, own: Callable[[], _Value], phase: Enum | None = None) -> list[_Value]:
        """Return the value of each rank, by rank. Every rank must call this.

        Args:
            own: Returns the value of this rank, in JSON types. Not called after a failure of this rank.
            phase: The current phase, which must be the same on all ranks.

        Raises:
            Exception: `own` raised it.
            WorldError: Something failed on another rank, or on this one before; or a rank did not answer in time or is
                in another phase.
        """
        if self._reducing is not None:  # all exchanges begin alike, so that ranks in different phases learn it
            return self._send(self.world.gather, self.make(own, phase=phase))
        return self._check(self._gather(own, phase, lambda value: self._send(self.world.gather, value)))

    def gather_first(self, own: Callable[[], _Value], phase: Enum | None = None) -> list[_Value] | None:
        """Return the value of each rank, by rank, on rank 0 alone; None on the others.

        Every rank must call this; it raises as `gather` does. A rank that dies meanwhile fails the next exchange.
        """
        reducing = self._reducing
        if reducing is None:
            values = self.gather(own, phase)
            return values if self.rank == 0 else None
        return self._send(reducing.gather_to_first, self.make(own, phase=phase))

    def reduce(self, own: Callable[[], WholeNumbers], phase: Enum | None = None) -> WholeNumbers:
        """Return the whole numbers of all ranks together. Every rank must call this; it raises as `gather` does."""
        reducing = self._reducing
        if reducing is None:
            return WholeNumbers.of_all(WholeNumbers(*each) for each in self.gather(own, phase))
        total: WholeNumbers = self._gather(own, phase, lambda report: self._reduced(reducing, *report))
        return total

    def _reduced(
        self, world: ReducingWorld, phase: str | None, own: WholeNumbers | None, reason: str | None
    ) -> WholeNumbers:
        """Combine whole numbers in one exchange. If a rank failed, or is in another phase, a second one says which."""
        place = zlib.crc32((phase or "").encode())
        sums, largest = own or WholeNumbers()
        total = self._send(world.reduce, WholeNumbers(sums, [reason is not None, place, -place, *largest]))
        has_failed, last, first = total.largest[:3]
        if has_failed or last != -first:
            self._check(self._send(world.gather, [phase, None, reason]))
        return WholeNumbers(total.sums, total.largest[3:])

    def longest(self, own: Callable[[], float], phase: Enum | None = None) -> float:
        """Return the longest time of a rank, in seconds. Every rank must call this; it raises as `gather` does."""

        def numbers() -> WholeNumbers:
            seconds = array("d", [own() + 0.0])  # floats of at least 0 are in the order of their bits
            return WholeNumbers((), array("q", seconds.tobytes()).tolist())

        return array("d", array("q", self.reduce(numbers, phase).largest).tobytes())[0]

    def decide(self, decide: Callable[[], _Value], phase: Enum | None = None) -> _Value:
        """Return the decision of rank 0, in JSON types. Every rank must call this; it raises as `gather` does."""
        if self._reducing is None:
            return cast(_Value, self.gather(lambda: decide() if self.rank == 0 else None, phase)[0])
        sent = self.reduce(lambda: _packed(decide()) if self.rank == 0 else WholeNumbers(), phase)
        decision: _Value = _unpacked(sent)
        return decision

    def gather_of(self, kind: type[_Value], own: Callable[[], _Value], phase: Enum | None = None) -> list[_Value]:
        """Gather values of a class that `encode` knows, as `gather` does; those of one process stay as they are."""
        if self.size > 1:
            return [decode(kind, fields) for fields in self.gather(lambda: encode(own()), phase)]
        return [self.make(own)]

    def conclude_of(
        self,
        kind: type[_Value],
        own: Callable[[], _Value],
        result: type[_Result],
        conclude: Callable[[list[_Value]], _Result],
        phase: Enum | None = None,
    ) -> _Result:
        """Return what rank 0 concludes from the values of all ranks, which it alone gets; see `gather_of`.

        Args:
            kind: The class of the values.
            own: Returns the value of this rank.
            result: The class of the conclusion.
            conclude: Returns it, from the values by rank.
            phase: See `gather`.
        """
        if self.size == 1:
            return conclude(self.gather_of(kind, own, phase))
        values = self.gather_first(lambda: encode(own()), phase)
        return self.decide_of(result, lambda: conclude([decode(kind, value) for value in values or ()]), phase)

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
        if self.size == 1:
            if self._failure is not None:
                raise WorldError(self._failure)
            try:
                return make()
            except Exception as error:
                self._on_fault(error)
                raise
        made: list[_Value] = []

        def own() -> WholeNumbers:
            made.append(make())
            return WholeNumbers()

        try:
            self.reduce(own, phase)
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

    @property
    def _reducing(self) -> ReducingWorld | None:
        """The world, if the ranks need not gather all; None if they do, or there is one."""
        return cast(ReducingWorld, self.world) if self.size > 1 and hasattr(self.world, "reduce") else None

    def _gather(self, own: Callable[[], _Value], phase: Enum | None, send: Callable[[list[Any]], Any]) -> Any:
        """Send the phase, the value of this rank, and why it has none; return the answer."""
        value = None
        if self._failure is None:
            try:
                value = own()
            except Exception as error:
                self._on_fault(error)
                with suppress(Exception):  # the error of this rank says more than that of another
                    send([phase and phase.value, None, _reason(error)])
                raise
        return send([phase and phase.value, value, self._failure])

    def _check(self, reports: Sequence[list[Any]]) -> list[Any]:
        """Return the values of the reports of all ranks; raise if one has failed, or they are in different phases."""
        phases, values, reasons = zip(*reports, strict=True)
        if any(reasons):
            raise WorldError(self.complaint(reasons))
        _check_in_step(phases)
        return list(values)

    def _send(self, send: Callable[[Any], _Value], report: Any) -> _Value:
        if self.is_cut_off:
            raise WorldError("a rank of this job did not answer before; see its own log")
        try:
            with waiting_for("ranks") if self.size > 1 else nullcontext():
                return send(report)
        except Exception:
            self.is_cut_off = True
            raise


def _reason(error: Exception) -> str:
    return (isinstance(error, ZeusError) and str(error)) or repr(error)


def _packed(value: Any) -> WholeNumbers:
    """Return a value in JSON types as numbers of eight bytes; compressed where it is long, such as that of all GPUs."""
    content = json.dumps(value).encode()
    if len(content) > _SHORT_BYTES:
        content = zlib.compress(content, 1)
    return WholeNumbers(array("q", content + b" " * (-len(content) % 8)).tolist())


def _unpacked(numbers: WholeNumbers) -> Any:
    content = array("q", numbers.sums).tobytes()
    is_compressed = content[:1] == b"x"  # as which no JSON begins
    return json.loads(zlib.decompressobj().decompress(content) if is_compressed else content)


def _check_in_step(phases: Sequence[str]) -> None:
    for rank, phase in enumerate(phases):
        if phase != phases[0]:
            raise WorldError(
                f"the ranks disagree on the current phase: rank 0 is at {phases[0]!r} and rank {rank} at {phase!r}; "
                "report the same steps on every rank"
            )
