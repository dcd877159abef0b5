"""The clocks of ranks against each other."""

import random
import time

import pytest

from zeus_core.ports.exchange import Exchange
from zeus_core.testing import ThreadWorld
from zeus_core.tracing.clocks import Meeting, compare_clocks, meet, point_at


class Clock:
    """A clock that is ahead of the true time, and drifts."""

    def __init__(self, ahead_seconds, drift):
        self.ahead_seconds, self.drift = ahead_seconds, drift

    def shows(self, true_seconds):
        return true_seconds + self.ahead_seconds + self.drift * true_seconds


def exchange_at(true_seconds, clock, clock_0, random_source):
    """Eight exchanges, in which each rank enters and leaves 20 us to 2 ms late, one in five far more so."""
    meetings = []
    for number in range(8):
        late = [random_source.uniform(2e-5, 2e-3) * (10 if random_source.random() < 0.2 else 0.2) for _ in range(4)]
        begin = true_seconds + 0.01 * number
        entries = begin + late[0], begin + late[1]
        exits = max(entries) + late[2], max(entries) + late[3]
        meetings.append(
            Meeting(clock.shows(entries[0]), clock.shows(exits[0]), clock_0.shows(entries[1]), clock_0.shows(exits[1]))
        )
    return meetings


@pytest.mark.parametrize("seed", range(30))
def test_offsets_of_50_ms_drifting_100_ppm_are_known_within_a_millisecond(seed):
    random_source = random.Random(seed)
    clock = Clock(random_source.uniform(-0.05, 0.05), random_source.uniform(-1e-4, 1e-4))
    clock_0 = Clock(0.0, 0.0)
    hour = [0.0, 1.0, 4.0, 60.0, 300.0, 900.0, 3600.0]
    points = [compare_clocks(exchange_at(at, clock, clock_0, random_source), clock.shows(at)) for at in hour]
    for at in range(0, 3600, 7):
        point = point_at(points, clock.shows(at))
        off = abs(point.ahead_seconds - (clock.shows(at) - at))
        assert off <= point.uncertainty_seconds
        assert off < 1e-3


def test_beyond_the_last_comparison_the_uncertainty_grows():
    points = [compare_clocks([Meeting(10.0, 10.001, 9.0, 9.001)], 10.0)]
    assert points[0].ahead_seconds == pytest.approx(1.0)
    assert points[0].uncertainty_seconds == pytest.approx(0.001)
    assert point_at(points, 1010.0).uncertainty_seconds == pytest.approx(0.101)
    assert point_at([], 10.0) is None


def test_clocks_that_were_set_between_the_meetings_are_uncertain():
    point = compare_clocks([Meeting(10.0, 10.001, 9.0, 9.001), Meeting(15.0, 15.001, 9.1, 9.101)], 15.0)
    assert point.uncertainty_seconds > 4.8


def test_real_ranks_meet():
    """Threads that are late by their own scheduling: the bound holds however busy the machine is."""
    clocks = [Clock(0.0, 0.0), Clock(0.05, 1e-4), Clock(-0.05, -1e-4)]

    def rank_main(world):
        exchange = Exchange(world)
        meetings = meet(lambda own: exchange.decide(lambda: own), lambda: clocks[world.rank].shows(time.monotonic()))
        return compare_clocks(meetings, 0.0), time.monotonic()

    for rank, (point, at) in enumerate(ThreadWorld.run(3, rank_main, timeout_seconds=60.0)):
        ahead = clocks[rank].shows(at) - at
        assert abs(point.ahead_seconds - ahead) <= point.uncertainty_seconds + 1e-4 * 60
        assert point.uncertainty_seconds < 60
