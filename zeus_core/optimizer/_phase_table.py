"""Tables of phases: every optimizer declares one, and follows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

__all__ = ["PhaseTable", "follow"]

_Phase = TypeVar("_Phase", bound=Enum)
_Happening = TypeVar("_Happening", bound=Enum)


@dataclass(frozen=True)
class PhaseTable(Generic[_Phase, _Happening]):
    """The next phase, by the current phase and by what happens. A happening that is not listed changes nothing.

    Attributes:
        first: The phase an optimizer begins in.
        last: The phase that is never left; None if there is none.
        transitions: The next phase, by phase and happening.
        from_every_phase: The next phase, by happening, from every phase but the last that has no own row for it.
    """

    first: _Phase
    last: _Phase | None
    transitions: Mapping[tuple[_Phase, _Happening], _Phase]
    from_every_phase: Mapping[_Happening, _Phase] = field(default_factory=dict)

    def next(self, phase: _Phase, happening: _Happening) -> _Phase:
        """Return the phase after something has happened."""
        if phase is self.last:
            return phase
        return self.transitions.get((phase, happening)) or self.from_every_phase.get(happening, phase)

    def reachable(self) -> set[_Phase]:
        """Return the phases that some sequence of happenings leads to."""
        reached: set[_Phase] = set()
        added = {self.first, *self.from_every_phase.values()}
        while added:
            reached |= added
            added = {after for (before, _), after in self.transitions.items() if before in reached} - reached
        return reached

    def diagram(self) -> str:
        """Return the table as a state diagram in Mermaid's language."""
        lines = ["stateDiagram-v2"]
        lines += [f'    state "{phase.value}" as {_identifier(phase)}' for phase in type(self.first)]
        lines += [f"    [*] --> {_identifier(self.first)}"]
        happenings: dict[tuple[str, str], list[str]] = {}
        for (before, happening), after in self.transitions.items():
            happenings.setdefault((_identifier(before), _identifier(after)), []).append(happening.value)
        for happening, after in self.from_every_phase.items():
            happenings.setdefault(("any_phase", _identifier(after)), []).append(happening.value)
        if self.from_every_phase:
            but = f" but {self.last.value}" if self.last is not None else ""
            lines += [f'    state "any phase{but}" as any_phase']
        lines += [f"    {before} --> {after} : {', '.join(by)}" for (before, after), by in happenings.items()]
        return "\n".join(lines) + "\n"


def follow(event: _Happening, advance: Callable[[_Happening], bool], enter: Callable[[], _Happening | None]) -> None:
    """Follow an event, and then the outcome of entering each phase it leads to.

    Args:
        event: The event.
        advance: Changes the phase by a happening. Returns whether another phase was entered.
        enter: Has the effects of entering the current phase. Returns their outcome; None if there is none yet.
    """
    happening: _Happening | None = event
    while happening is not None and advance(happening):
        happening = enter()


def _identifier(phase: Enum) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in str(phase.value))
