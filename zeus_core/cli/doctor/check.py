"""The result of one check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "limited", "missing"]


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
        name: The subject of the check.
        state: "ok"; "limited" if only a part of it works; "missing".
        sentence: The result in words.
        fix: A shell command that fixes it; None if nothing needs fixing, or no command can.
    """

    name: str
    state: State
    sentence: str
    fix: str | None = None
