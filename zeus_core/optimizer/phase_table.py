"""Tables of phases: every optimizer declares one, and follows it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

_Phase = TypeVar("_Phase", bound=Enum)
_Happening = TypeVar("_Happening")


@dataclass(frozen=True)
class PhaseTable(Generic[_Phase, _Happening]):
    """The next phase, by the current phase and by what happens: an outcome, or an event of a class.

    A happening that is not listed changes nothing.

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

    def diagram(self) -> str:
        """Return the table as a state diagram in Mermaid's language."""
        lines = ["stateDiagram-v2"]
        lines += [f'    state "{phase.value}" as {_identifier(phase)}' for phase in type(self.first)]
        lines += [f"    [*] --> {_identifier(self.first)}"]
        happenings: dict[tuple[str, str], list[str]] = {}
        for (before, happening), after in self.transitions.items():
            happenings.setdefault((_identifier(before), _identifier(after)), []).append(_words(happening))
        for happening, after in self.from_every_phase.items():
            happenings.setdefault(("any_phase", _identifier(after)), []).append(_words(happening))
        if self.from_every_phase:
            but = f" but {self.last.value}" if self.last is not None else ""
            lines += [f'    state "any phase{but}" as any_phase']
        lines += [f"    {before} --> {after} : {', '.join(by)}" for (before, after), by in happenings.items()]
        return "\n".join(lines) + "\n"


def _words(happening: object) -> str:
    """Return an outcome, or a class of events, in words."""
    if isinstance(happening, type):
        return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", happening.__name__).lower()
    return str(happening.value) if isinstance(happening, Enum) else str(happening)


def _identifier(phase: Enum) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in str(phase.value))
