"""How the update period of a counter is found by watching it."""

import pytest

from zeus_core.device.nvml._energy_counter import watch_counter_period_seconds
from zeus_core.testing import VirtualTime


def watched_seconds(period_seconds, stalls=()):
    """The period of a counter of 300 W, found by a thread that does not run from each first to each second time."""
    time = VirtualTime()

    def read_counter_joules():
        for begin, end in stalls:
            if begin <= time.now() < end:
                time.advance(end - time.now())
        return 300.0 * period_seconds * (time.now() // period_seconds)

    time.advance(0.07)  # between two updates
    return watch_counter_period_seconds(read_counter_joules, time)


@pytest.mark.parametrize("period_seconds", [0.01, 0.02, 0.025, 0.05, 0.1, 0.2, 0.25])
def test_usual_periods_are_found(period_seconds):
    assert watched_seconds(period_seconds) == period_seconds


@pytest.mark.parametrize("stalls", [[(0.03, 0.065)], [(0.03, 0.065), (0.085, 0.13)], [(0.055, 0.061)]])
def test_updates_that_pass_between_two_polls_do_not_lengthen_the_period(stalls):
    assert watched_seconds(0.02, stalls) == 0.02


def test_an_unusual_period_is_taken_as_measured():
    assert watched_seconds(0.034) == pytest.approx(0.034, rel=0.05)


def test_a_counter_that_is_too_slow_has_no_period():
    assert watched_seconds(0.5) is None
