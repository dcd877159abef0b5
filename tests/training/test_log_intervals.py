"""Values logged for the interval since the previous log. Pure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_core.events import Activity
from zeus_core.measurement import DeviceEnergy
from zeus_core.training._log_intervals import LogIntervals
from zeus_core.training.account import Account
from zeus_core.training.activities.tally import Tally


def taken(seconds, joules, lost_seconds=0.0, samples=0, tokens=0):
    return Account(
        activities={Activity.STEPS: Tally(seconds, DeviceEnergy(joules), lost_seconds)}, samples=samples, tokens=tokens
    )


def test_long_intervals_are_what_was_measured():
    intervals = LogIntervals()
    assert intervals.next(taken(10.0, 3000.0, samples=100)) == {
        "energy_j": 3000.0,
        "power_w": 300.0,
        "energy_per_sample_j": 30.0,
    }
    assert intervals.next(taken(15.0, 5000.0, samples=150)) == {
        "energy_j": pytest.approx(2000.0),
        "power_w": 400.0,
        "energy_per_sample_j": pytest.approx(40.0),
    }


def test_tokens_take_the_place_of_samples():
    assert LogIntervals().next(taken(10.0, 3000.0, samples=100, tokens=6000))["energy_per_token_j"] == 0.5


@given(st.lists(st.floats(0.01, 0.3), min_size=40, max_size=200), st.floats(0.0, 0.1))
def test_short_intervals_are_smoothed(gaps_seconds, phase):
    """A constant 400 W whose counter steps by 40 J every 0.1 s."""
    intervals, now, logged = LogIntervals(), 0.0, []
    for seconds in gaps_seconds:
        now += seconds
        shown = ((now + phase) // 0.1) * 40.0
        logged.append((now, intervals.next(taken(now, shown))))
    settled = [values["power_w"] for at, values in logged if at > 3.0]
    assert all(power == pytest.approx(400.0, rel=0.051) for power in settled)
    assert all(values.get("energy_j", 1.0) > 0 for _, values in logged)


def test_what_is_known_a_log_later_is_logged_then():
    intervals = LogIntervals()
    intervals.next(taken(10.0, 3000.0))
    assert intervals.next(taken(20.0, 3000.0, lost_seconds=10.0)) == {}
    assert intervals.next(taken(30.0, 9000.0)) == {"energy_j": 6000.0, "power_w": 300.0}


def test_permanent_losses_are_excluded_and_what_follows_is_not():
    intervals = LogIntervals()
    intervals.next(taken(10.0, 3000.0))
    assert intervals.next(taken(20.0, 4000.0, lost_seconds=6.0)) == {}
    assert intervals.next(taken(30.0, 7000.0, lost_seconds=6.0)) == {"energy_j": 3000.0, "power_w": 300.0}
    assert intervals.next(taken(40.0, 11000.0, lost_seconds=6.0)) == {"energy_j": 4000.0, "power_w": 400.0}


def test_no_time_is_no_energy():
    intervals = LogIntervals()
    assert intervals.next(taken(0.0, 0.0)) == {}
    intervals.next(taken(10.0, 3000.0))
    assert intervals.next(taken(10.0, 3000.0)) == {}
    assert intervals.seen == taken(10.0, 3000.0)
