"""One GPU's energy counter, followed over all readings that a monitor takes of it. Pure.

A window reads the counter at its edges only, and the counter may fail in between: stand still, go back, jump, or not
answer. Other windows and threads may have seen it. So each reading is compared with the one before it, of any window,
and the findings are kept in the updates that the edges refer to.

A counter without an update for longer than its period may have stopped for good: the energy since is that of the
power readings; see `GpuEdge.still_from`. Where nobody has read the counter for some periods, and it shows less than the
power at both ends of that time, it may have stopped at any moment of it: its update is doubtful, and it has stopped if
no other follows within a period.

A counter that stood still or did not answer is trusted again if it has caught up: it then shows an energy that is
possible, and most of what the power readings say. Otherwise the energy from its latest good update to the next is
estimated, and with it all windows that span it; see `CounterUpdate.breaks`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from zeus_core.monitor._integral import next_sums
from zeus_core.monitor.reading import Breaks, CounterUpdate, GpuEdge, PowerSums
from zeus_core.units import duration_text

_LATE_UPDATE = 1.05  # periods; updates of real counters come with a jitter of a few milliseconds
_STUCK_PERIODS = 4  # a counter without an update for longer is stuck; a driver may skip one update, not three
# Of the energy by the power readings. Lower trusts a counter that has lost some; higher gives up exact energies where
# the power changed between two readings. Either way the truth lies in the interval of a counter that is not trusted.
_CAUGHT_UP = 0.8
_NO_BREAKS = Breaks()
_new_tuple = tuple.__new__  # a third of the cost of the constructor of a named tuple, and this is every reading


class CounterTrail:
    """Compares each reading of a counter with the one before. Several threads may use it.

    Args:
        period_seconds: The time between two updates.
        peak_watts: The most the GPU can draw.
        now: Returns the time.
    """

    def __init__(self, period_seconds: float, peak_watts: float, now: Callable[[], float]) -> None:
        self._period_seconds = period_seconds
        self._late_seconds = _LATE_UPDATE * period_seconds
        self._stuck_seconds = _STUCK_PERIODS * period_seconds
        # The same for every window, so that it is logged once.
        self._stood_still = f"the energy counter stood still for more than {duration_text(self._stuck_seconds)}"
        self._peak_watts = peak_watts
        self._now = now
        # Replaced as a whole: of two threads one may be forgotten, which the next reading makes up for.
        self._latest: GpuEdge | None = None

    def follow(self, at: float, counter_joules: float, power_watts: float | None) -> GpuEdge:
        """Compare a reading that has just been taken with the one before.

        Args:
            at: When the counter was asked.
            counter_joules: The counter.
            power_watts: The power; None if it could not be read.
        """
        latest = self._latest
        fault, held_joules, still_from, sums = None, 0.0, None, None
        if latest is None or latest.update is None:
            after = at - self._period_seconds
            update = CounterUpdate(counter_joules, counter_joules, after, self._now(), _NO_BREAKS)
        elif at < latest.at:  # another thread was quicker, and has compared a later reading
            return latest._replace(at=at, counter_joules=counter_joules, power_watts=power_watts, seen_at=at)
        elif counter_joules == latest.update.counter_joules:
            update, held_joules = latest.update, _held_joules(latest, at)
            if at - update.until > self._late_seconds:
                still_from, sums = self._still(latest, at, power_watts)
                if update.doubtful_since is not None:
                    update.after, update.has_stopped = update.doubtful_since, True
                if at - update.until > self._stuck_seconds:
                    fault = self._stood_still
        else:
            update = self._updated(latest, latest.update, at, counter_joules, power_watts)
        edge: GpuEdge = _new_tuple(
            GpuEdge, (at, counter_joules, power_watts, fault, update, at, held_joules, sums, still_from)
        )
        self._latest = edge
        return edge

    def fail(self, at: float, fault: str, power_watts: float | None) -> GpuEdge:
        """Note that the counter could not be read."""
        latest = self._latest
        if latest is None or latest.update is None:  # energy is counted from here on, once the counter has a value
            update = CounterUpdate(0.0, math.nan, at, at, _NO_BREAKS)
            edge = GpuEdge(at, None, power_watts, fault, update, at)
        elif at < latest.at:
            return GpuEdge(at, None, power_watts, fault)
        else:
            watts = latest.power_watts if power_watts is None else power_watts
            still_from, sums = self._still(latest, at, power_watts)
            held_joules = _held_joules(latest, at)
            edge = GpuEdge(at, None, watts, fault, latest.update, latest.seen_at, held_joules, sums, still_from)
        self._latest = edge
        return edge

    def _still(self, latest: GpuEdge, at: float, power_watts: float | None) -> tuple[GpuEdge, PowerSums | None]:
        """Add a power to the sums since the counter was last seen to work; None if one of the powers is missing."""
        start = latest.still_from
        if start is None:
            start, latest = latest, latest._replace(sums=PowerSums())
        if power_watts is None or latest.power_watts is None or latest.sums is None:
            return start, None
        return start, next_sums(latest, at, power_watts, self._peak_watts)

    def _updated(
        self, latest: GpuEdge, last: CounterUpdate, at: float, counter_joules: float, power_watts: float | None
    ) -> CounterUpdate:
        """Make the update that a new value shows, and complete the last one by it."""
        shown_joules, seen_at = counter_joules - last.counter_joules, latest.seen_at
        # Readings that come close together show when the counter was updated.
        is_close = seen_at > at - self._period_seconds
        after, until = seen_at if is_close else at - self._period_seconds, self._now()  # the call may have taken long
        # One period more, for a time source as coarse as a period.
        max_joules = self._peak_watts * (until - last.after + self._period_seconds)
        if latest.fault is not None or not 0 < shown_joules <= max_joules:
            return self._after_trouble(latest, last, counter_joules, after, until, max_joules)
        if is_close:
            last.after = max(last.after, seen_at - _LATE_UPDATE * self._period_seconds)
        last.next_until = until
        last.next_joules = joules = last.joules + shown_joules  # last, because another thread looks at it first
        update = CounterUpdate(joules, counter_joules, after, until, last.breaks)
        unseen_seconds = at - seen_at - self._period_seconds
        least_joules = min(power_watts or 0.0, latest.power_watts or 0.0) * unseen_seconds
        if unseen_seconds > self._period_seconds and shown_joules < _CAUGHT_UP * least_joules:
            update.doubtful_since = seen_at
        return update

    def _after_trouble(
        self,
        latest: GpuEdge,
        last: CounterUpdate,
        counter_joules: float,
        after: float,
        until: float,
        max_joules: float,
    ) -> CounterUpdate:
        """Make the update that ends trouble: a value that is impossible, or comes after the counter has failed."""
        shown_joules, seconds = counter_joules - last.counter_joules, until - last.until
        fault, min_joules = latest.fault, 0.0
        if shown_joules < 0:
            fault = f"the energy counter went back by {-shown_joules:g} J, as it does when the driver is loaded again"
        elif shown_joules > max_joules:
            fault = f"the energy counter jumped by {shown_joules:g} J in {duration_text(seconds)}"
        elif self._has_caught_up(latest, last, counter_joules, until):
            last.next_until, last.next_joules = until, last.joules + shown_joules
            return CounterUpdate(last.next_joules, counter_joules, after, until, last.breaks)
        elif not math.isnan(shown_joules):
            min_joules = shown_joules
        joules = min(max(_held_joules(latest, until), min_joules), max_joules)
        number, _, excess_joules, missing_joules = last.breaks
        excess_joules, missing_joules = excess_joules + joules - min_joules, missing_joules + max_joules - joules
        breaks = Breaks(number + 1, fault, excess_joules, missing_joules)
        return CounterUpdate(last.joules + joules, counter_joules, after, until, breaks)

    def _has_caught_up(self, latest: GpuEdge, last: CounterUpdate, counter_joules: float, until: float) -> bool:
        """Return whether a counter that stood still or failed shows all the energy again.

        One that stood still may have lost that energy and counted since: the more time is left for that, the less the
        new value shows.
        """
        is_most = counter_joules - last.counter_joules >= _CAUGHT_UP * _held_joules(latest, until)
        has_just_failed = latest.counter_joules is None
        return is_most and (has_just_failed or until - latest.at <= latest.at - last.until)


def _held_joules(latest: GpuEdge, at: float) -> float:
    """Hold the latest power up to a moment."""
    return latest.held_joules + (latest.power_watts or 0.0) * (at - latest.at)
