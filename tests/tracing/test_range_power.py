"""The power of ranges whose durations, or energies, differ from one time to the next."""

import random

import pytest

from tests.support.profiled import Profiled, steady
from tests.support.variants import long_but_first


def as_long_as_needed(choose, seconds, watts):
    """Five times as long, with five times the energy."""
    return [(0.4 * seconds * choose.uniform(1, 5), watts)]


def slower_all_through(choose, seconds, watts):
    """Five times as long, with the same energy, as far as the GPU can draw so little."""
    share = choose.uniform(1, 5)
    return [(0.4 * seconds * share, max(watts / share, 70.0))]


def resting_at_the_end(choose, seconds, watts):
    """The same work, and then a rest of up to four times as long, as on a busy machine."""
    return [(0.4 * seconds, watts), (0.4 * seconds * choose.choice([0, 0, 1, 4]) * choose.random(), None)]


def resting_at_the_beginning(choose, seconds, watts):
    return resting_at_the_end(choose, seconds, watts)[::-1]


def resting_inside(choose, seconds, watts):
    (work, _), (rest, _) = resting_at_the_end(choose, seconds, watts)
    share = choose.random()
    return [(work * share, watts), (rest, None), (work * (1 - share), watts)]


def rarely_held_up(choose, seconds, watts):
    return [(seconds, watts), (0.3 * choose.random() if choose.random() < 0.1 else 0.001, None)]


def hardly_held_up(choose, seconds, watts):
    return [(seconds, watts), (0.03 * seconds * choose.expovariate(1.0), None)]


def of_any_energy(choose, seconds, watts):
    """As long each time, with an energy that differs by five times."""
    return [(seconds * choose.gauss(1.0, 0.02), watts * choose.uniform(0.2, 1.0))]


# By way, the most that the median interval may be off, over the truth.
WAYS = {
    resting_at_the_end: 0.07,
    slower_all_through: 0.3,
    as_long_as_needed: 0.05,
    resting_at_the_beginning: 0.07,
    resting_inside: 0.25,
    rarely_held_up: 0.05,
    hardly_held_up: 0.05,
    of_any_energy: 1.25,
    steady: 0.05,
}
FEW = [(way, 2, most) for way, most in WAYS.items()][:3]
MANY = [(way, 5, most) for way, most in WAYS.items()]


def widths_and_truths(folder, seed, pieces):
    """Return, by range, how wide the interval is over the truth, and whether the truth is inside."""
    choose = random.Random(seed)
    parts = {
        f"range {number}": (choose.uniform(0.02, 0.08), choose.uniform(150.0, 380.0))
        for number in range(choose.randint(2, 4))
    }
    profiled = Profiled(folder, parts, seed=seed, pieces=pieces)
    for row in profiled.added().rows:
        truth = profiled.truth[row.name]
        if row.name in parts:
            yield row.uncertainty_joules / truth, abs(row.energy_joules - truth) <= row.uncertainty_joules


@pytest.mark.parametrize(("pieces", "seeds", "most"), long_but_first([*FEW, *MANY], 3))
def test_19_of_20_truths_are_inside_however_durations_and_energies_differ(tmp_path, pieces, seeds, most):
    rows = [row for seed in range(seeds) for row in widths_and_truths(tmp_path / str(seed), seed, pieces)]
    assert sum(is_inside for _, is_inside in rows) >= 0.95 * len(rows)
    widths = sorted(width for width, _ in rows)
    assert widths[len(widths) // 2] <= most
