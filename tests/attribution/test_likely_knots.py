"""When an energy counter stepped, from when it was seen to."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_core.attribution.updates import Knot, likely_knots


def seen(times, late_seconds, seed=0):
    """Steps as they are seen by calls that take a while: somewhere within what is known of each."""
    late = random.Random(seed)
    for number, time in enumerate(times):
        width = late.uniform(0.2, 1.0) * late_seconds
        yield Knot(time + late.uniform(-width, width), width, 10.0 * number)


def errors(steps, times):
    return [abs(step.at - time) for step, time in zip(steps, times, strict=True)]


@pytest.mark.parametrize("late_seconds", [0.001, 0.01, 0.03])
@pytest.mark.parametrize("seed", range(5))
def test_regular_steps_are_known_much_better_than_they_are_seen(late_seconds, seed):
    times = [5.0 + 0.1 * number for number in range(60) if number % 13]  # and some are not seen
    steps = list(seen(times, late_seconds, seed))
    likely = likely_knots(steps)
    assert sum(errors(likely, times)) < 0.4 * sum(errors(steps, times))
    assert max(errors(likely, times)) < 0.6 * late_seconds
    assert [update.energy_joules for update in likely] == [update.energy_joules for update in steps]
    assert all(
        estimate.half_width_seconds < 0.6 * step.half_width_seconds
        for estimate, step in zip(likely, steps, strict=True)
    )


@pytest.mark.parametrize("seed", range(5))
def test_of_irregular_steps_what_was_seen_is_believed(seed):
    jitter = random.Random(seed)
    times = [5.0 + 0.1 * number + jitter.uniform(-0.03, 0.03) for number in range(60)]
    steps = list(seen(times, 0.001, seed))
    likely = likely_knots(steps)
    assert errors(likely, [update.at for update in steps]) == pytest.approx([0.0] * 60, abs=1e-4)


def test_sums_of_our_own_are_left_alone():
    steps = [Knot(0.001 * number**1.01, 0.0, 1.0 * number) for number in range(50)]
    assert [update.at for update in likely_knots(steps)] == pytest.approx([update.at for update in steps], abs=1e-12)


@given(st.lists(st.tuples(st.floats(0.001, 5.0), st.floats(0.0, 0.0005)), max_size=40))
def test_no_estimate_of_an_update_leaves_its_interval(gaps):
    at, steps = 1000.0, []
    for gap, width in gaps:
        at += gap
        steps.append(Knot(at, width, at))
    likely = likely_knots(steps)
    assert len(likely) == len(steps)
    for estimate, step in zip(likely, steps, strict=True):
        assert abs(estimate.at - step.at) <= step.half_width_seconds + 1e-9
        assert 0 <= estimate.half_width_seconds <= step.half_width_seconds
    assert all(after.at >= before.at for before, after in pairwise(likely))
