"""One thing that was looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Check", "State"]

State = Literal["ok", "limited", "missing"]


@dataclass(frozen=True)
class Check:
    """A finding.

    Attributes:
        name: What was looked at.
        state: "ok"; "limited" if only a part of it works; "missing".
        sentence: What was found.
        fix: A command for a shell that mends it; None if there is nothing to mend, or no command for it.
    """

    name: str
    state: State
    sentence: str
    fix: str | None = None
