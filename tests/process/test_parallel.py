"""Calls of several devices: in threads that end with their owner, and without waiting for one that hangs."""

import gc
import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest

from tests.support.hooks import in_hook
from zeus_core.batches.pytorch._trial_limits import TriedLimits
from zeus_core.carbon import follower as _follower
from zeus_core.device import SimulatedGpu, find_preset
from zeus_core.errors import DriverFaultError, NotSupportedError
from zeus_core.measurement import DeviceEnergy
from zeus_core.monitor import ZeusMonitor
from zeus_core.ports.background import ThreadBackground
from zeus_core.process.deadline import Patience, is_in_hook
from zeus_core.process.parallel import ParallelCalls
from zeus_core.testing import FaultyGpu
from zeus_core.training.activities.tally import Tally
from zeus_core.training.run_meter import RunMeter

LONG = 60.0
SHORT = 0.05  # only for calls that certainly do not return before, and where a later answer does no harm


class Device:
    """A device whose calls return when it is told to."""

    def __init__(self):
        self.may_answer = threading.Event()
        self.is_called = threading.Event()
        self.calls = 0

    def __call__(self):
        self.calls += 1
        self.is_called.set()
        assert self.may_answer.wait(LONG)
        return self.calls


def reason_of(number, reason):
    return reason


@pytest.fixture
def device():
    device = Device()
    yield device
    device.may_answer.set()


def threads(name):
    return [thread for thread in threading.enumerate() if thread.name == f"zeus-core {name}"]


def wait_until(condition):
    give_up_at = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.001)


def gpus(count):
    return [SimulatedGpu(find_preset("A40"), index) for index in range(count)]


def test_each_call_gets_its_own_answer():
    calls = ParallelCalls()
    functions = [lambda number=number: number for number in range(5)]
    assert calls.call(functions) == calls.call_at_once(functions) == [0, 1, 2, 3, 4]
    assert calls.call_within(LONG, functions, reason_of) == [0, 1, 2, 3, 4]
    assert calls.call_at_once([]) == calls.call_within(LONG, [], reason_of) == []


def test_a_hanging_device_is_not_awaited_and_delays_no_others_answer(device):
    calls = ParallelCalls()
    is_called = threading.Event()
    reason = calls.call_within(SHORT, [lambda: "a", device, is_called.set], reason_of)[1]
    assert "the driver has not answered within 0.05 s" in reason
    assert "dmesg" in reason
    assert is_called.wait(LONG)
    # It is still occupied: the next call fails at once, and does not reach the driver.
    answers = calls.call_within(LONG, [lambda: "a", device], reason_of)
    assert "has not answered" in answers[1]
    assert device.calls == 1


def test_a_device_that_answers_again_is_called_again(device):
    calls = ParallelCalls()
    calls.call_within(SHORT, [device], reason_of)
    device.may_answer.set()
    wait_until(lambda: calls._threads[0].late.is_done)
    wait_until(lambda: calls.call_within(LONG, [lambda: "b"], lambda _, reason: None) == ["b"])
    assert calls._threads[0].late is None


def test_a_late_device_is_trusted_only_after_it_answers_quickly(device):
    calls, slow = ParallelCalls(), Device()
    calls.call_within(SHORT, [device], reason_of)
    device.may_answer.set()
    wait_until(lambda: calls._threads[0].late.is_done)
    begin = time.monotonic()
    assert "has not answered" in calls.call_within(LONG, [slow], reason_of)[0]
    assert time.monotonic() - begin < LONG / 2
    slow.may_answer.set()


def test_one_call_raises_its_error_or_that_the_driver_does_not_answer(device):
    calls = ParallelCalls()
    with pytest.raises(KeyError):
        calls.call_one_within(LONG, 0, lambda: {}["missing"])
    with pytest.raises(DriverFaultError, match="has not answered"):
        calls.call_one_within(SHORT, 0, device)
    with pytest.raises(DriverFaultError, match="has not answered"):
        calls.call_one_within(LONG, 0, lambda: 1)
    assert calls.call_one_within(LONG, 1, lambda: 2) == 2


@pytest.mark.real_time
def test_the_time_in_which_a_process_is_stopped_does_not_count():
    """As by a job manager, a debugger, or on a machine that is busy elsewhere."""

    def answer_within_a_stop():
        answer = ParallelCalls().call_within(2.0, [lambda: [time.sleep(0.03) for _ in range(10)]], reason_of)
        os._exit(answer != [[None] * 10])

    child = os.fork()
    if child == 0:
        answer_within_a_stop()
    time.sleep(0.1)
    os.kill(child, signal.SIGSTOP)
    time.sleep(2.3)
    os.kill(child, signal.SIGCONT)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_queued_call_waits_for_those_before_it(device):
    calls = ParallelCalls()
    calls.call_within(SHORT, [device], reason_of)
    queued = calls.put(0, lambda: "after")
    assert not queued.wait(Patience(0.0))
    device.may_answer.set()
    assert queued.wait(Patience(LONG))
    assert queued.answer() == "after"


def test_threads_end_with_their_owner():
    calls, background, is_done = ParallelCalls(), ThreadBackground(), threading.Event()
    calls.call_at_once([lambda: 1, lambda: 2, lambda: 3])
    background.soon(is_done.set)
    assert is_done.wait(LONG)
    started = [*(one.thread for one in calls._threads), background._thread]
    assert len(started) == 4
    del calls, background
    gc.collect()
    for thread in started:
        thread.join(LONG)
        assert not thread.is_alive()


def test_monitors_that_are_dropped_leave_no_threads():
    before = set(threading.enumerate())
    for _ in range(3):
        monitor = ZeusMonitor(gpus=gpus(8))
        with in_hook():
            monitor.read()
        del monitor
    gc.collect()
    wait_until(lambda: not set(threading.enumerate()) - before)


def test_a_thread_with_a_hanging_call_ends_once_the_driver_answers(device):
    calls = ParallelCalls()
    calls.call_within(SHORT, [device], reason_of)
    thread = calls._threads[0].thread
    del calls
    gc.collect()
    assert thread.is_alive()
    device.may_answer.set()
    thread.join(LONG)
    assert not thread.is_alive()


def test_a_forked_child_starts_its_own_threads_without_waiting_for_its_parents(device):
    calls = ParallelCalls()
    calls.call_within(SHORT, [device, lambda: 2], reason_of)
    child = os.fork()
    if child == 0:
        signal.alarm(240)  # ends a child that waits for a thread it does not have
        answers = calls.call_within(LONG, [lambda: 1, lambda: 2], lambda _, reason: None)
        del calls
        os._exit(int(answers != [1, 2]))
    assert os.waitpid(child, 0)[1] == 0


def test_readings_in_hooks_have_a_deadline_and_other_windows_wait(monkeypatch):
    monkeypatch.setattr("zeus_core.monitor._instruments.CALL_SECONDS", SHORT)
    faulty = FaultyGpu(gpus(1)[0])
    monitor = ZeusMonitor(gpus=[*gpus(1), faulty])
    first = monitor.read()
    faulty.hang("read_energy_counter_joules")
    with in_hook():
        assert is_in_hook()
        reading = monitor.read()
    assert not is_in_hook()
    measurement = monitor.between(first, reading)
    assert measurement.of("gpu")[1].method == "lost"
    assert all("the driver has not answered" in reason for reason in measurement.lost_because.values())
    window = threading.Thread(target=lambda: monitor.begin_window("plain"))
    window.start()
    assert not monitor._open_windows
    faulty.heal()
    window.join(LONG)
    assert monitor.end_window("plain").total_energy is not None
    with in_hook():
        wait_until(lambda: not monitor.read().has_fault)


def test_a_hook_goes_on_while_another_thread_reads_for_it(monkeypatch):
    faulty = FaultyGpu(gpus(1)[0])
    monitor = ZeusMonitor(gpus=[faulty])
    first = monitor.read()
    faulty.hang("read_energy_counter_joules")
    with in_hook():
        monitor.begin_window("trial")
        reading = monitor.begin_reading()
        faulty.heal()
        assert not reading().has_fault
        assert monitor.between(first, reading()).total_energy is not None
    assert monitor.end_window("trial").total_energy is not None


@pytest.mark.parametrize(
    ("function", "prepared"),
    [
        ("read_power_watts", lambda gpu: lambda: _follower._power_watts(gpu)),
        ("read_power_limit_watts", lambda gpu: lambda: TriedLimits(gpu, [1.0]).settings),
        ("read_power_limit_range_watts", lambda gpu: meter_of_a_run(gpu).spent),
    ],
    ids=["power before training", "limit to try from", "limits for the cost of a run"],
)
def test_what_is_read_once_in_a_hook_has_a_deadline_too(function, prepared):
    gpu, answers = FaultyGpu(gpus(1)[0]), []
    read = prepared(gpu)

    def hook():
        with in_hook():
            answers.append(read())

    gpu.hang(function)
    thread = threading.Thread(target=hook, daemon=True)
    thread.start()
    thread.join(LONG)
    gpu.heal()
    assert answers in ([None], [[1]])


def meter_of_a_run(gpu):
    recorder = SimpleNamespace(spent=lambda: Tally(1.0, DeviceEnergy(1.0)), gpu_count=1)
    return RunMeter(ZeusMonitor(gpus=[gpu]), recorder)


def test_a_gpu_hanging_while_a_monitor_is_made_is_refused_by_name(monkeypatch):
    monkeypatch.setattr("zeus_core.monitor._instruments.SET_UP_SECONDS", 0.5)
    faulty = FaultyGpu(gpus(1)[0])
    faulty.hang("read_power_limit_range_watts")
    with pytest.raises(DriverFaultError, match=rf"{faulty.uuid}\) cannot be measured: the driver has not answered"):
        ZeusMonitor(gpus=[faulty])
    faulty.heal()


def test_a_gpu_that_hangs_keeps_no_other_from_being_sampled(monkeypatch):
    monkeypatch.setattr("zeus_core.monitor._instruments.CALL_SECONDS", SHORT)
    sampled = threading.Semaphore(0)

    class CounterlessGpu(FaultyGpu):
        def read_power_watts(self):
            sampled.release()
            return super().read_power_watts()

    hanging, other = FaultyGpu(gpus(1)[0]), CounterlessGpu(gpus(2)[1])
    for gpu in (hanging, other):
        gpu.fail("read_energy_counter_joules", NotSupportedError("there is none"))
    monitor = ZeusMonitor(gpus=[hanging, other])
    monitor.begin_window("sampled")
    hanging.hang("read_power_watts")
    for _ in range(10):
        assert sampled.acquire(timeout=LONG)
    monitor.cancel("sampled")
    hanging.heal()
