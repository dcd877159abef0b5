"""The cheapest schedule of a work, against a linear program."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from zeus_core.carbon._carbon_schedule import SignalInterval, WorkSchedule, cheapest_schedule
from zeus_core.carbon.operating_points import TrainingPoint, checked_points, lower_hull

HOUR = 3600.0
POINTS = [TrainingPoint(300, 1.0, 300.0), TrainingPoint(200, 0.9, 205.0), TrainingPoint(100, 0.5, 110.0)]
PAUSE = TrainingPoint.pause(30.0)

speeds_and_watts = st.tuples(st.floats(0.1, 5.0), st.floats(50.0, 500.0))
some_points = st.lists(speeds_and_watts, min_size=1, max_size=6).map(
    lambda pairs: [TrainingPoint(100 + number, *pair) for number, pair in enumerate(pairs)]
)
some_intervals = st.lists(st.tuples(st.floats(60, 4000), st.floats(0, 900)), min_size=1, max_size=10).map(
    lambda pairs: [SignalInterval(*pair) for pair in pairs]
)


def cheapest_by_linear_program(points: list[TrainingPoint], intervals: list[SignalInterval], steps: float) -> float:
    """The least amount over all ends at the end of an interval, in any mix of points; infinite if there is none."""
    best = math.inf
    for count in range(1, len(intervals) + 1):
        used = intervals[:count]
        costs = [interval.value * point.power_watts / 3.6e6 for interval in used for point in points]
        speeds = [point.steps_per_second for _ in used for point in points]
        shares = np.kron(np.eye(count), np.ones(len(points)))
        result = linprog(
            costs, A_eq=[*shares, speeds], b_eq=[*(interval.seconds for interval in used), steps], method="highs"
        )
        best = min(best, result.fun if result.success else math.inf)
    return best


@given(some_points, st.none() | st.floats(0.0, 60.0), some_intervals, st.floats(0.01, 1.0))
def test_it_is_the_optimum(
    points: list[TrainingPoint], idle_watts: float | None, intervals: list[SignalInterval], share: float
) -> None:
    if idle_watts is not None:
        points = [*points, TrainingPoint.pause(idle_watts)]
    most = max(point.steps_per_second for point in points) * sum(interval.seconds for interval in intervals)
    schedule = cheapest_schedule(points, intervals, share * most)
    assert schedule.is_possible
    wanted = cheapest_by_linear_program(points, intervals, share * most)
    if math.isfinite(wanted):  # else, the slowest point does more than is wanted until any end
        assert schedule.amount <= wanted * (1 + 1e-6) + 1e-9
    done = sum(speed * interval.seconds for speed, interval in zip(schedule.steps_per_second, intervals, strict=False))
    assert done >= share * most * (1 - 1e-9)


def test_equal_prices_do_the_work_first() -> None:
    schedule = cheapest_schedule([*POINTS, PAUSE], [SignalInterval(HOUR, 400.0)] * 10, 5 * HOUR)
    assert list(schedule.steps_per_second) == sorted(schedule.steps_per_second, reverse=True)


def test_work_is_where_electricity_is_clean() -> None:
    intervals = [SignalInterval(HOUR, 500.0), SignalInterval(HOUR, 100.0), SignalInterval(HOUR, 500.0)]
    schedule = cheapest_schedule([*POINTS, PAUSE], intervals, 0.9 * HOUR)
    assert schedule.steps_per_second == pytest.approx((0.0, 0.9))


def test_what_cannot_be_done_in_time_is_done_as_quickly_as_possible() -> None:
    schedule = cheapest_schedule(POINTS, [SignalInterval(HOUR, 400.0)], 1.01 * HOUR)
    assert schedule == WorkSchedule((1.0,), math.inf, is_possible=False)
    assert not cheapest_schedule(POINTS, [], 1.0).is_possible


def test_negative_prices_are_no_reason_to_waste() -> None:
    schedule = cheapest_schedule([*POINTS, PAUSE], [SignalInterval(HOUR, -10.0), SignalInterval(HOUR, 400.0)], HOUR)
    assert schedule.steps_per_second[0] == pytest.approx(1.0)
    assert schedule.amount == 0


def test_points_that_no_schedule_needs_are_left_out() -> None:
    wasteful, slow = TrainingPoint(250, 0.9, 290.0), TrainingPoint(90, 0.4, 150.0)
    assert lower_hull([*POINTS, wasteful, slow, PAUSE]) == [PAUSE, *reversed(POINTS)]
    assert lower_hull([POINTS[0]]) == [POINTS[0]]


@pytest.mark.parametrize(
    "points",
    [
        [],
        [PAUSE],
        [TrainingPoint(300, -1.0, 200.0)],
        [TrainingPoint(300, 1.0, math.nan)],
    ],
)
def test_bad_points(points: list[TrainingPoint]) -> None:
    with pytest.raises(ValueError, match="points"):
        checked_points(points)
