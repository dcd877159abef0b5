"""The moments at which a counter is updated, found from few reads of it."""

import bisect
import itertools
import math
import random

import pytest

from tests.support.variants import long_but_first
from zeus_core.attribution.updates import CounterUpdates

SECONDS = 12.0
SEEDS = 8
JOULES = 10.0  # of each update


class Counter:
    """A counter that is updated with a period and jitter of its own, and whose calls take a while."""

    def __init__(self, seed, nominal_seconds, jitter, call_seconds):
        self.random = random.Random(seed)
        period = nominal_seconds * self.random.uniform(0.98, 1.02)
        phase = self.random.uniform(0, period)
        self.updates = [
            phase + (number + jitter * self.random.uniform(-1, 1)) * period
            for number in range(-2, int(SECONDS / period) + 3)
        ]
        self.call_seconds = call_seconds

    def value_at(self, moment):
        return JOULES * bisect.bisect_right(self.updates, moment)

    def read(self, begin):
        """When a call ends, and what it tells."""
        before, after = (self.call_seconds * self.random.uniform(0.1, 0.5) for _ in range(2))
        return begin + before + after, self.value_at(begin + before)


def follow(counter, nominal_seconds, seed, edges=()):
    """Follow the counter, with edges of parts at some moments.

    Returns:
        The knots, the number of reads, and the time without a known phase.
    """
    phase = CounterUpdates(nominal_seconds, 15.0, seed)
    now, reads, unknown_seconds, knots = 0.05, 0, 0.0, []
    while now < SECONDS:
        end, joules = counter.read(now)
        phase.add(now, end, joules)
        reads += 1
        knots += phase.knots_before(end - 0.6)
        phase.plan_read(end, 1)
        begin, now = now, end
        while True:  # also at each edge
            following = min((edge for edge in edges if edge > now), default=math.inf)
            read_at = phase.next_read_at(now, max((edge for edge in edges if edge <= now), default=-math.inf))
            if read_at <= now:
                break
            now = min(read_at + 2e-4 * counter.random.random(), following)
        if not phase.is_known and begin > 2.0:
            unknown_seconds += now - begin
    return knots, reads, unknown_seconds


@pytest.mark.parametrize(
    ("nominal_seconds", "jitter", "call_seconds"),
    long_but_first(
        [
            (0.1, 0.01, 2e-3),
            (0.02, 0.01, 1e-5),
            *((0.1, jitter, seconds) for jitter, seconds in ((0.0, 1e-5), (0.0, 2e-3), (0.01, 1e-5))),
            *((0.02, jitter, seconds) for jitter, seconds in ((0.0, 1e-5), (0.0, 2e-3), (0.01, 2e-3))),
        ],
        2,
    ),
)
def test_the_phase_is_found_and_kept(nominal_seconds, jitter, call_seconds):
    """The updates of 20 ms were unknown for half of the time before reads were kept in step with them."""
    inside, widths, unknown_seconds = [], [], 0.0
    for seed in range(SEEDS):
        counter = Counter(seed, nominal_seconds, jitter, call_seconds)
        knots, reads, unknown = follow(counter, nominal_seconds, seed)
        assert reads <= 18 * SECONDS + 40
        unknown_seconds += unknown
        for knot in knots:
            if knot.at > 3.0:
                off = abs(knot.at - counter.updates[round(knot.energy_joules / JOULES) - 1])
                inside.append(off <= knot.half_width_seconds + 1e-9)
                widths.append(knot.half_width_seconds)
    assert unknown_seconds <= 0.1 * SEEDS * SECONDS
    # Where only some updates can be read, a part of the reads is kept for the edges of parts.
    assert len(inside) >= (8 if nominal_seconds == 0.1 else 5) * SEEDS * (SECONDS - 4)
    assert sum(inside) >= 0.9 * len(inside)
    assert sorted(widths)[len(widths) // 2] <= 0.1 * nominal_seconds


def test_the_energy_is_read_within_one_update_before_and_after_an_edge():
    """A part of two updates has power of its own only if some reads are kept for its edges."""
    is_near = []
    for seed in range(SEEDS):
        counter = Counter(seed, 0.02, 0.005, 1e-4)
        edges = [3.0 + 0.4 * number + counter.random.uniform(0, 0.2) for number in range(20)]
        knots, _, _ = follow(counter, 0.02, seed, edges)
        moments = [knot.at for knot in knots]
        for edge in edges:
            after = bisect.bisect_right(moments, edge)
            is_near.append(moments[after] - moments[after - 1] <= 1.2 * 0.02)
    assert sum(is_near) >= 0.85 * len(is_near)


@pytest.mark.parametrize("call_seconds", long_but_first([2e-3, 1e-5]))
def test_every_half_second_has_a_knot_even_where_the_phase_is_lost(call_seconds):
    """Before values of an unclear update made knots too, more than two seconds passed."""
    for seed in range(SEEDS):
        counter = Counter(seed, 0.02, 0.02, call_seconds)
        counter.updates = [at + 0.004 * math.sin(at) for at in counter.updates]  # drifts faster than a grid follows
        knots, _, _ = follow(counter, 0.02, seed)
        gaps = [second.at - first.at for first, second in itertools.pairwise(knots)]
        assert max(gaps) <= 0.5
        assert knots[-1].at >= SECONDS - 1.2


def test_a_counter_that_begins_again_makes_no_knot_until_an_update():
    phase = CounterUpdates(0.1, 15.0)
    values = [(0.0, 1.0), (0.03, 2.0), (0.05, 2.0), (0.09, 0.0), (0.13, 3.0), (0.15, 3.0), (0.23, 4.0)]
    for at, joules in values:
        phase.add(at, at + 1e-4, joules)
    knots = phase.knots_before(1.0)
    assert [knot.energy_joules for knot in knots] == [1.0, 2.0, 4.0]
    assert all(first.at < second.at for first, second in itertools.pairwise(knots))


def test_a_restarted_counter_makes_a_knot_of_the_first_update_it_shows():
    """Before its first two values were passed over: a quarter of a second that was not counted, of updates of 20 ms."""
    phase = CounterUpdates(0.1, 15.0)
    for at, joules in [(0.0, 41.0), (0.1, 42.0), (0.2, 43.0), (0.3, 1.0), (0.4, 2.0)]:
        phase.add(at, at + 1e-4, joules)
    assert [knot.energy_joules for knot in phase.knots_before(1.0)] == [41.0, 42.0, 43.0, 1.0, 2.0]


@pytest.mark.parametrize("nonsense_joules", [0.0, 5.0])
def test_nonsense_makes_no_knot_of_what_was_known_before(nonsense_joules):
    phase = CounterUpdates(0.1, 15.0)
    for at, joules in [(0.0, 41.0), (0.1, 42.0), (0.13, nonsense_joules), (0.16, 42.0), (0.2, 43.0), (0.3, 44.0)]:
        phase.add(at, at + 1e-4, joules)
    told = [knot.energy_joules for knot in phase.knots_before(1.0) if knot.energy_joules != nonsense_joules]
    assert told == [41.0, 42.0, 43.0, 44.0]


def test_the_last_value_makes_a_knot_though_its_update_is_uncertain():
    """Before it was dropped, and up to 0.2 s at the end were estimated, as if one update could hide no more."""
    phase, counter = CounterUpdates(0.02, 15.0), Counter(0, 0.02, 0.005, 1e-4)
    for update in counter.updates[3:60]:
        for begin in (update - 0.001, update + 0.001):
            phase.add(begin, begin + 1e-4, counter.value_at(begin))
    begin = counter.updates[65] - 5e-5
    phase.add(begin, begin + 1e-4, counter.value_at(begin))
    last = phase.knots_before(math.inf)[-1]
    assert last.energy_joules == counter.value_at(begin)
    assert abs(last.at - counter.updates[64]) <= last.half_width_seconds
