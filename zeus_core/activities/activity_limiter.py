"""The settings of the activities of one process: the one of the activity under way is set in the background."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from statistics import median

from zeus_core.device import Gpu
from zeus_core.errors import PermissionDeniedError
from zeus_core.kinds import Kind
from zeus_core.optimizer.limiter import Answer, Limiter
from zeus_core.ports import TimeSource
from zeus_core.ports.background import ThreadBackground
from zeus_core.ports.time_source import MonotonicTime
from zeus_core.settings.holders import KnobUser

_HOUR_SECONDS = 3600.0
_USUAL_LATENCY_SECONDS = 0.01  # of a switch, until one was made: 5 to 30 ms on boards (arXiv 2502.20075)
_RECENT_SWITCHES = 15
_CHECK_SECONDS = 5.0  # between two looks whether somebody else has changed the setting
_RESERVE = 0.1  # of the changes in an hour: for the steps, whose setting can always be set


class ActivityLimiter(Limiter):
    """A `Limiter` whose setting is that of the steps, and which sets another one for the visits of activities.

    The first setting is set at once, which shows whether that is permitted. All others are requests: a thread calls the
    driver, nobody waits for it, and the newest request wins. A setting that comes into force late slows down, or speeds
    up, what has begun before it.

    Args:
        gpus: At least one.
        kind: The kind of setting.
        user: See `Limiter`.
        observes: See `Limiter`.
        time_source: Times the changes.
        changes_per_hour: The most changes in an hour. Visits that would need more have the setting in force.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu],
        kind: Kind,
        user: KnobUser | None,
        observes: bool,
        time_source: TimeSource,
        changes_per_hour: int,
    ) -> None:
        super().__init__(gpus, kind, user, observes)
        self._now = time_source.now
        self._background = ThreadBackground() if isinstance(time_source, MonotonicTime) else None
        self._process_id = os.getpid()
        self.requested: int = self.settings[0]
        """The setting that was requested last, which is in force after the latency of a change."""
        self._steps_setting = self._confirmed = self._replaced = self.settings[0]
        self._taken: dict[int, int] = {}
        self._confirmed_at = self._stay_began = self._checked_at = -_HOUR_SECONDS
        self._is_settled = True
        self._fault: Exception | None = None
        self._is_disturbed = False
        self._is_over = False
        self._latencies: deque[float] = deque(maxlen=_RECENT_SWITCHES)
        self.changes_per_hour: int = changes_per_hour
        """The most changes in an hour."""
        self.is_limited: bool = False
        """Whether a visit had to go without its setting, as there were as many."""
        self._changes: deque[float] = deque(maxlen=max(changes_per_hour, 1))
        self.switches: int = 0
        """The changes that were requested for activities."""
        self.switching_seconds: float = 0.0
        """The time that the driver took for them."""

    @property
    def is_over(self) -> bool:
        """Whether the original settings were restored, or another process goes on: no request is served any more."""
        return self._is_over or self._process_id != os.getpid()

    @property
    def latency_seconds(self) -> float:
        """How long a change takes: the median of the latest ones."""
        return median(tuple(self._latencies) or (_USUAL_LATENCY_SECONDS,))

    @property
    def setting(self) -> int | None:
        """The setting of the steps; None if it is unknown, and once `restore` was called."""
        return None if super().setting is None else self._steps_setting

    def set(self, setting: int) -> Answer:
        """Set that of the steps. Raises as `Limiter.set`, also what the driver has raised in the background since."""
        if self.observes or not self._has_set:
            answer = super().set(setting)
            if answer.denial is None:
                self._steps_setting = self.requested = self._confirmed = setting
            return answer
        self._raise_fault()
        self._steps_setting = setting
        self.begin_stay(None)
        return Answer(taken=self._taken.get(setting))

    def begin_stay(self, setting: int | None) -> bool:
        """Note that an activity begins, or goes on, at a setting; None for that of the steps, which is always set.

        Returns:
            Whether it is requested. The setting in force goes on if there were too many changes in the last hour.
        """
        wanted = self._steps_setting if setting is None else setting
        now = self._now()
        is_requested = wanted == self.requested or setting is None or self._may_change(now)
        self.is_limited |= not is_requested
        self._stay_began, self._is_settled, self._replaced = now, False, self._confirmed
        if is_requested and wanted != self.requested and not self.observes and not self.is_over:
            self.requested = wanted
            self._changes.append(now)
            self.switches += 1
            if self._background is None:
                self._serve()
            else:
                self._background.soon(self._serve)
        return is_requested

    def late_seconds(self, *, is_last: bool = False) -> float:
        """Return how long the setting before was in force since the stay began, once that is known, and once only.

        Args:
            is_last: The stay ends.
        """
        if self._is_settled:
            return 0.0
        wanted, confirmed, at = self.requested, self._confirmed, self._confirmed_at
        if confirmed != wanted and not is_last:
            return 0.0
        self._is_settled = True
        end = at if confirmed == wanted else self._now()
        return max(end - self._stay_began, 0.0)

    def excess_seconds(self, late_seconds: float) -> float:
        """Return how much longer work took by the setting before, at most, in so many seconds of it.

        Work at s in place of a higher setting S advances by at least s / S of what it would. By less, down to s / S -
        0.26, where s is a limit near the static power (five simulated boards, 2026-11-27): that rest stays in the time
        that is measured, so that the bound holds.
        """
        return late_seconds * max(1 - self._replaced / self.requested, 0.0)

    def is_undisturbed(self) -> bool:
        """Return whether the settings were in force, as far as it was looked in the background. Raises as `set`."""
        if self.observes or not self._has_set:
            return super().is_undisturbed()
        self._raise_fault()
        is_disturbed, self._is_disturbed = self._is_disturbed, False
        return not is_disturbed

    def stay(self, denial: str, is_held: bool = False) -> None:
        """See `Limiter.stay`. Activities are measured on."""
        super().stay(denial, is_held)
        self._is_over = is_held

    def restore(self) -> bool:
        """Restore the original settings; see `Limiter.restore`."""
        self._is_over = True
        return super().restore()

    def _raise_fault(self) -> None:
        fault = self._fault
        if fault is not None:
            raise fault

    def _may_change(self, now: float) -> bool:
        """Return whether a visit may change the setting, and change it back."""
        while self._changes and self._changes[0] <= now - _HOUR_SECONDS:
            self._changes.popleft()
        return self._fault is None and len(self._changes) + 2 <= (1 - _RESERVE) * self.changes_per_hour

    def _serve(self) -> None:
        """Set what was requested last. Runs in the background."""
        setting = self.requested
        if self.is_over or self._fault is not None or setting == self._confirmed:
            return
        began = self._now()
        try:
            if began - self._checked_at >= _CHECK_SECONDS:
                self._checked_at = began
                self._is_disturbed |= not super().is_undisturbed()
                began = self._now()
            answer = super().set(setting)
        except Exception as error:
            if not self._is_over:
                self._fault = error.with_traceback(None)
            return
        if answer.denial is not None:
            self._fault = PermissionDeniedError(answer.denial)
            return
        if answer.taken is not None:
            self._taken[setting] = answer.taken
        self._confirmed_at = ended = self._now()
        self._confirmed = setting
        self._latencies.append(ended - began)
        self.switching_seconds += ended - began
