"""The start of a program that emits or costs least by the forecast."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_core.carbon.best_start import best_start
from zeus_core.electricity import ConstantSignal, RecordedSignal, WeeklyTariff
from zeus_core.electricity.signal import mean_value

NOW = 1_772_323_200.0 + 1000  # 2026-03-01 00:16:40 UTC
HOUR = 3600.0


@given(
    st.lists(st.floats(0, 500), min_size=12, max_size=30),
    st.floats(0.1, 6),
    st.floats(0, 10),
    st.sampled_from([300.0, 900.0, 3600.0]),
)
def test_no_start_of_a_published_signal_is_better(values, hours, slack, step):
    signal = RecordedSignal([NOW - 500 + step * number for number in range(len(values))], values, "g/kWh")
    duration = hours * step
    deadline = min(NOW + duration + slack * step, NOW - 500 + step * (len(values) + 1))
    best = best_start(signal, NOW, deadline, duration)
    latest = max(deadline - duration, NOW)

    def mean(start):
        return mean_value(signal.parts(start, start + duration))

    assert best.published_fraction == 1 or deadline - duration <= NOW
    assert NOW <= best.begin_seconds <= latest
    if best.published_fraction == 1:
        assert best.mean == pytest.approx(mean(best.begin_seconds), abs=1e-6)
        assert best.mean_now == pytest.approx(mean(NOW), abs=1e-6)
        assert best.mean <= min(mean(start) for start in np.linspace(NOW, latest, 50)) + 1e-6


def test_a_tariff_with_equal_nights_is_met_in_the_first():
    tariff = WeeklyTariff({"Mon-Sun 06:00-23:00": 0.3, "Mon-Sun 23:00-06:00": 0.1}, "EUR/kWh", "Europe/Berlin")
    noon = NOW - 1000 + 11 * HOUR
    best = best_start(tariff, noon, noon + 60 * HOUR, 3 * HOUR)
    assert best.begin_seconds == noon + 11 * HOUR
    assert (best.mean, best.mean_now) == (pytest.approx(0.1), pytest.approx(0.3))


def test_without_a_better_start_or_time_it_starts_at_once():
    constant = ConstantSignal(300, "g/kWh")
    assert best_start(constant, NOW, NOW + 20 * HOUR, 3 * HOUR).begin_seconds == NOW
    late = best_start(constant, NOW, NOW + HOUR, 3 * HOUR)
    assert (late.begin_seconds, late.mean) == (NOW, 300)


@pytest.mark.parametrize("known_hours", [0, 8])
def test_the_time_that_nobody_has_published_is_forecast(known_hours):
    times = [NOW - 1000 + HOUR * hour for hour in range(-24 * 14, known_hours + 1)]
    values = [300 + 100 * math.cos(math.tau * (hour - 19) / 24) for hour in range(-24 * 14, known_hours + 1)]
    best = best_start(RecordedSignal(times, values, "g/kWh"), NOW, NOW + 22 * HOUR, 3 * HOUR)
    assert best.begin_seconds == pytest.approx(NOW - 1000 + 5.5 * HOUR, abs=HOUR)
    assert best.published_fraction == pytest.approx((known_hours + 2) / 22, abs=0.02)
    assert best.mean == pytest.approx(201, abs=10)


def test_a_file_without_a_past_says_nothing_and_starts_at_once():
    signal = RecordedSignal([NOW - 1e8, NOW - 1e8 + HOUR], [100, 300], "g/kWh")
    best = best_start(signal, NOW, NOW + 22 * HOUR, 3 * HOUR)
    assert (best.begin_seconds, best.published_fraction) == (NOW, 0)
