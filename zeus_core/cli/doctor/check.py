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


def still_counters(reads: Mapping[str, Callable[[], float | None]], seconds: float) -> list[str]:
    """Return the names of the counters that can be read, and do not move within some time."""
    first = {name: readable(read) for name, read in reads.items()}
    still = [name for name, value in first.items() if value is not None]
    begin, is_over = time.monotonic(), False
    while still and not is_over:
        time.sleep(_POLL_SECONDS)
        is_over = time.monotonic() - begin >= seconds  # looked at before the reading: a busy machine reads late
        still = [name for name in still if readable(reads[name]) == first[name]]
    return still
