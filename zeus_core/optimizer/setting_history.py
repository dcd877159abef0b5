"""The changes of a setting during a training, for the file of its run."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from zeus_core.ports import TimeSource
from zeus_core.ports.time_source import clock_seconds

# A search makes some ten changes, and one that follows a signal one an hour: this is a week, in 30 kB of a run file.
_MAX_CHANGES = 200


@dataclass(frozen=True)
class SettingChange:
    """One change.

    Attributes:
        at_seconds: When it was made, in seconds since 1970.
        setting: The setting; None where the original state was restored.
        unit: Its unit: "W" or "MHz".
        reason: Why it was made.
    """

    at_seconds: float
    setting: int | None
    unit: str
    reason: str


class SettingHistory:
    """Records the latest changes of one training.

    Args:
        time_source: Its clock gives the time of a change.
    """

    def __init__(self, time_source: TimeSource) -> None:
        self._time_source = time_source
        self._changes: deque[SettingChange] = deque(maxlen=_MAX_CHANGES)
        self._in_force: tuple[int, str] | None = None

    @property
    def changes(self) -> tuple[SettingChange, ...]:
        """The changes, the latest last."""
        return tuple(self._changes)

    def begin(self) -> None:
        """Forget the training before."""
        self._changes.clear()
        self._in_force = None

    def note(self, setting: int, unit: str, reason: str) -> None:
        """Record the setting in force, if it is another one than before; the first one is the original."""
        before, self._in_force = self._in_force, (setting, unit)
        if before is not None and before != self._in_force:
            self._changes.append(SettingChange(clock_seconds(self._time_source), setting, unit, reason))

    def note_restored(self, reason: str) -> None:
        """Record that the original state is in force again, if it was not, and why."""
        before, self._in_force = self._in_force, None
        if before is not None and self._changes and self._changes[-1].setting is not None:
            self._changes.append(SettingChange(clock_seconds(self._time_source), None, before[1], reason))
