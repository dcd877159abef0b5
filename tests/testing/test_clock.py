"""Virtual time, and what is done beside training in it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_core.testing import VirtualBackground, VirtualClock


@pytest.fixture
def clock():
    return VirtualClock(0.0)


def test_what_is_repeated_is_done_on_the_way_at_its_time(clock):
    seen = []
    clock.repeatedly(lambda: seen.append(clock.now()), 0.25)
    clock.advance(1.1)
    assert seen == [0.25, 0.5, 0.75, 1.0]
    assert clock.now() == 1.1


@given(st.lists(st.floats(0.0, 0.5), max_size=10))
def test_in_whatever_portions_time_passes_the_same_is_done(portions):
    clock, seen = VirtualClock(0.0), []
    clock.repeatedly(lambda: seen.append(clock.now()), 0.125)
    for seconds in portions:
        clock.advance(seconds)
    assert seen == [0.125 * (place + 1) for place in range(len(seen))]
    assert len(seen) * 0.125 <= clock.now() <= (len(seen) + 1) * 0.125


def test_several_actions_are_done_in_the_order_of_their_times(clock):
    seen = []
    clock.repeatedly(lambda: seen.append("slow"), 0.3)
    clock.repeatedly(lambda: seen.append("fast"), 0.2)
    clock.advance(0.7)
    assert seen[:3] == ["fast", "slow", "fast"]
    assert sorted(seen[3:]) == ["fast", "slow"], "at the same time"


def test_it_ends_when_it_is_stopped_and_stopping_again_does_no_harm_to_its_twin(clock):
    seen = []
    first, second = (clock.repeatedly(lambda: seen.append(1), 1.0) for _ in range(2))
    first()
    first()
    clock.advance(1.5)
    assert seen == [1]
    second()
    clock.advance(5.0)
    assert seen == [1]


def test_an_action_may_stop_itself(clock):
    seen = []

    def once():
        seen.append(clock.now())
        stop()

    stop = clock.repeatedly(once, 1.0)
    clock.advance(10.0)
    assert seen == [1.0]


def test_time_never_goes_back(clock):
    clock.advance(-1.0)
    assert clock.now() == 0.0


def test_a_virtual_background_does_at_once_what_is_to_come_soon(clock):
    seen = []
    background = VirtualBackground(clock)
    background.soon(lambda: seen.append("soon"))
    assert seen == ["soon"]
    stop = background.repeatedly(lambda: seen.append("again"), 1.0)
    clock.advance(2.5)
    stop()
    clock.advance(2.5)
    assert seen == ["soon", "again", "again"]
