"""Gaps between steps, of GPUs that run behind the program too."""

import sys
from types import SimpleNamespace

import pytest

from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import GlobalPowerLimitOptimizer
from zeus_core.ports.step_gaps import StepGaps
from zeus_core.training import TrainingEnergy


class FakeTorchGpu:
    """A GPU that works off its queue while the program goes on, as torch shows it.

    Attributes:
        now: The present, in seconds.
        done_at: When all of the queue will be done.
    """

    def __init__(self):
        self.now = self.done_at = 0.0
        self.events = self.synchronized = 0
        self.cuda = SimpleNamespace(is_initialized=lambda: True, Event=lambda enable_timing: FakeEvent(self))

    def launch(self, seconds, host_seconds=0.0):
        self.done_at = max(self.done_at, self.now) + seconds
        self.now += host_seconds

    def wait(self):
        self.now = max(self.now, self.done_at)


class FakeEvent:
    device = "cuda:0"

    def __init__(self, gpu):
        self.gpu = gpu
        gpu.events += 1

    def record(self):
        self.at = max(self.gpu.now, self.gpu.done_at)

    def query(self):
        return self.gpu.now >= self.at

    def synchronize(self):
        self.gpu.synchronized += 1
        self.gpu.now = max(self.gpu.now, self.at)

    def elapsed_time(self, later):
        return (later.at - self.at) * 1000


@pytest.fixture
def gpu(monkeypatch):
    gpu = FakeTorchGpu()
    monkeypatch.setitem(sys.modules, "torch", gpu)
    return gpu


def step(gpu, gaps, seconds=0.1, host_seconds=0.005):
    unusual = gaps.begin_step(gpu.now)
    gpu.launch(seconds, host_seconds)
    gaps.end_step(gpu.now)
    return unusual


def test_a_program_that_waits_for_steps_it_has_queued_evaluates_nothing(gpu):
    gaps = StepGaps()
    for number in range(1, 101):
        assert step(gpu, gaps) is None
        if number % 25 == 0:
            gpu.wait()  # as `loss.item()` does


@pytest.mark.parametrize("waits", [True, False], ids=["it waits for results", "it waits for nothing"])
def test_an_evaluation_of_a_gpu_that_runs_behind_begins_after_the_steps(gpu, waits):
    gaps, unusual = StepGaps(), []
    for number in range(1, 81):
        unusual.append(step(gpu, gaps))
        if number % 20 == 0:
            gpu.wait()
            gpu.launch(3.0, 0.3)
            if waits:
                gpu.wait()
    found = [seconds for seconds in unusual if seconds is not None]
    assert found == pytest.approx([3.0, 3.0, 3.0])


def test_a_gpu_that_has_not_finished_the_step_is_not_waited_for(gpu):
    gaps = StepGaps()
    for number in range(1, 101):
        assert step(gpu, gaps) is None
        gpu.now += 0.05 if number % 25 == 0 else 0.0  # the host's time: ten steps of its own
    assert gpu.synchronized == 0


def test_a_loop_that_reports_no_begin_of_steps_has_no_gaps():
    gaps = StepGaps()
    for second in range(100):
        gaps.end_step(float(second * second))
        assert gaps.report(second * second + 0.5) is None


@pytest.mark.parametrize("reports", ["by itself", "through TrainingEnergy"])
def test_a_step_both_searched_and_accounted_has_one_queued_event(gpu, time_source, reports):
    device = SimulatedGpu(find_preset("A100-SXM4-80GB"), time_source=time_source)
    monitor = ZeusMonitor(gpus=[device], time_source=time_source, synchronize=lambda _: None)
    search = GlobalPowerLimitOptimizer(monitor, quiet=True)
    observer = TrainingEnergy(optimizer=search, quiet=True) if reports == "through TrainingEnergy" else search
    observer.on_train_begin()
    for _ in range(20):
        observer.on_step_begin()
        device.execute(Work(0.1, 300.0))
        observer.on_step_end()
    search.close()
    assert gpu.events == 20
