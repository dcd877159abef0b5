"""Forecasts of a signal: the day, the weather at its own scale, gaps, and a forecast that its source publishes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from zeus_core.carbon._controller import WorkController
from zeus_core.carbon._forecasts import Forecaster, SignalCourse, SignalModel
from zeus_core.carbon._signal_replay import best_mixture, replay
from zeus_core.carbon._uncertain_schedule import expected_costs
from zeus_core.carbon.operating_points import TrainingPoint
from zeus_core.carbon.outlook import foresight
from zeus_core.electricity import RecordedSignal

HOUR = 3600.0
BEGIN = 1_772_323_200.0
PAST, LATER = 24 * 21, 24 * 8  # hours
HOURS = np.arange(-PAST, LATER)
POINTS = [TrainingPoint(300, 1.0, 290.0), TrainingPoint(200, 0.88, 200.0), TrainingPoint.pause(25.0)]


def recorded(values: np.ndarray, missing: range = range(0), forecast: np.ndarray | None = None) -> RecordedSignal:
    """A signal that is known except for some hours from the begin."""
    known = [number for number, hour in enumerate(HOURS) if hour not in missing]
    times = [BEGIN + HOUR * float(hour) for hour in HOURS]
    published = None if forecast is None else RecordedSignal(times, list(forecast), "g/kWh")
    some = [times[number] for number in known], [float(values[number]) for number in known]
    return RecordedSignal(*some, "g/kWh", forecast=published, forecast_hours=72)


def swinging(period_hours: float, seed: int = 0) -> np.ndarray:
    randomness = np.random.default_rng(seed)
    turn = math.tau * (HOURS / period_hours + randomness.random())
    return 400 * (1 + 0.4 * np.sin(turn) + 0.03 * randomness.normal(size=len(HOURS)))


def forgetting(memory_hours: float, seed: int = 0) -> np.ndarray:
    left, course = math.exp(-1 / memory_hours), [0.0]
    for force in np.random.default_rng(seed).normal(size=len(HOURS) - 1):
        course.append(left * course[-1] + math.sqrt(1 - left**2) * force)
    return 400 + 100 * np.array(course)


def course_of(signal: RecordedSignal, hours: int = 72, hour: int = 0) -> SignalCourse:
    return Forecaster(signal, HOUR).course([BEGIN + HOUR * (hour + number) for number in range(hours + 1)])


@pytest.mark.parametrize("period_hours", [24.0, 60.0, 110.0])
def test_days_and_swings_of_weather_are_continued(period_hours: float) -> None:
    values = swinging(period_hours)
    errors = course_of(recorded(values)).mean - values[PAST : PAST + 72]
    assert np.sqrt(np.mean(errors**2)) < 45, "where the signal departs by 113 from its mean"


def test_its_own_error_is_known() -> None:
    """Of many forecasts a day ahead of a random course, two thirds are within one standard deviation."""
    within = []
    for seed in range(8):
        values = forgetting(24.0, seed)
        for hour in range(0, 96, 24):
            course = course_of(recorded(values), 24, hour)
            within.append(abs(course.mean[23] - values[PAST + hour + 23]) < course.deviation[23])
    assert 0.5 < np.mean(within) < 0.85


def test_noise_is_no_weather() -> None:
    course = course_of(recorded(400 + np.random.default_rng(1).normal(size=len(HOURS))))
    assert course.mean[2:].std() < 0.35


def test_across_a_gap_a_swing_goes_on() -> None:
    values = swinging(80.0)
    course = course_of(recorded(values, missing=range(14)), 48, hour=13)
    assert np.abs(course.mean - values[PAST + 13 : PAST + 61]).max() < 80
    assert course.deviation[0] > 0, "nothing is known of the present"


def test_a_forecast_of_the_source_is_used_as_far_as_it_was_right() -> None:
    values = forgetting(12.0, 3)
    late = slice(PAST + 24, PAST + 48)
    good = course_of(recorded(values, forecast=values + 5))
    noise = 300 * np.random.default_rng(4).normal(size=len(values))
    bad, none = course_of(recorded(values, forecast=np.maximum(values + noise, 1))), course_of(recorded(values))
    assert np.abs(good.mean[24:48] - values[late]).max() < 20
    worse, usual = (np.sqrt(np.mean((course.mean - values[PAST : PAST + 72]) ** 2)) for course in (bad, none))
    assert worse < 1.2 * usual


def test_nothing_of_the_future_is_used() -> None:
    values = forgetting(24.0)
    other = np.where(HOURS > 5, values + 500, values)
    signals = [recorded(some, forecast=np.where(HOURS > 5 + 72, some, values)) for some in (values, other)]
    first, second = (course_of(signal, 48, hour=5).mean for signal in signals)
    assert first == pytest.approx(second)


def test_a_constant_and_a_short_history() -> None:
    assert not course_of(recorded(np.full(len(HOURS), 400.0))).deviation.any()
    short = RecordedSignal([BEGIN - HOUR, BEGIN], [300, 500], "g/kWh")
    assert np.isfinite(course_of(short).mean).all()
    assert SignalModel.of(np.full(100, np.nan), 3.0) == SignalModel()


def test_what_is_certain_costs_what_a_schedule_costs() -> None:
    course = SignalCourse.certain(np.array([500.0, 100.0, 500.0]))
    costs = expected_costs(
        sorted(POINTS, key=lambda point: point.steps_per_second), np.full(3, HOUR), course, 0.88 * HOUR
    )
    assert costs[0] == pytest.approx(HOUR * (500 * 25 + 100 * 200)), "a pause, and then the slow point"
    assert costs[0] == costs.min()
    assert np.isinf(expected_costs(POINTS[:1], np.full(1, HOUR), SignalCourse.certain(np.array([1.0])), 2 * HOUR)).all()


def test_who_may_wait_for_better_values_does_so() -> None:
    """The mean of the next hour is the present value, and yet to wait is right: it may be low, or one works later."""
    likely = SignalCourse(np.full(12, 400.0), np.array([0.0] + [200.0] * 11), np.zeros(12))
    certain = SignalCourse.certain(np.full(12, 400.0))
    hull = [POINTS[2], POINTS[0]]
    waits = [expected_costs(hull, np.full(12, HOUR), course, 2 * HOUR).argmin() == 0 for course in (likely, certain)]
    assert waits == [True, False]


@pytest.mark.parametrize(("period_hours", "seed", "missing"), [(60.0, 1, 0), (90.0, 2, 0), (75.0, 3, 14)])
def test_on_wind_that_swings_it_gains_most_of_foresight(period_hours: float, seed: int, missing: int) -> None:
    signal = recorded(swinging(period_hours, seed))
    known = recorded(swinging(period_hours, seed), range(5, 5 + missing))
    steps, deadline = 40 * HOUR, BEGIN + 80 * HOUR
    ours = replay(WorkController(POINTS, known, deadline).choose, signal, BEGIN, steps)
    assert ours.end_seconds <= deadline
    mixture = best_mixture(POINTS, signal, BEGIN, steps, ours.end_seconds).replayed.amount
    best = foresight(POINTS, signal, BEGIN, steps, deadline).amount
    assert mixture - ours.amount >= (0.65 if missing else 0.8) * (mixture - best) > 0
