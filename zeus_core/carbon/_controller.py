"""Which setting to train at, or whether to pause, until the next decision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from zeus_core.carbon._carbon_schedule import SignalInterval, WorkSchedule, cheapest_schedule
from zeus_core.carbon._forecasts import Forecaster, SignalCourse
from zeus_core.carbon._uncertain_schedule import expected_costs
from zeus_core.carbon.operating_points import TrainingPoint, checked_points, lower_hull
from zeus_core.electricity import Signal
from zeus_core.electricity.signal import checked_signal, checked_time
from zeus_core.validate import checked_number

_DAY_SECONDS = 86_400.0
_SAME = 1e-9  # so close, costs differ by rounding; the quickest of them is right: what is done is done
# What goes slower than expected in the last interval cannot be made up for any more: so much slower it may be.
_RESERVE_FRACTION = 0.05
_MARGIN_FRACTION = 0.005  # the steps left are taken for so much more: how far `steps_per_second` can be too high
# A gain within its standard error is no reason to follow. With 0, 0.5 and 1 the worst of 16 runs on wind that forgets,
# with a forecast of a day, lost 2.7, 1.9 and 0.2 points (2026-11-28, benchmarks/carbon_replay.py: seeds 0 to 7,
# deadlines 1.1 and 1.3).
_SURE_DEVIATIONS = 1.0
_LONGEST_DAYS = 30.0  # that a budget may stretch the rest of a training to: grids are not foreseen for longer


class WorkController:
    """Chooses where a training runs hard, softly or not at all, so that it emits or costs least and keeps its deadline.

    Every interval it forecasts the signal and finds the cheapest way to do the steps that are left; the first part
    of it is done, and then found anew. Where the signal is not known ahead this weighs what it may turn out to be; see
    `_forecasts.py` and `_uncertain_schedule.py`. Pure: the time is an argument.

    Args:
        points: The speed and power of training at each setting, and of a pause if it may pause.
        signal: The intensity, or the price. Only what is known at a time is used; all of it if it is known ahead.
        deadline_seconds: When the steps must be done, in seconds since 1970 (Unix time).
        interval_seconds: The time between decisions, which fall on its multiples.

    Raises:
        UsageError: An argument is wrong.
    """

    def __init__(
        self,
        points: Sequence[TrainingPoint],
        signal: Signal,
        deadline_seconds: float,
        interval_seconds: float = 3600.0,
    ) -> None:
        self._hull = lower_hull(checked_points(points))
        self._signal = checked_signal("signal", signal)
        self._deadline_seconds = checked_number(
            "deadline_seconds", deadline_seconds, -math.inf, 2.2e11, "seconds since 1970"
        )
        self._interval_seconds = checked_number(
            "interval_seconds", interval_seconds, 60.0, _DAY_SECONDS, "seconds, from 60 to one day"
        )
        self._forecaster = Forecaster(self._signal, self._interval_seconds)
        self._present: TrainingPoint | None = None
        self.schedule: WorkSchedule = WorkSchedule((), 0.0, is_possible=True)
        """The schedule for the course that was expected at the last choice."""

    def use_points(self, points: Sequence[TrainingPoint]) -> None:
        """Decide by these points from now on, as more was measured.

        Raises:
            UsageError: They are wrong.
        """
        self._hull = lower_hull(checked_points(points))

    def use_deadline(self, deadline_seconds: float) -> None:
        """Decide for this deadline from now on. Raises `UsageError` for what is no time."""
        self._deadline_seconds = checked_time("deadline_seconds", deadline_seconds)

    def soonest_deadline_seconds(self, now_seconds: float, steps_left: float, budget: float) -> float | None:
        """Return the soonest deadline by which the steps can be done for an amount, as far as the forecast reaches.

        None if that needs more than 30 days. The cost grows as that of a choice, times the logarithm of the hours.

        Args:
            now_seconds: The time, in seconds since 1970.
            steps_left: The steps still to be done.
            budget: At most so many grams, or so much money.
        """
        steps = steps_left * (1 + _MARGIN_FRACTION)

        def is_enough(count: int) -> bool:
            edges = self._edges(now_seconds, self._after(now_seconds, count))
            schedule = cheapest_schedule(self._hull, _intervals(edges, self._forecaster.course(edges)), steps)
            return schedule.is_possible and schedule.amount <= budget

        longest = round(_LONGEST_DAYS * _DAY_SECONDS / self._interval_seconds)
        lowest, highest = 0, 1 + math.ceil(steps / self._hull[-1].steps_per_second / self._interval_seconds)
        while not is_enough(highest):  # from short to long: a schedule for weeks takes much longer to find
            lowest, highest = highest, 1 + highest * 5 // 4
            if highest > longest:
                return None
        while highest - lowest > 1:
            middle = (lowest + highest) // 2
            lowest, highest = (lowest, middle) if is_enough(middle) else (middle, highest)
        return self._after(now_seconds, highest)

    def _after(self, now_seconds: float, count: int) -> float:
        """Return the time so many intervals from now, with the reserve."""
        return now_seconds + (count + _RESERVE_FRACTION) * self._interval_seconds

    def next_decision_seconds(self, now_seconds: float) -> float:
        """Return the time of the next decision."""
        now_seconds = checked_time("now_seconds", now_seconds)
        return (math.floor(now_seconds / self._interval_seconds) + 1) * self._interval_seconds

    def choose(self, now_seconds: float, steps_left: float) -> TrainingPoint:
        """Return the point to be at until the next decision.

        If the deadline cannot be kept this is the quickest point, and `schedule.is_possible` is False.

        Args:
            now_seconds: The time, in seconds since 1970.
            steps_left: The steps still to be done.

        Raises:
            UsageError: One of them is no such number.
        """
        steps_left = checked_number("steps_left", steps_left, 0.0, math.inf, "a number of steps, at least 0")
        now_seconds = checked_time("now_seconds", now_seconds)
        steps = steps_left * (1 + _MARGIN_FRACTION)
        edges = self._edges(now_seconds, self._deadline_seconds)
        course = self._forecaster.course(edges)
        intervals = _intervals(edges, course)
        self.schedule = cheapest_schedule(self._hull, intervals, steps)
        if not self.schedule.is_possible:
            self._present = self._hull[-1]
        elif not course.deviation.any():
            self._present = self._quick_enough(self.schedule.steps_per_second[0])
        elif (unaware := self._unaware(intervals, course, steps)) is not None:
            self.schedule = unaware
            self._present = self._quick_enough(unaware.steps_per_second[0])
        else:
            costs = expected_costs(self._hull, np.diff(edges), course, steps)
            lowest = costs.min()
            cheapest = zip(self._hull, costs, strict=True)
            self._present = [point for point, cost in cheapest if cost - lowest <= _SAME * lowest][-1]
        return self._present

    def _unaware(self, intervals: Sequence[SignalInterval], course: SignalCourse, steps: float) -> WorkSchedule | None:
        """Return the schedule that follows no signal, if what following would gain is within its error; else None."""
        seconds = np.array([interval.seconds for interval in intervals])
        mean = float(np.average(course.mean, weights=seconds))
        unaware = cheapest_schedule(self._hull, [SignalInterval(each.seconds, mean) for each in intervals], steps)
        more_joules = seconds * (self._watts(unaware, len(seconds)) - self._watts(self.schedule, len(seconds)))
        departures, variance = more_joules * course.deviation, 0.0
        together = 0.0  # of an interval with all before it: the signal is a Markov chain
        for departure, persistence in zip(departures, course.persistence, strict=True):
            together *= float(persistence)
            variance += float(departure) * (float(departure) + 2 * together)
            together += float(departure)
        gain = float(more_joules @ course.mean)
        return unaware if gain < _SURE_DEVIATIONS * math.sqrt(max(variance, 0.0)) else None

    def _watts(self, schedule: WorkSchedule, count: int) -> npt.NDArray[np.float64]:
        """Return the mean power in each interval of a schedule, and 0 after its end."""
        speeds = [point.steps_per_second for point in self._hull]
        watts = np.interp(schedule.steps_per_second, speeds, [point.power_watts for point in self._hull])
        return np.concatenate((watts, np.zeros(count - len(watts))))

    def pause_until_seconds(self, now_seconds: float) -> float:
        """Return when the pause is to end that was just chosen, as far as the forecast reaches; now if none was."""
        until = now_seconds
        if self._present is None or self._present.steps_per_second > 0:
            return until
        for steps_per_second in self.schedule.steps_per_second:
            if steps_per_second > 0:
                break
            until = self.next_decision_seconds(until)
        return max(until, self.next_decision_seconds(now_seconds))

    def _edges(self, now_seconds: float, deadline_seconds: float) -> list[float]:
        """Return the edges of the intervals until a deadline, less the reserve; one if there are none."""
        end_seconds = deadline_seconds - _RESERVE_FRACTION * self._interval_seconds
        edges = [now_seconds]
        while edges[-1] < end_seconds:
            edges.append(min(self.next_decision_seconds(edges[-1]), end_seconds))
        return edges

    def _quick_enough(self, steps_per_second: float) -> TrainingPoint:
        """Return the slowest point of the hull with that speed: what it does too much now is not to be done later."""
        enough = (point for point in self._hull if point.steps_per_second >= steps_per_second * (1 - 1e-9))
        return next(enough, self._hull[-1])


def _intervals(edges: Sequence[float], course: SignalCourse) -> list[SignalInterval]:
    """Return the intervals between some edges, with the values that are expected."""
    return [
        SignalInterval(end - begin, float(value))
        for (begin, end), value in zip(pairwise(edges), course.mean, strict=True)
    ]
