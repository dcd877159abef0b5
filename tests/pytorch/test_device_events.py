"""Marks in the work of a device, on a fake of torch.cuda that lives in virtual time. No GPU has run these."""

import threading

import numpy as np
import pytest
import torch

from zeus_core.ports.device_events import HostEvents
from zeus_core.pytorch.torch_events import CudaEvents, device_events_for

ERROR_OF_AN_EVENT = 0.5e-6
HOUR = 3600.0


class FakeCuda:
    """Streams that work one thing after the other, and a device clock that drifts from the host's."""

    def __init__(self, time_source, drift_fraction=0.0, seconds_to_notice=0.0):
        self.time_source = time_source
        self.drift_fraction = drift_fraction
        self.seconds_to_notice = seconds_to_notice
        self.stream = Stream()
        self.waits = 0
        self.events = 0
        self.entered = []

    def Event(self, enable_timing, blocking):  # noqa: N802
        assert enable_timing
        self.events += 1
        return FakeEvent(self)

    def current_stream(self, device):
        assert device in (torch.device("cuda:0"), torch.device("xpu:0"))
        return self.stream

    def set_device(self, device):
        self.entered.append((threading.get_ident(), device))

    def synchronize(self, device):
        self.wait_until(self.stream.free_at)

    def submit(self, seconds):
        """Work that the host does not wait for; returns when it will be done."""
        self.stream.free_at = max(self.stream.free_at, self.time_source.now()) + seconds
        return self.stream.free_at

    def wait_until(self, seconds):
        self.waits += 1
        left = seconds - self.time_source.now()
        self.time_source.sleep(max(left, 0.0) + self.seconds_to_notice)


class Stream:
    free_at = 0.0


class FakeEvent:
    def __init__(self, cuda):
        self.cuda = cuda

    def record(self, stream):
        self.at = max(stream.free_at, self.cuda.time_source.now())

    def query(self):
        return self.cuda.time_source.now() >= self.at

    def synchronize(self):
        self.cuda.wait_until(self.at)

    def elapsed_time(self, other):
        if not (self.query() and other.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        seconds = (other.at - self.at) * (1.0 + self.cuda.drift_fraction)
        return float(np.float32(1000.0 * seconds))


@pytest.fixture
def cuda(time_source):
    return FakeCuda(time_source)


@pytest.fixture
def device_events(cuda, time_source):
    return CudaEvents("cuda:0", time_source, cuda)


class FakeXpu(FakeCuda):
    """As `torch.xpu`, whose events take one argument."""

    def Event(self, enable_timing):  # noqa: N802
        return super().Event(enable_timing, blocking=False)


def test_a_device_of_xpu_has_events_too(time_source, monkeypatch):
    xpu = FakeXpu(time_source)
    monkeypatch.setattr(torch, "xpu", xpu)
    event, end = device_events_for("xpu:0", time_source), xpu.submit(0.5)
    mark = event()
    mark.wait()
    assert mark.seconds() == pytest.approx(end, abs=ERROR_OF_AN_EVENT)


def test_another_waiting_thread_uses_the_same_device_without_disturbing_the_training_thread(cuda, device_events):
    event = device_events()
    event.wait()
    assert cuda.entered == []
    thread = threading.Thread(target=lambda: [event.wait(), event.wait()])
    thread.start()
    thread.join()
    assert [device for _, device in cuda.entered] == [torch.device("cuda:0")]


def test_an_event_is_when_the_device_comes_to_it(cuda, device_events):
    ends = [cuda.submit(0.5), None, None]
    first = device_events()
    ends[1] = cuda.submit(0.25)
    second = device_events()
    assert (first.seconds(), second.seconds()) == (None, None)
    first.wait()
    assert first.seconds() == pytest.approx(ends[0], abs=ERROR_OF_AN_EVENT)
    assert second.seconds() is None
    second.wait()
    assert second.seconds() == pytest.approx(ends[1], abs=ERROR_OF_AN_EVENT)


def test_marking_waits_for_nothing(cuda, device_events, time_source):
    cuda.submit(60.0)
    begin, waits = time_source.now(), cuda.waits
    for _ in range(1000):
        device_events().seconds()
    assert (time_source.now(), cuda.waits) == (begin, waits)


def test_work_under_way_does_not_spoil_the_first_comparison_with_the_clock(cuda, time_source):
    end = cuda.submit(3.0)
    event = CudaEvents("cuda:0", time_source, cuda)()
    assert time_source.now() >= end
    assert event.seconds() == pytest.approx(time_source.now(), abs=ERROR_OF_AN_EVENT)


def test_times_stay_exact_over_hours(cuda, device_events, time_source):
    for _ in range(3 * 360):
        time_source.advance(10.0)
        begin = device_events()
        end_seconds = cuda.submit(0.001)
        end = device_events()
        end.wait()
        assert end.seconds() - begin.seconds() == pytest.approx(0.001, abs=ERROR_OF_AN_EVENT)
    assert end.seconds() == pytest.approx(end_seconds, abs=20e-6)


def test_hours_without_a_mark_cost_one_rounding(cuda, device_events, time_source):
    time_source.advance(3 * HOUR)
    device_events()
    time_source.advance(1.0)
    begin = device_events()
    end_seconds = cuda.submit(0.001)
    end = device_events()
    end.wait()
    assert end.seconds() - begin.seconds() == pytest.approx(0.001, abs=ERROR_OF_AN_EVENT)
    assert end.seconds() == pytest.approx(end_seconds, abs=1e-3)


@pytest.mark.parametrize("drift_fraction", [50e-6, -50e-6])
def test_the_clock_of_the_device_does_not_run_away(time_source, drift_fraction):
    """Uncorrected, the times would be off by half a second after 3 hours."""
    cuda = FakeCuda(time_source, drift_fraction, seconds_to_notice=100e-6)
    device_events = CudaEvents("cuda:0", time_source, cuda)
    for _ in range(3 * 3600):
        begin_seconds = cuda.submit(0.004)  # how far the device runs behind
        begin = device_events()
        end_seconds = cuda.submit(0.01)
        end = device_events()
        end.wait()
        assert end.seconds() - begin.seconds() == pytest.approx(0.01, abs=2e-6)
        assert begin.seconds() == pytest.approx(begin_seconds, abs=0.02)
        time_source.advance(1.0)
    assert end.seconds() == pytest.approx(end_seconds, abs=0.02)


def test_marks_that_nobody_asks_may_go_on_for_days(cuda, device_events, time_source):
    for _ in range(20_000):
        time_source.advance(5.0)
        event = device_events()
    assert event.seconds() == pytest.approx(time_source.now(), abs=1e-3)


def test_a_device_far_behind_is_asked_once_it_is_there(cuda, device_events, time_source):
    ends = []
    for _ in range(5):
        ends.append((cuda.submit(100.0), device_events()))
        time_source.advance(10.0)
    ends[-1][1].wait()
    for end_seconds, event in ends:
        assert event.seconds() == pytest.approx(end_seconds, abs=1e-4)


def test_a_mark_in_another_stream_waits_for_its_reference(cuda, device_events, time_source):
    time_source.advance(10.0)
    cuda.submit(1.0)
    device_events()  # the anchor, in the busy stream
    cuda.stream = Stream()
    event = device_events()
    at = time_source.now()
    assert event.seconds() is None
    event.wait()
    assert event.seconds() == pytest.approx(at, abs=ERROR_OF_AN_EVENT)


def test_every_mark_takes_one_event(cuda, device_events):
    before = cuda.events
    for _ in range(10):
        device_events()
    assert cuda.events == before + 10


def test_marks_of_the_host_are_of_the_present_time(time_source):
    device_events = HostEvents(time_source)
    first = device_events()
    time_source.advance(2.0)
    second = device_events()
    second.wait()
    assert (first.seconds(), second.seconds()) == (time_source.now() - 2.0, time_source.now())


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), "meta"])
def test_a_device_without_its_own_timeline_has_that_of_the_host(time_source, device):
    assert isinstance(device_events_for(device, time_source), HostEvents)
