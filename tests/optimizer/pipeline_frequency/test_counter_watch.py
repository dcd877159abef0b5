"""Steps of an energy counter, found by asking it."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.errors import DeviceLostError, DriverFaultError, NotSupportedError
from zeus_core.optimizer.pipeline_frequency.counter_watch import POLL_SECONDS, CounterWatch
from zeus_core.testing import FaultyGpu, VirtualBackground, VirtualClock

A100 = find_preset("A100-SXM4-80GB")
WAITING_WATTS = A100.physics.waiting_power_watts


class SlowCounterGpu(SimulatedGpu):
    """Its counter is the number of the latest step, and takes time to be read."""

    def __init__(self, clock, period_seconds, phase, before_seconds, after_seconds):
        super().__init__(A100, clock=clock)
        self.energy_counter_period_seconds = period_seconds
        self._virtual, self._delays = clock, (before_seconds, after_seconds)
        self._phase_seconds = phase * period_seconds

    def step_seconds(self, number):
        return self._phase_seconds + number * self.energy_counter_period_seconds

    def read_energy_counter_joules(self):
        before_seconds, after_seconds = self._delays
        self._virtual.advance(before_seconds)
        number = (self._virtual.now() - self._phase_seconds) // self.energy_counter_period_seconds
        self._virtual.advance(after_seconds)
        return number


def watch(gpu, clock, seconds):
    found, until = CounterWatch(gpu, clock, gpu.energy_counter_period_seconds), clock.now() + seconds
    while clock.now() < until:
        found.poll()
        clock.advance(POLL_SECONDS)
    return found.take()


@settings(max_examples=50)
@given(st.sampled_from([0.02, 0.025, 0.1]), st.floats(0.0, 0.99), st.floats(0.0, 0.0009), st.floats(0.0, 0.0009))
def test_each_step_is_within_its_doubt_also_where_reading_takes_time(period_seconds, phase, before, after):
    clock = VirtualClock()
    gpu = SlowCounterGpu(clock, period_seconds, phase, before, after)
    steps = watch(gpu, clock, 2.0)
    numbers = [step.energy_joules for step in steps]
    assert numbers == [numbers[0] + place for place in range(len(numbers))], "none is missed"
    assert len(steps) >= 2.0 / period_seconds - 2
    for step in steps:
        assert step.at_seconds == pytest.approx(
            gpu.step_seconds(step.energy_joules), abs=step.half_width_seconds + 1e-9
        )
        assert step.half_width_seconds <= POLL_SECONDS / 2 + before + after + 1e-9


def test_between_two_steps_the_energy_is_exact(clock):
    gpu = SimulatedGpu(A100, clock=clock)
    found = CounterWatch(gpu, clock, gpu.energy_counter_period_seconds)
    VirtualBackground(clock).repeatedly(found.poll, POLL_SECONDS)
    work = Work(0.13, 300.0, 0.8)
    begin_joules, begin_seconds = gpu.exact_energy_joules(), clock.now()
    for _ in range(20):
        gpu.execute(work)
    mean_watts = (gpu.exact_energy_joules() - begin_joules) / (clock.now() - begin_seconds)
    first, *_, last = found.take()
    measured = (last.energy_joules - first.energy_joules) / (last.at_seconds - first.at_seconds)
    assert measured == pytest.approx(mean_watts, rel=0.02)


def test_the_driver_is_asked_only_when_a_step_is_near(clock):
    gpu = SimulatedGpu(A100, clock=clock)
    reads = []

    class CountedGpu(FaultyGpu):
        def read_energy_counter_joules(self):
            reads.append(clock.now())
            return super().read_energy_counter_joules()

    steps = watch(CountedGpu(gpu), clock, 5.0)
    assert len(steps) == 50
    assert len(reads) < 0.2 * 5.0 / POLL_SECONDS


def test_the_last_step_is_the_first_of_the_next_call(clock):
    found = CounterWatch(SimulatedGpu(A100, clock=clock), clock, 0.1)
    assert found.take() == []
    VirtualBackground(clock).repeatedly(found.poll, POLL_SECONDS)
    clock.advance(1.0)
    first = found.take()
    clock.advance(1.0)
    second = found.take()
    assert second[0] == first[-1]
    assert [it.energy_joules for it in first + second[1:]] == sorted({it.energy_joules for it in first + second})


@pytest.mark.parametrize("error", [DriverFaultError("no answer"), DeviceLostError("gone")])
def test_steps_missed_while_the_driver_failed_are_not_guessed_at(clock, error):
    gpu = FaultyGpu(SimulatedGpu(A100, clock=clock))
    found = CounterWatch(gpu, clock, gpu.energy_counter_period_seconds)
    VirtualBackground(clock).repeatedly(found.poll, POLL_SECONDS)
    clock.advance(1.0)
    gpu.fail("read_energy_counter_joules", error)
    clock.advance(1.0)
    gpu.heal()
    clock.advance(1.0)
    for before, after in itertools.pairwise(found.take()):
        true_seconds = (after.energy_joules - before.energy_joules) / WAITING_WATTS
        doubt = before.half_width_seconds + after.half_width_seconds
        assert after.at_seconds - before.at_seconds == pytest.approx(true_seconds, abs=doubt + 2e-5)
        assert doubt <= 2 * POLL_SECONDS


class TestWithoutACounter:
    @pytest.fixture
    def gpu(self, clock):
        gpu = FaultyGpu(SimulatedGpu(A100, clock=clock))
        gpu.fail("read_energy_counter_joules", NotSupportedError("no counter"))
        return gpu

    def test_power_is_added_up(self, clock, gpu):
        steps = watch(gpu, clock, 1.0)
        joules = steps[-1].energy_joules - steps[0].energy_joules
        assert joules == pytest.approx(WAITING_WATTS * (steps[-1].at_seconds - steps[0].at_seconds), rel=1e-5)
        assert len(steps) == pytest.approx(1.0 / POLL_SECONDS, abs=2)

    def test_energy_is_nowhere_made_up_while_power_could_not_be_read(self, clock, gpu):
        found = CounterWatch(gpu, clock, gpu.energy_counter_period_seconds)
        VirtualBackground(clock).repeatedly(found.poll, POLL_SECONDS)
        clock.advance(0.5)
        gpu.fail("read_power_watts", DriverFaultError("no answer"), times=100)
        clock.advance(0.5)
        steps = found.take()
        watts = [
            (after.energy_joules - before.energy_joules) / (after.at_seconds - before.at_seconds)
            for before, after in itertools.pairwise(steps)
        ]
        (across,) = [it for it in watts if it != pytest.approx(WAITING_WATTS, rel=1e-4)]
        assert across < 0, "it begins anew, which spoils one interval"
