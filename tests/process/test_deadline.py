"""One second for all that a hook waits for, counted by what it asks a lock for: nothing here waits itself."""

import os
import threading
from types import SimpleNamespace

import pytest

from tests.support.hooks import in_hook
from zeus_core.adapters import contained
from zeus_core.adapters.contained import Hooked
from zeus_core.errors import DriverFaultError
from zeus_core.process.deadline import (
    CALL_SECONDS,
    HOOK_SECONDS,
    RESTORE_SECONDS,
    Patience,
    held,
    outside_of_hooks,
    seconds_left,
    unanswered,
)
from zeus_core.process.parallel import DeviceCall

SLICE = 0.05


class Hanging:
    """A lock that nobody releases."""

    def __init__(self):
        self.asked_seconds = 0.0

    def acquire(self, blocking=True, timeout=-1):
        self.asked_seconds += timeout
        return False


def waited(seconds=CALL_SECONDS, restores=False, until_seconds=RESTORE_SECONDS):
    """How long one more wait for a driver that hangs takes."""
    lock = Hanging()
    assert not Patience(seconds, restores).acquire(lock, until_seconds)
    return pytest.approx(lock.asked_seconds)


class Feature(Hooked):
    """Its hooks do something, and call each other."""

    def __init__(self):
        self.waits = []

    @contained
    def contained_hook(self, action):
        action()

    @contained(is_hook=True)
    def timed_hook(self, action):
        action()


@pytest.fixture
def hanging_call():
    call = DeviceCall(lambda: None)
    yield call
    unanswered.discard(call._running)


def test_a_call_outside_of_hooks_has_its_own_deadline():
    assert [waited() for _ in range(3)] == [CALL_SECONDS] * 3
    assert waited(RESTORE_SECONDS, restores=True) == RESTORE_SECONDS


def test_calls_and_restoring_in_a_hook_share_one_second():
    with in_hook():
        assert waited() == CALL_SECONDS
        assert waited(RESTORE_SECONDS, restores=True) == HOOK_SECONDS - CALL_SECONDS
        assert [waited(), waited(restores=True)] == [SLICE] * 2, "an answer that comes at once is taken"
    with in_hook():
        assert waited(0.3) == 0.3
        assert waited() == CALL_SECONDS - 0.3
    with in_hook():
        assert waited(RESTORE_SECONDS, restores=True) == HOOK_SECONDS


def test_several_devices_that_answer_at_the_same_time_share_one_deadline():
    patience, locks = Patience(CALL_SECONDS), [Hanging() for _ in range(8)]
    assert not any(patience.acquire(lock) for lock in locks)
    assert [lock.asked_seconds for lock in locks] == [pytest.approx(CALL_SECONDS), *[pytest.approx(0.0)] * 7]


def test_a_wait_has_an_end_of_its_own_within_the_deadline():
    assert waited(until_seconds=0.12) == 0.12


@pytest.mark.parametrize("outer", ["contained_hook", "timed_hook"])
@pytest.mark.parametrize("inner", ["contained_hook", "timed_hook"])
def test_hooks_within_a_hook_share_its_second_unlike_the_next_hook(outer, inner):
    waits = []
    one, other = Feature(), Feature()

    def nest():
        getattr(other, inner)(lambda: waits.append(waited(0.5)))
        getattr(other, inner)(lambda: waits.append(waited(0.5)))

    getattr(one, outer)(nest)
    getattr(one, outer)(nest)
    assert waits == [0.5, pytest.approx(CALL_SECONDS - 0.5)] * 2
    assert threading.get_ident() not in seconds_left


def test_a_handler_that_interrupts_a_hook_has_a_second_of_its_own():
    with in_hook():
        assert waited(0.5) == 0.5
        with outside_of_hooks():
            assert waited(RESTORE_SECONDS, restores=True) == RESTORE_SECONDS
        assert waited() == CALL_SECONDS - 0.5


def test_while_a_call_hangs_later_hooks_wait_a_slice_for_any_device(hanging_call):
    with in_hook():
        assert not hanging_call.wait(Patience(0.1))
    for _ in range(2):
        with in_hook():
            assert waited() == SLICE
            assert waited(RESTORE_SECONDS, restores=True) == HOOK_SECONDS - CALL_SECONDS
    assert waited() == CALL_SECONDS, "training does not wait for this one"
    hanging_call.make()
    with in_hook():
        assert waited() == CALL_SECONDS


def test_calls_hanging_in_its_parent_do_not_matter_to_a_forked_child(hanging_call):
    assert not hanging_call.wait(Patience(0.0))
    assert unanswered
    child = os.fork()
    if child == 0:
        os._exit(len(unanswered))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_hook_does_not_wait_for_a_lock_of_a_hanging_driver():
    with in_hook(), pytest.raises(DriverFaultError, match="has not answered"), held(Hanging()):
        pass
    asked = []

    def acquire(blocking=True, timeout=-1):
        asked.append(timeout)
        return len(asked) > 100

    with held(SimpleNamespace(acquire=acquire, release=lambda: asked.append("released"))):
        assert len(asked) == 101, "outside of hooks it is waited for, however long that takes"
    assert asked[-1] == "released"
