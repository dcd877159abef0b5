"""How long the iterations of each pipeline may take, while some are slow."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_core.pipeline.optimizer._watches import MIN_WAIT_FRACTION, PipelineTimes, StragglerWatch

seconds = st.floats(0.1, 10.0)
slowdowns = st.one_of(st.just(1.0), st.floats(1.0, 3.0))


def iterations(pipelines):
    """Iterations of pipelines that follow their plans, but for being slowed: (quickest, planned over it, slowdown)."""
    one = st.tuples(seconds, st.floats(1.0, 2.0), slowdowns).map(
        lambda drawn: PipelineTimes(drawn[0] * drawn[1] * drawn[2], drawn[0] * drawn[1], drawn[0])
    )
    return st.lists(st.lists(one, min_size=pipelines, max_size=pipelines), min_size=1, max_size=12)


histories = st.integers(1, 4).flatmap(iterations)


def at(measured, planned=1.0, quickest=1.0):
    return PipelineTimes(measured, planned, quickest)


@given(histories, st.one_of(st.none(), seconds))
def test_no_pipeline_ever_keeps_the_others_waiting(history, announced_seconds):
    watch = StragglerWatch()
    for times in history:
        allowed = watch.allow(times, announced_seconds)
        own = [measured.usual_seconds * measured.slowdown_factor for measured in times]
        longest = max(*own, announced_seconds or 0.0)
        for seconds, measured in zip(allowed, times, strict=True):
            assert seconds >= measured.usual_seconds
            assert seconds * measured.slowdown_factor <= longest * (1 + 1e-9)


@given(histories)
def test_the_straggler_itself_hurries(history):
    watch = StragglerWatch()
    for times in history:
        allowed = watch.allow(times)
        slowest = max(range(len(times)), key=lambda place: times[place].usual_seconds * times[place].slowdown_factor)
        assert allowed[slowest] == times[slowest].usual_seconds


@given(st.lists(st.booleans(), min_size=1, max_size=20))
def test_time_is_granted_after_three_slow_iterations_and_withdrawn_at_once(is_slow):
    watch = StragglerWatch()
    for place, slow in enumerate(is_slow):
        allowed = watch.allow([at(1.0), at(1.5 if slow else 1.0)])
        in_a_row = is_slow[max(place - 2, 0) : place + 1]
        assert allowed == [1.5 if len(in_a_row) == 3 and all(in_a_row) else 1.0, 1.0]


def test_time_is_expected_after_two_slow_iterations_so_that_plans_are_ready():
    watch = StragglerWatch()
    expected = [(watch.allow([at(1.0), at(slow)]), watch.expected_seconds)[1] for slow in (1.0, 1.5, 1.4, 1.0)]
    assert expected == [[1.0, 1.0], [1.0, 1.0], [1.4, 1.0], [1.0, 1.0]]


def test_the_shortest_wait_of_the_last_iterations_is_granted():
    watch = StragglerWatch()
    for slow in (1.6, 1.4, 1.5):
        allowed = watch.allow([at(1.0), at(slow)])
    assert allowed == [1.4, 1.0]


def test_a_pipeline_that_takes_the_time_it_was_granted_is_not_slowed():
    watch = StragglerWatch()
    for _ in range(5):
        allowed = watch.allow([at(1.5, planned=1.5), at(1.5)])
    assert allowed == [1.5, 1.0]


def test_a_pipeline_that_is_slowed_too_is_granted_less():
    watch = StragglerWatch()
    for _ in range(3):
        allowed = watch.allow([at(1.2), at(1.8)])
    assert allowed == [pytest.approx(1.5), 1.0]


def test_a_difference_within_noise_is_none():
    watch = StragglerWatch()
    for _ in range(5):
        assert watch.allow([at(1.0), at(1.01)]) == [1.0, 1.0]


def test_what_is_announced_is_granted_at_once_and_ends_at_once():
    watch = StragglerWatch()
    assert watch.allow([at(1.0), at(1.25)], 2.0) == [2.0, pytest.approx(1.6)]
    assert watch.allow([at(1.0), at(1.25)]) == [1.0, 1.0]


@pytest.mark.parametrize("pipelines", [1, 2, 4, 8])
def test_pipelines_that_scatter_are_left_alone(pipelines):
    watch, noise = StragglerWatch(), random.Random(pipelines)
    for _ in range(2000):
        times = [at(noise.gauss(1.0, 0.005)) for _ in range(pipelines)]
        assert max(watch.allow(times)) <= 1.0 + MIN_WAIT_FRACTION


def test_a_pipeline_whose_profile_was_slowed_is_known_to_have_recovered():
    watch = StragglerWatch()
    for _ in range(5):
        slow = watch.allow([at(1.2, planned=1.2), at(1.2, planned=1.2, quickest=1.2)])
    assert slow == [pytest.approx(1.2), 1.2]
    for _ in range(3):
        allowed = watch.allow([at(1.2, planned=1.2), at(1.0, planned=1.2, quickest=1.2)])
    assert allowed == [1.0, 1.2]
