"""The clock of one GPU, set beside training and put back."""

import gc
import threading
from collections import deque
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_core.device import SimulatedGpu, find_preset
from zeus_core.errors import DeviceError, DriverFaultError, PermissionDeniedError, UsageError
from zeus_core.kinds import POWER_LIMIT
from zeus_core.optimizer.limiter import Limiter
from zeus_core.pipeline.optimizer._clock_setter import ClockSetter
from zeus_core.ports.background import ThreadBackground
from zeus_core.ports.device_events import HostEvents
from zeus_core.ports.time_source import MonotonicTime
from zeus_core.settings.holders import user_of
from zeus_core.testing import FaultyGpu, VirtualBackground, VirtualTime

A100 = find_preset("A100-SXM4-80GB")
CLOCKS = (1410, 1200, 1050, 900)
PAST = HostEvents(VirtualTime(0.0))()  # also on a machine that was booted just now


class RecordedGpu(FaultyGpu):
    """Remembers what the driver was told; None is the clock unlocked."""

    def __init__(self, **arguments):
        super().__init__(SimulatedGpu(A100, time_source=VirtualTime(), **arguments))
        self.told = []

    def lock_sm_clock(self, clock_mhz):
        super().lock_sm_clock(clock_mhz)
        self.told.append(clock_mhz)

    def unlock_sm_clock(self):
        super().unlock_sm_clock()
        self.told.append(None)


class DeviceMark:
    """A point that the device comes to when the test says so."""

    def __init__(self):
        self._is_reached = threading.Event()
        self.is_waited_for = threading.Event()

    def reach(self):
        self._is_reached.set()

    def wait(self):
        self.is_waited_for.set()
        assert self._is_reached.wait(30.0)

    def seconds(self):
        return 1.0 if self._is_reached.is_set() else None


class QueuedBackground(VirtualBackground):
    """Does what is to come soon when the test says so."""

    def __init__(self):
        super().__init__(VirtualTime())
        self.actions = deque()

    def soon(self, action):
        self.actions.append(action)

    def run(self):
        while self.actions:
            self.actions.popleft()()


@pytest.fixture
def gpu():
    return RecordedGpu()


@pytest.fixture
def background():
    return QueuedBackground()


@pytest.fixture
def setter(gpu, background):
    setter = ClockSetter(gpu, VirtualTime(), background, None)
    yield setter
    gpu.heal()
    setter.restore()


def test_a_power_limit_is_not_searched_while_a_pipeline_has_the_clock(gpu, background, setter):
    setter.set_now(900)
    limiter = Limiter([gpu], POWER_LIMIT, user_of(gpu, compares=True))
    answer = limiter.set(300)
    assert answer.is_held
    assert "the PipelineFrequencyOptimizer" in answer.denial
    assert gpu.read_power_limit_watts() == 400


def run_out(background):
    """Wait until everything that was given to a real thread is done."""
    done = threading.Event()
    background.soon(done.set)
    assert done.wait(30.0)


class TestRequests:
    @given(st.lists(st.sampled_from([*CLOCKS, None])))
    def test_only_changes_reach_the_driver_in_their_order(self, requests):
        gpu = RecordedGpu()
        setter = ClockSetter(gpu, VirtualTime(), VirtualBackground(VirtualTime()), None)
        for clock_mhz in requests:
            setter.request(clock_mhz, PAST)
        latest = [None, *requests]
        assert gpu.told == [new for old, new in pairwise(latest) if new != old]

    @given(st.data())
    def test_after_any_interleaving_the_last_request_holds_and_nothing_is_told_twice(self, data):
        gpu, background = RecordedGpu(), QueuedBackground()
        setter = ClockSetter(gpu, VirtualTime(), background, None)
        wanted = None
        for _ in range(data.draw(st.integers(0, 12))):
            action = data.draw(st.sampled_from(["request", "now", "run one"]))
            if action == "run one":
                if background.actions:
                    background.actions.popleft()()
                continue
            wanted = data.draw(st.sampled_from([*CLOCKS, None]))
            if action == "request":
                setter.request(wanted, PAST)
            else:
                setter.set_now(wanted)
                assert [None, *gpu.told][-1] == wanted
        background.run()
        told = [None, *gpu.told]
        assert told[-1] == wanted
        assert all(old != new for old, new in pairwise(told))

    def test_a_clock_is_set_once_the_device_has_come_to_the_mark(self, gpu):
        background = ThreadBackground()
        setter = ClockSetter(gpu, MonotonicTime(), background, None)
        first, second = DeviceMark(), DeviceMark()
        setter.request(1200, first)
        setter.request(900, second)
        assert first.is_waited_for.wait(30.0), "in the background"
        assert gpu.told == []
        first.reach()
        assert second.is_waited_for.wait(30.0)
        assert gpu.told == [1200]
        second.reach()
        run_out(background)
        assert gpu.told == [1200, 900]
        setter.restore()
        assert gpu.told == [1200, 900, None]

    def test_a_request_that_another_has_overtaken_is_skipped(self, setter, gpu, background):
        marks = [DeviceMark() for _ in range(3)]
        for clock_mhz, mark in zip((1200, 1050, 900), marks, strict=True):
            setter.request(clock_mhz, mark)
            mark.reach()
        background.run()
        assert gpu.told == [900]

    def test_an_overtaken_request_for_the_clock_already_set_costs_nothing(self, setter, gpu, background):
        for clock_mhz in (1200, None):
            setter.request(clock_mhz, PAST)
        background.run()
        assert gpu.told == []


class TestSetNow:
    def test_it_takes_effect_at_once_and_says_how_long_the_driver_took(self):
        time_source = VirtualTime()

        class SlowGpu(RecordedGpu):
            def lock_sm_clock(self, clock_mhz):
                time_source.advance(0.012)
                super().lock_sm_clock(clock_mhz)

        gpu = SlowGpu()
        setter = ClockSetter(gpu, time_source, VirtualBackground(time_source), None)
        assert setter.set_now(1200) == pytest.approx(0.012)
        assert setter.set_now(1200) == 0.0
        assert gpu.told == [1200]

    def test_what_was_requested_before_is_void(self, setter, gpu, background):
        setter.request(1200, PAST)
        setter.set_now(900)
        background.run()
        assert gpu.told == [900]

    def test_also_what_is_being_waited_for(self, gpu):
        background, mark = ThreadBackground(), DeviceMark()
        setter = ClockSetter(gpu, MonotonicTime(), background, None)
        setter.request(1200, mark)
        assert mark.is_waited_for.wait(30.0)
        setter.set_now(None)
        mark.reach()
        run_out(background)
        assert gpu.told == []

    def test_also_what_is_just_about_to_be_set(self, setter, gpu, background):
        lock = setter._lock

        class LateLock:
            """The thread that trains is quicker."""

            def __enter__(self):
                setter._lock = lock
                setter.set_now(900)
                lock.acquire()

            def __exit__(self, *error):
                lock.release()

        setter.request(1200, PAST)
        setter._lock = LateLock()
        background.run()
        assert gpu.told == [900]

    def test_a_request_for_what_was_set_now_is_no_change(self, setter, gpu, background):
        setter.set_now(900)
        setter.request(900, PAST)
        background.run()
        assert gpu.told == [900]

    def test_a_driver_that_refuses_is_the_error_of_the_device(self, setter, gpu):
        gpu.fail("lock_sm_clock", DriverFaultError("no answer"))
        with pytest.raises(DriverFaultError):
            setter.set_now(900)
        assert setter.fault is None


class TestFaults:
    def test_a_fault_in_the_background_is_kept_and_nothing_more_is_requested(self, setter, gpu, background):
        error = DriverFaultError("no answer")
        gpu.fail("lock_sm_clock", error, times=4)
        setter.request(1200, PAST)
        background.run()
        assert setter.fault is error
        setter.request(900, PAST)
        background.run()
        assert gpu.told == []

    def test_a_mark_that_fails_is_a_fault(self, setter, gpu, background):
        class Broken(DeviceMark):
            def wait(self):
                raise RuntimeError("the device is gone")

        setter.request(1200, Broken())
        background.run()
        assert str(setter.fault) == "the device is gone"
        assert gpu.told == []

    def test_a_thread_outlives_a_fault(self, gpu):
        background = ThreadBackground()
        setter = ClockSetter(gpu, MonotonicTime(), background, None)
        gpu.fail("lock_sm_clock", DriverFaultError("no answer"), times=4)
        setter.request(1200, PAST)
        run_out(background)
        assert isinstance(setter.fault, DriverFaultError)
        setter.restore()

    @pytest.mark.parametrize("grants_control", [True, False])
    def test_it_tells_whether_this_process_permission_problem_clocks(self, grants_control, background):
        gpu = RecordedGpu(grants_control=grants_control)
        setter = ClockSetter(gpu, VirtualTime(), background, None)
        assert (setter.permission_problem() is None) is grants_control
        assert gpu.told == ([1410, None] if grants_control else [])

    def test_a_driver_that_refuses_for_another_reason_is_its_error(self, setter, gpu):
        gpu.fail("lock_sm_clock", DriverFaultError("no answer"))
        with pytest.raises(DriverFaultError):
            setter.permission_problem()
        gpu.fail("lock_sm_clock", PermissionDeniedError("ask an admin"))
        assert setter.permission_problem() == "ask an admin"

    def test_a_clock_found_that_the_gpu_does_not_support_is_named(self, gpu, background):
        with pytest.raises(UsageError, match="original_clock_mhz is 1411"):
            ClockSetter(gpu, VirtualTime(), background, 1411)


class TestPutBack:
    @pytest.mark.parametrize("original_mhz", [None, 1305])
    def test_the_original_is_restored_for_good(self, gpu, original_mhz):
        background = QueuedBackground()
        setter = ClockSetter(gpu, VirtualTime(), background, original_mhz)
        assert setter.clocks_mhz[0] == (original_mhz or 1410)
        setter.set_now(900)
        setter.request(1200, PAST)
        assert setter.restore()
        background.run()
        with pytest.raises(DeviceError, match="has been restored"):
            setter.set_now(1200)
        setter.request(1050, PAST)
        background.run()
        assert gpu.told == [900, original_mhz]

    def test_nothing_is_touched_where_nothing_was_set(self, setter, gpu):
        assert setter.restore()
        assert gpu.told == []

    def test_a_driver_that_refuses_temporarily_is_called_again_by_the_next_call(self, setter, gpu, caplog):
        setter.set_now(900)
        gpu.fail("unlock_sm_clock", DriverFaultError("for long"))
        assert not setter.restore()
        assert "could not be restored: for long" in caplog.text
        gpu.heal()
        assert setter.restore()
        assert gpu.told == [900, None]

    def test_a_setter_that_nobody_holds_puts_back(self, gpu):
        setter = ClockSetter(gpu, VirtualTime(), VirtualBackground(VirtualTime()), None)
        setter.request(900, PAST)
        del setter
        gc.collect()
        assert gpu.told == [900, None]

    def test_it_wins_over_requests_that_are_being_served_by_a_thread(self):
        for _ in range(20):
            gpu, background = RecordedGpu(), ThreadBackground()
            setter = ClockSetter(gpu, MonotonicTime(), background, None)
            for number in range(50):
                setter.request(CLOCKS[number % 4], PAST)
            assert setter.restore()
            run_out(background)
            assert [None, *gpu.told][-1] is None

    def test_a_hanging_driver_blocks_neither_background_nor_training_and_is_restored_later(self, monkeypatch):
        monkeypatch.setattr("zeus_core.settings.restoration.CALL_SECONDS", 0.05)
        monkeypatch.setattr("zeus_core.settings.restoration.RESTORE_SECONDS", 0.05)
        gpu, background = RecordedGpu(), ThreadBackground()
        setter = ClockSetter(gpu, MonotonicTime(), background, None)
        gpu.hang("lock_sm_clock")
        setter.request(900, PAST)
        run_out(background)
        assert isinstance(setter.fault, DriverFaultError)
        assert not setter.restore()
        assert gpu.told == []
        gpu.heal()
        while not setter.restore():
            pass
        assert gpu.told[0] == 900
        assert set(gpu.told[1:]) == {None}

    def test_it_wins_over_a_call_of_the_driver_that_is_under_way(self):
        is_under_way, may_go_on = threading.Event(), threading.Event()

        class SlowGpu(RecordedGpu):
            def lock_sm_clock(self, clock_mhz):
                is_under_way.set()
                assert may_go_on.wait(30.0)
                super().lock_sm_clock(clock_mhz)

        gpu, background = SlowGpu(), ThreadBackground()
        setter = ClockSetter(gpu, MonotonicTime(), background, None)
        setter.request(900, PAST)
        assert is_under_way.wait(30.0)
        threading.Timer(0.05, may_go_on.set).start()
        assert setter.restore()
        run_out(background)
        assert gpu.told[-1] is None
        assert gpu.told[0] == 900
