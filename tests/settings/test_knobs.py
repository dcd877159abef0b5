"""Power limits and clocks, and that the original ones are restored."""

import itertools
import logging
import math
import os
import signal
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contracts.knob import KnobContract
from zeus_core.device import SimulatedGpu, find_preset
from zeus_core.errors import (
    DeviceError,
    DeviceHeldError,
    DeviceLostError,
    DriverFaultError,
    PermissionDeniedError,
    UsageError,
)
from zeus_core.kinds import SM_CLOCK
from zeus_core.settings.clock_knob import LockKnob, SmClockKnob
from zeus_core.settings.limit_knob import PowerLimitKnob
from zeus_core.testing import FaultyGpu, VirtualTime

A40 = find_preset("A40")  # 100 to 300 W
A100 = find_preset("A100-PCIE-80GB")  # 150 to 300 W

original_limits_watts = st.floats(*A40.limit_range_watts)


def a40(original_watts: float = 300.0, index: int = 0) -> SimulatedGpu:
    return SimulatedGpu(A40, index, time_source=VirtualTime(), power_limit_watts=original_watts)


def a100(original_watts: float = 300.0) -> SimulatedGpu:
    return SimulatedGpu(A100, time_source=VirtualTime(), power_limit_watts=original_watts)


def be_told_to_end(knob):
    """Return while the handler of SIGTERM restores the knob in the main thread, which waits for the caller."""
    os.kill(os.getpid(), signal.SIGTERM)
    while not knob._restoration.is_final:
        time.sleep(0.001)


def limits_of(*gpus) -> list[float]:
    return [gpu.read_power_limit_watts() for gpu in gpus]


class HeldDownGpu(SimulatedGpu):
    """A GPU that something else in the machine holds to at most 200 W."""

    def read_enforced_power_limit_watts(self):
        return min(200.0, self.read_power_limit_watts())


class MisreadGpu(SimulatedGpu):
    """A GPU some of whose next readings are wrong."""

    def __init__(self):
        super().__init__(A40, time_source=VirtualTime())
        self.wrong = {}

    def misread(self, method, value, times):
        self.wrong[method] = [value] * times

    def _read(self, method):
        return self.wrong[method].pop() if self.wrong.get(method) else getattr(super(), method)()

    def read_power_limit_watts(self):
        return self._read("read_power_limit_watts")

    def read_enforced_power_limit_watts(self):
        return self._read("read_enforced_power_limit_watts")

    def read_sm_clock_mhz(self):
        return self._read("read_sm_clock_mhz")


MISREADINGS = [
    (lambda gpu: PowerLimitKnob([gpu], 25), 200, "read_power_limit_watts", 225.0),
    (lambda gpu: PowerLimitKnob([gpu], 25), 200, "read_enforced_power_limit_watts", 150.0),
    (lambda gpu: LockKnob(SM_CLOCK, [gpu]), 1200, "read_sm_clock_mhz", 1500),
    (lambda gpu: LockKnob(SM_CLOCK, [gpu]), 1200, "read_enforced_power_limit_watts", 150.0),
]


@pytest.mark.parametrize(("make_knob", "setting", "method", "wrong"), MISREADINGS)
def test_one_wrong_reading_is_no_interference_and_a_second_one_is(make_knob, setting, method, wrong):
    knob = make_knob(gpu := MisreadGpu())
    setting = next(one for one in knob.settings if one <= setting)
    knob.apply(setting)
    gpu.misread(method, wrong, times=1)
    assert knob.is_undisturbed()
    assert not gpu.wrong[method], "it was read"
    gpu.misread(method, wrong, times=2)
    if method == "read_enforced_power_limit_watts":
        assert not knob.is_undisturbed()
    else:
        with pytest.raises(DeviceHeldError, match="somebody else"):
            knob.is_undisturbed()
    knob.restore()


def test_one_wrong_reading_at_the_end_keeps_no_limit(caplog):
    knob = PowerLimitKnob([gpu := MisreadGpu()], 25)
    knob.apply(200)
    gpu.misread("read_power_limit_watts", 225.0, times=1)
    assert knob.restore()
    assert gpu.read_power_limit_watts() == 300.0
    assert caplog.records == []


class TestContractOfPowerLimits(KnobContract):
    @pytest.fixture
    def gpus(self):
        return [a40(250.5, index=0), a40(180.0, index=1), a100()]

    @pytest.fixture
    def make_knob(self, gpus):
        return lambda: PowerLimitKnob(gpus, 25)

    @pytest.fixture
    def read_hardware(self, gpus):
        return lambda: limits_of(*gpus)


@pytest.mark.parametrize("original_mhz", [None, 1305])
class TestContractOfSmClocks(KnobContract):
    @pytest.fixture
    def gpu(self, original_mhz):
        gpu = LoggedGpu()
        if original_mhz is not None:
            gpu.lock_sm_clock(original_mhz)
        return gpu

    @pytest.fixture
    def make_knob(self, gpu, original_mhz):
        return lambda: SmClockKnob(gpu, original_mhz)

    @pytest.fixture
    def read_hardware(self, gpu):
        return lambda: [None, *gpu.clocks][-1]


def test_a_handler_that_interrupts_a_simulated_gpus_method_restores_it():
    """The driver is called in another thread, which would wait for the lock of the method as long as the handler."""
    gpu = a40()
    knob = PowerLimitKnob([gpu], 25)
    knob.apply(200)
    with gpu._lock:
        assert knob.restore()
    assert limits_of(gpu) == [300.0]


class TestSettings:
    def test_they_run_from_the_original_limit_to_the_boards_lowest(self):
        assert PowerLimitKnob([a40(250.0)], 50).settings == (250, 200, 150, 100)

    def test_the_lowest_limit_is_there_even_if_the_last_step_is_shorter(self):
        assert PowerLimitKnob([a40(250.0)], 60).settings == (250, 190, 130, 100)

    def test_a_step_beyond_the_range_leaves_the_two_ends(self):
        assert PowerLimitKnob([a40(250.0)], 1000).settings == (250, 100)

    def test_a_gpu_whose_original_limit_is_its_lowest_has_that_one_alone(self):
        assert PowerLimitKnob([a40(100.0)], 25).settings == (100,)

    def test_the_highest_original_and_the_lowest_limit_of_boards_are_the_ends(self):
        assert PowerLimitKnob([a40(200.0), a100(280.0)], 50).settings == (280, 230, 180, 130, 100)

    @given(st.lists(original_limits_watts, min_size=1, max_size=4), st.integers(1, 300))
    def test_from_original_to_lowest_all_steps_but_the_last_are_equal(self, original_watts, step_watts):
        settings = PowerLimitKnob([a40(watts) for watts in original_watts], step_watts).settings
        assert settings[0] == math.ceil(max(original_watts))
        assert settings[-1] == 100
        steps = [higher - lower for higher, lower in itertools.pairwise(settings)]
        assert all(step == step_watts for step in steps[:-1])
        assert all(0 < step <= step_watts for step in steps[-1:])

    def test_making_a_knob_changes_nothing(self):
        gpu = FaultyGpu(a40(250.0))
        gpu.fail("set_power_limit", AssertionError("a limit was set"))
        PowerLimitKnob([gpu], 25).restore()
        assert limits_of(gpu) == [250.0]

    def test_a_limit_that_cannot_be_read_is_the_error_of_the_device(self):
        gpu = FaultyGpu(a40())
        gpu.fail("read_power_limit_watts", DeviceLostError("gone"))
        with pytest.raises(DeviceLostError):
            PowerLimitKnob([gpu], 25)

    @pytest.mark.parametrize("method", ["read_power_limit_watts", "read_power_limit_range_watts"])
    def test_a_passing_fault_is_tried_again(self, method):
        gpu = FaultyGpu(a40(250.0))
        gpu.fail(method, DriverFaultError("busy"), times=2)
        assert PowerLimitKnob([gpu], 50).settings == (250, 200, 150, 100)

    def test_clocks_that_cannot_be_read_at_once_are_tried_again(self):
        gpu = FaultyGpu(a40())
        gpu.fail("read_supported_sm_clocks_mhz", DriverFaultError("busy"), times=2)
        assert SmClockKnob(gpu).settings == a40().read_supported_sm_clocks_mhz()


class TestApply:
    def test_a_setting_becomes_the_limit_of_every_gpu(self):
        gpus = [a40(index=0), a40(index=1)]
        knob = PowerLimitKnob(gpus, 25)
        knob.apply(225)
        assert limits_of(*gpus) == [225.0, 225.0]

    def test_a_setting_between_two_steps_can_be_applied(self):
        gpu = a40()
        knob = PowerLimitKnob([gpu], 100)
        knob.apply(217)
        assert limits_of(gpu) == [217.0]

    @given(st.lists(original_limits_watts, min_size=1, max_size=4), st.integers(1, 100))
    def test_no_gpu_is_set_above_its_original_or_below_its_lowest_limit(self, original_watts, step_watts):
        gpus = [a40(watts) for watts in original_watts]
        knob = PowerLimitKnob(gpus, step_watts)
        for setting in knob.settings:
            knob.apply(setting)
            for limit_watts, original in zip(limits_of(*gpus), original_watts, strict=True):
                assert limit_watts == min(setting, original)

    def test_the_baseline_is_the_original_limit_of_every_gpu(self):
        gpus = [a40(299.5), a40(180.25), a100(200.0)]
        knob = PowerLimitKnob(gpus, 25)
        knob.apply(100)
        knob.apply(knob.settings[0])
        assert knob.settings[0] == 300
        assert limits_of(*gpus) == [299.5, 180.25, 200.0]

    def test_a_board_with_a_higher_lowest_limit_stops_there(self):
        gpus = [a40(), a100()]
        knob = PowerLimitKnob(gpus, 25)
        knob.apply(100)
        assert limits_of(*gpus) == [100.0, 150.0]

    @pytest.mark.parametrize("setting", [99, 251, 300, 0, -100])
    def test_a_setting_outside_is_a_usage_error_and_changes_nothing(self, setting):
        gpu = a40(250.0)
        with pytest.raises(UsageError, match=f"{setting} W is outside 100 to 250 W"):
            PowerLimitKnob([gpu], 25).apply(setting)
        assert limits_of(gpu) == [250.0]

    def test_a_gpu_that_refuses_is_the_error_of_the_device(self):
        gpu = FaultyGpu(a40())
        gpu.fail("set_power_limit", DriverFaultError("no answer"))
        with pytest.raises(DriverFaultError):
            PowerLimitKnob([gpu], 25).apply(200)


class TestRestore:
    @given(st.lists(original_limits_watts, min_size=1, max_size=4), st.lists(st.integers(100, 300), max_size=4))
    def test_every_gpu_gets_back_exactly_its_original_limit(self, original_watts, settings):
        gpus = [a40(watts) for watts in original_watts]
        knob = PowerLimitKnob(gpus, 25)
        for setting in settings:
            knob.apply(min(setting, knob.settings[0]))
        knob.restore()
        assert limits_of(*gpus) == original_watts

    def test_nothing_is_touched_if_nothing_was_applied(self):
        gpu = a40(250.0)
        knob = PowerLimitKnob([gpu], 25)
        gpu.set_power_limit(150.0)  # someone else, meanwhile
        knob.restore()
        assert limits_of(gpu) == [150.0]

    def test_once_restored_a_knob_leaves_the_gpu_alone_for_good(self):
        gpu = a40(250.0)
        knob = PowerLimitKnob([gpu], 25)
        knob.apply(200)
        knob.restore()
        gpu.set_power_limit(150.0)
        knob.restore()
        assert limits_of(gpu) == [150.0]
        with pytest.raises(DeviceError, match="has been restored"):
            knob.apply(200)
        assert limits_of(gpu) == [150.0]

    def test_a_fault_that_passes_does_not_keep_a_gpu_from_being_restored(self):
        faulty = FaultyGpu(a40(250.0))
        knob = PowerLimitKnob([faulty], 25)
        knob.apply(200)
        faulty.fail("set_power_limit", DriverFaultError("for once"), times=1)
        assert knob.restore()
        assert limits_of(faulty) == [250.0]

    def test_a_gpu_that_refused_is_restored_by_the_next_call(self):
        faulty = FaultyGpu(a40(250.0))
        knob = PowerLimitKnob([faulty], 25)
        knob.apply(200)
        faulty.fail("set_power_limit", DriverFaultError("for long"))
        assert not knob.restore()
        faulty.heal()
        assert knob.restore()
        assert limits_of(faulty) == [250.0]

    def test_restored_by_a_signal_handler_during_a_change_nothing_stays_changed(self):
        first, second = a40(250.0, index=0), a40(260.0, index=1)

        class InterruptedGpu(FaultyGpu):
            def set_power_limit(self, limit_watts):
                if limit_watts < 250:
                    be_told_to_end(knob)
                super().set_power_limit(limit_watts)

        signal.signal(signal.SIGTERM, lambda number, frame: None)
        knob = PowerLimitKnob([first, InterruptedGpu(second)], 25)
        knob.apply(200)
        assert limits_of(first, second) == [250.0, 260.0]

    def test_a_forked_child_restores_nothing(self):
        gpu = a40(250.0)
        knob = PowerLimitKnob([gpu], 25)
        knob.apply(200)
        child = os.fork()
        if child == 0:
            knob.restore()
            os._exit(int(gpu.read_power_limit_watts() != 200))
        assert os.waitpid(child, 0)[1] == 0
        assert knob.restore()
        assert limits_of(gpu) == [250.0]

    @pytest.mark.parametrize("error", [DeviceLostError("it is gone"), RuntimeError("it is gone")])
    def test_a_gpu_that_refuses_does_not_keep_the_others_from_theirs(self, caplog, error):
        first, faulty, last = a40(250.0, index=0), FaultyGpu(a40(260.0, index=1)), a40(270.0, index=2)
        knob = PowerLimitKnob([first, faulty, last], 25)
        knob.apply(150)
        faulty.fail("set_power_limit", error)
        knob.restore()
        assert limits_of(first, faulty, last) == [250.0, 150.0, 270.0]
        (record,) = caplog.records
        assert record.levelno == logging.ERROR
        assert f"to 260 W (`sudo nvidia-smi -i {faulty.uuid} -pl 260`) could not be restored: it is gone" in caplog.text
        faulty.heal()

    def test_gpus_set_before_another_refused_are_restored(self):
        first, faulty = a40(250.0, index=0), FaultyGpu(a40(260.0, index=1))
        knob = PowerLimitKnob([first, faulty], 25)
        faulty.fail("set_power_limit", DriverFaultError("no answer"), times=4)
        with pytest.raises(DriverFaultError):
            knob.apply(150)
        assert limits_of(first, faulty) == [150.0, 260.0]
        knob.restore()
        assert limits_of(first, faulty) == [250.0, 260.0]

    def test_a_refusal_for_lack_of_rights_changes_nothing_so_nothing_is_restored(self):
        gpu = FaultyGpu(a40(250.0))
        knob = PowerLimitKnob([gpu], 25)
        gpu.fail("set_power_limit", PermissionDeniedError("ask an admin"), times=1)
        with pytest.raises(PermissionDeniedError):
            knob.apply(200)
        gpu.set_power_limit(150.0)  # the admin, meanwhile
        assert knob.restore()
        assert limits_of(gpu) == [150.0]


class TestEnforcedLimit:
    def test_a_limit_the_machine_holds_lower_is_warned_of_once(self, caplog):
        gpus = [HeldDownGpu(A40, index, time_source=VirtualTime()) for index in range(2)]
        knob = PowerLimitKnob(gpus, 25)
        knob.apply(275)
        knob.apply(250)
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert "275 W" in record.getMessage()
        assert "200 W" in record.getMessage()

    def test_a_limit_that_is_enforced_is_not_warned_of(self, caplog):
        knob = PowerLimitKnob([HeldDownGpu(A40, time_source=VirtualTime())], 25)
        knob.apply(200)
        assert not caplog.records


class LoggedGpu(FaultyGpu):
    """Remembers which clocks it was locked at; None is unlocked."""

    def __init__(self):
        super().__init__(a100())
        self.clocks = []

    def lock_sm_clock(self, clock_mhz):
        super().lock_sm_clock(clock_mhz)
        self.clocks.append(clock_mhz)

    def unlock_sm_clock(self):
        super().unlock_sm_clock()
        self.clocks.append(None)


@pytest.fixture
def gpu():
    return LoggedGpu()


class TestClock:
    def test_settings_are_the_clocks_up_to_the_original(self, gpu):
        assert SmClockKnob(gpu).settings == gpu.read_supported_sm_clocks_mhz()
        assert SmClockKnob(gpu, 1200).settings[0] == 1200
        assert SmClockKnob(gpu, 1200).settings[-1] == A100.lowest_clock_mhz
        assert gpu.clocks == [], "nothing is changed by asking"

    @pytest.mark.parametrize("original_mhz", [1, 1201, 99999])
    def test_an_original_clock_that_is_not_supported_is_a_usage_error(self, gpu, original_mhz):
        with pytest.raises(UsageError, match=f"original_clock_mhz is {original_mhz}; .* supports 1410 down to 210 MHz"):
            SmClockKnob(gpu, original_mhz)

    def test_clocks_that_cannot_be_read_are_the_error_of_the_device(self, gpu):
        gpu.fail("read_supported_sm_clocks_mhz", DeviceLostError("gone"))
        with pytest.raises(DeviceLostError):
            SmClockKnob(gpu)

    def test_a_clock_that_is_not_supported_changes_nothing(self, gpu):
        knob = SmClockKnob(gpu)
        with pytest.raises(UsageError, match="clock_mhz is 1201"):
            knob.apply(1201)
        assert gpu.clocks == []

    @pytest.mark.parametrize("original_mhz", [None, 1305])
    def test_it_is_restored_for_now_and_for_good(self, gpu, original_mhz):
        knob = SmClockKnob(gpu, original_mhz)
        knob.apply(900)
        knob.restore_for_now()
        knob.apply(1200)
        assert knob.restore()
        knob.restore_for_now()
        assert knob.restore()
        assert gpu.clocks == [900, original_mhz, 1200, original_mhz]
        with pytest.raises(DeviceError, match="has been restored for good"):
            knob.apply(900)
        assert gpu.clocks[-1] == original_mhz

    def test_what_was_never_changed_is_left_alone(self, gpu):
        knob = SmClockKnob(gpu, 1305)
        knob.restore_for_now()
        assert knob.restore()
        assert gpu.clocks == []

    def test_a_change_that_failed_may_have_come_through_and_is_restored(self, gpu):
        knob = SmClockKnob(gpu)
        gpu.fail("lock_sm_clock", DriverFaultError("no answer"), times=4)
        with pytest.raises(DriverFaultError):
            knob.apply(900)
        assert knob.restore()
        assert gpu.clocks == [None]

    def test_a_refused_call_is_retried_at_once_and_longer_by_the_next(self, gpu, caplog):
        knob = SmClockKnob(gpu)
        knob.apply(900)
        gpu.fail("unlock_sm_clock", DriverFaultError("no answer"))
        with pytest.raises(DriverFaultError):
            knob.restore_for_now()
        assert not knob.restore()
        (record,) = caplog.records
        assert "could not be restored: no answer" in record.message
        gpu.fail("unlock_sm_clock", RuntimeError("for once"), times=1)
        assert knob.restore()
        assert gpu.clocks == [900, None]

    @pytest.mark.parametrize("moment", ["before the driver", "after the driver"])
    def test_restored_by_a_signal_handler_during_a_change_nothing_stays_changed(self, moment):
        class Interrupted(LoggedGpu):
            def lock_sm_clock(self, clock_mhz):
                if moment == "before the driver":
                    be_told_to_end(knob)
                super().lock_sm_clock(clock_mhz)
                if moment == "after the driver":
                    be_told_to_end(knob)

        signal.signal(signal.SIGTERM, lambda number, frame: None)
        gpu = Interrupted()
        knob = SmClockKnob(gpu)
        knob.apply(900)
        assert gpu.clocks[-1] is None
        assert gpu.clocks.count(900) == 1

    def test_restoring_in_a_handler_during_a_temporary_restore_leaves_nothing_changed(self):
        class Interrupted(LoggedGpu):
            def unlock_sm_clock(self):
                if not knob._restoration.is_final:
                    be_told_to_end(knob)
                super().unlock_sm_clock()

        signal.signal(signal.SIGTERM, lambda number, frame: None)
        gpu = Interrupted()
        knob = SmClockKnob(gpu)
        knob.apply(900)
        knob.restore_for_now()
        assert gpu.clocks[:2] == [900, None]
        assert set(gpu.clocks[1:]) == {None}

    def test_restoring_in_another_thread_during_a_change_leaves_nothing_changed(self):
        is_under_way, may_go_on = threading.Event(), threading.Event()

        class SlowGpu(LoggedGpu):
            def lock_sm_clock(self, clock_mhz):
                is_under_way.set()
                assert may_go_on.wait(30.0)
                super().lock_sm_clock(clock_mhz)

        gpu = SlowGpu()
        knob = SmClockKnob(gpu)
        changing = threading.Thread(target=lambda: knob.apply(900))
        restoring = threading.Thread(target=knob.restore)
        changing.start()
        assert is_under_way.wait(30.0)
        restoring.start()
        may_go_on.set()
        changing.join(30.0)
        restoring.join(30.0)
        assert gpu.clocks[0] == 900
        assert gpu.clocks[-1] is None

    def test_a_hanging_driver_is_not_awaited_and_restored_once_it_answers(self, monkeypatch, caplog):
        monkeypatch.setattr("zeus_core.settings.restoration.RESTORE_SECONDS", 0.05)
        is_under_way, may_go_on = threading.Event(), threading.Event()

        class HangingGpu(LoggedGpu):
            def lock_sm_clock(self, clock_mhz):
                is_under_way.set()
                assert may_go_on.wait(30.0)
                super().lock_sm_clock(clock_mhz)

        gpu = HangingGpu()
        knob = SmClockKnob(gpu)
        changing = threading.Thread(target=lambda: knob.apply(900))
        changing.start()
        assert is_under_way.wait(30.0)
        assert not knob.restore()
        assert "is not restored yet: the driver does not answer" in caplog.text
        assert gpu.clocks == []
        may_go_on.set()
        changing.join(30.0)
        assert knob.restore()
        assert gpu.clocks[0] == 900
        assert set(gpu.clocks[1:]) == {None}

    def test_a_forked_child_leaves_the_hardware_alone_until_it_turns_it_itself(self, gpu):
        knob = SmClockKnob(gpu)
        knob.apply(900)
        child = os.fork()
        if child == 0:
            knob.restore_for_now()
            knob.restore()
            os._exit(int(gpu.clocks != [900]))
        assert os.waitpid(child, 0)[1] == 0
        child = os.fork()
        if child == 0:
            knob.apply(1200)
            knob.restore()
            os._exit(int(gpu.clocks != [900, 1200, None]))
        assert os.waitpid(child, 0)[1] == 0
        assert knob.restore()
        assert gpu.clocks == [900, None]

    def test_a_child_forked_while_another_thread_changes_hardware_can_change_it_too(self, monkeypatch):
        # A fork may take a second on a busy machine: the call counts as late after that, and would be undone.
        monkeypatch.setattr("zeus_core.settings.restoration.CALL_SECONDS", 30.0)
        is_under_way, may_go_on, parent = threading.Event(), threading.Event(), os.getpid()

        class SlowGpu(LoggedGpu):
            def lock_sm_clock(self, clock_mhz):
                if os.getpid() == parent:
                    is_under_way.set()
                    assert may_go_on.wait(30.0)
                super().lock_sm_clock(clock_mhz)

        gpu = SlowGpu()
        knob = SmClockKnob(gpu)
        changing = threading.Thread(target=lambda: knob.apply(900))
        changing.start()
        assert is_under_way.wait(30.0)
        child = os.fork()
        if child == 0:
            signal.alarm(240)  # ends a child that waits for a thread it does not have
            knob.apply(1200)
            is_restored = knob.restore()
            os._exit(int(not is_restored or gpu.clocks != [1200, None]))
        status = os.waitpid(child, 0)[1]
        may_go_on.set()
        changing.join(30.0)
        assert status == 0
        assert gpu.clocks == [900]

    def test_a_reading_that_hangs_within_a_change_does_not_prevent_restoring(self):
        gpu = FaultyGpu(a40(250.0))
        knob = PowerLimitKnob([gpu], 25)
        gpu.hang("read_enforced_power_limit_watts")
        read, is_reading = gpu.read_enforced_power_limit_watts, threading.Event()
        gpu.read_enforced_power_limit_watts = lambda: is_reading.set() or read()

        def change():
            with pytest.raises(DriverFaultError):
                knob.apply(200)

        changing = threading.Thread(target=change)
        changing.start()
        assert is_reading.wait(30.0)
        assert knob.restore()
        assert limits_of(gpu) == [250.0]
        gpu.heal()
        changing.join(30.0)
        assert limits_of(gpu) == [250.0]
