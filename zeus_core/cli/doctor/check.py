"""The result of one check, and a look at counters."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from zeus_core.cli.text import readable

_POLL_SECONDS = 0.005

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


def still_counters(
    reads: Mapping[str, Callable[[], float | None]], seconds: float, periods_seconds: Mapping[str, float] | None = None
) -> list[str]:
    """Return the names of the counters that can be read, and do not move.

    Args:
        reads: Reads each counter, by its name.
        seconds: How long to look at all of them.
        periods_seconds: The longest time between two updates, of those that need longer: they have twice that.
    """
    longer = {name: 2 * period for name, period in (periods_seconds or {}).items() if 2 * period > seconds}
    first = {name: readable(read) for name, read in reads.items()}
    watched = [name for name, value in first.items() if value is not None]
    still: list[str] = []
    begin = time.monotonic()
    while watched:
        time.sleep(_POLL_SECONDS)
        passed = time.monotonic() - begin  # before the reading: a busy machine reads late
        watched = [name for name in watched if readable(reads[name]) == first[name]]
        still += [name for name in watched if passed >= longer.get(name, seconds)]
        watched = [name for name in watched if name not in still]
    return [name for name in first if name in still]
