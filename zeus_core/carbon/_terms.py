"""The terms on which a training follows a signal: its deadline, its budget, and what it may do."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from zeus_core.electricity import Signal
from zeus_core.electricity.signal import checked_signal, checked_time
from zeus_core.errors import UsageError
from zeus_core.validate import checked_number, checked_path, shown, wrong_argument


class Terms:
    """The terms on which a training follows a signal; see `CarbonAware` for the arguments."""

    def __init__(
        self,
        signal: Signal,
        deadline: datetime | float | None = None,
        max_slowdown: float | None = None,
        budget: float | None = None,
        *,
        may_pause: bool = True,
        idle_watts: float | None = None,
        interval_seconds: float = 3600.0,
        checkpoint: Callable[[], object] | None = None,
        exit_from_seconds: float | None = None,
        resume_path: str | Path = "resume.json",
    ) -> None:
        if deadline is not None and max_slowdown is not None:
            raise UsageError(
                f"deadline is {shown(deadline)} and max_slowdown is {shown(max_slowdown)}; give one of the two"
            )
        if deadline is None and max_slowdown is None and budget is None:
            raise UsageError("deadline, max_slowdown and budget are all None; give a deadline or a bound, or a budget")
        self.signal: Signal = checked_signal("signal", signal)
        """The intensity, or the price."""
        self.deadline_seconds: float | None = None if deadline is None else _unix_seconds(deadline)
        """When training must be done, in seconds since 1970."""
        self.max_slowdown: float | None = (
            None if max_slowdown is None else checked_number("max_slowdown", max_slowdown, 1.0, 1e6, "a factor from 1")
        )
        """How much longer training may take."""
        self.budget: float | None = (
            None if budget is None else checked_number("budget", budget, 0.0, 1e15, "grams or money, at least 0")
        )
        """The most that training may emit or cost."""
        self.may_pause: bool = may_pause
        """Whether training may pause."""
        self.idle_watts: float | None = (
            None if idle_watts is None else checked_number("idle_watts", idle_watts, 0.0, 1e9, "watts, at least 0")
        )
        """The power of all GPUs in a pause, as passed."""
        self.interval_seconds: float = checked_number(
            "interval_seconds", interval_seconds, 60.0, 86_400.0, "seconds, from 60 to one day"
        )
        """The time between decisions."""
        if checkpoint is not None and not callable(checkpoint):  # it would fail in the first pause
            raise wrong_argument("checkpoint", checkpoint, "a function of no arguments")
        self.checkpoint: Callable[[], object] | None = checkpoint
        """Called before a pause."""
        self.exit_from_seconds: float = (
            math.inf
            if exit_from_seconds is None
            else checked_number("exit_from_seconds", exit_from_seconds, 0.0, math.inf, "seconds, at least 0")
        )
        """The length from which a pause ends the process; infinite if none does."""
        self.resume_path: Path = Path(checked_path("resume_path", resume_path, "resume.json"))
        """The file for a scheduler."""


def _unix_seconds(deadline: datetime | float) -> float:
    if isinstance(deadline, datetime):
        if deadline.tzinfo is None:
            raise UsageError(
                f"deadline is {deadline.isoformat()}, which has no zone; pass deadline.astimezone(), or "
                "datetime(..., tzinfo=ZoneInfo('Europe/Berlin'))"
            )
        return deadline.timestamp()
    return checked_time("deadline", deadline)
