"""Virtual time, and what is done beside training in it."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_core.testing import VirtualBackground, VirtualTime


@pytest.fixture
def time_source():
    return VirtualTime(0.0)


def test_what_is_repeated_is_done_on_the_way_at_its_time(time_source):
    seen = []
    time_source.repeatedly(lambda: seen.append(time_source.now()), 0.25)
    time_source.advance(1.1)
    assert seen == [0.25, 0.5, 0.75, 1.0]
    assert time_source.now() == 1.1


@given(st.lists(st.floats(0.0, 0.5), max_size=10))
def test_in_whatever_portions_time_passes_the_same_is_done(portions):
    time_source, seen = VirtualTime(0.0), []
    time_source.repeatedly(lambda: seen.append(time_source.now()), 0.125)
    for seconds in portions:
        time_source.advance(seconds)
    assert seen == [0.125 * (place + 1) for place in range(len(seen))]
    assert len(seen) * 0.125 <= time_source.now() <= (len(seen) + 1) * 0.125


def test_several_actions_are_done_in_the_order_of_their_times(time_source):
    seen = []
    time_source.repeatedly(lambda: seen.append("slow"), 0.3)
    time_source.repeatedly(lambda: seen.append("fast"), 0.2)
    time_source.advance(0.7)
    assert seen[:3] == ["fast", "slow", "fast"]
    assert sorted(seen[3:]) == ["fast", "slow"], "at the same time"


def test_it_ends_when_stopped_and_a_second_stop_does_no_harm(time_source):
    seen = []
    first, second = (time_source.repeatedly(lambda: seen.append(1), 1.0) for _ in range(2))
    first()
    first()
    time_source.advance(1.5)
    assert seen == [1]
    second()
    time_source.advance(5.0)
    assert seen == [1]


def test_an_action_may_stop_itself(time_source):
    seen = []

    def once():
        seen.append(time_source.now())
        stop()

    stop = time_source.repeatedly(once, 1.0)
    time_source.advance(10.0)
    assert seen == [1.0]


def test_time_never_goes_back(time_source):
    time_source.advance(-1.0)
    assert time_source.now() == 0.0


def test_a_virtual_background_does_at_once_what_is_to_come_soon(time_source):
    seen = []
    background = VirtualBackground(time_source)
    background.soon(lambda: seen.append("soon"))
    assert seen == ["soon"]
    stop = background.repeatedly(lambda: seen.append("again"), 1.0)
    time_source.advance(2.5)
    stop()
    time_source.advance(2.5)
    assert seen == ["soon", "again", "again"]


def test_no_action_begins_in_one_thread_while_it_runs_in_another(time_source):
    """Two ranks in threads let time pass at once; a monitor's own thread would not overtake itself either."""
    running, seen = [], []

    def act():
        running.append(None)
        seen.append(len(running))
        time.sleep(0.002)
        running.pop()

    time_source.repeatedly(act, 0.1)
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(time_source.advance, 1.05) for _ in range(2)]:
            done.result()
    assert set(seen) == {1}


def test_an_action_may_let_time_pass(time_source):
    seen = []

    def act():
        seen.append(time_source.now())
        time_source.advance(2.5)

    time_source.repeatedly(act, 1.0)
    time_source.advance(1.5)
    assert seen[0] == 1.0
    assert time_source.now() == 3.5
