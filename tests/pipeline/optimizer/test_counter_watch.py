"""Steps of an energy counter, found by asking it."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.errors import DeviceLostError, DriverFaultError, NotSupportedError
from zeus_core.pipeline.profile._counter_updates import POLL_SECONDS, CounterWatch
from zeus_core.testing import FaultyGpu, VirtualBackground, VirtualTime

A100 = find_preset("A100-SXM4-80GB")
WAITING_WATTS = A100.physics.blocking_power_watts


class SlowCounterGpu(SimulatedGpu):
    """Its counter is the number of the latest step, and takes time to be read."""

    def __init__(self, time_source, period_seconds, phase, before_seconds, after_seconds):
        super().__init__(A100, time_source=time_source)
        self.energy_counter_period_seconds = period_seconds
        self._virtual, self._delays = time_source, (before_seconds, after_seconds)
        self._phase_seconds = phase * period_seconds

    def step_seconds(self, number):
        return self._phase_seconds + number * self.energy_counter_period_seconds

    def read_energy_counter_joules(self):
        before_seconds, after_seconds = self._delays
        self._virtual.advance(before_seconds)
        number = (self._virtual.now() - self._phase_seconds) // self.energy_counter_period_seconds
        self._virtual.advance(after_seconds)
        return number


def watch(gpu, time_source, seconds):
    found, until = CounterWatch(gpu, time_source, gpu.energy_counter_period_seconds), time_source.now() + seconds
    while time_source.now() < until:
        found.poll()
        time_source.advance(POLL_SECONDS)
    return found.take()


@settings(max_examples=50)
@given(st.sampled_from([0.02, 0.025, 0.1]), st.floats(0.0, 0.99), st.floats(0.0, 0.0009), st.floats(0.0, 0.0009))
def test_each_update_is_within_its_uncertainty_also_where_reading_takes_time(period_seconds, phase, before, after):
    time_source = VirtualTime()
    gpu = SlowCounterGpu(time_source, period_seconds, phase, before, after)
    steps = watch(gpu, time_source, 2.0)
    numbers = [step.energy_joules for step in steps]
    assert numbers == [numbers[0] + place for place in range(len(numbers))], "none is missed"
    assert len(steps) >= 2.0 / period_seconds - 2
    for step in steps:
        assert step.at == pytest.approx(gpu.step_seconds(step.energy_joules), abs=step.half_width_seconds + 1e-9)
        assert step.half_width_seconds <= POLL_SECONDS / 2 + before + after + 1e-9


def test_between_two_steps_the_energy_is_exact(time_source):
    gpu = SimulatedGpu(A100, time_source=time_source)
    found = CounterWatch(gpu, time_source, gpu.energy_counter_period_seconds)
    VirtualBackground(time_source).repeatedly(found.poll, POLL_SECONDS)
    work = Work(0.13, 300.0, 0.8)
    begin_joules, begin_seconds = gpu.exact_energy_joules(), time_source.now()
    for _ in range(20):
        gpu.execute(work)
    mean_watts = (gpu.exact_energy_joules() - begin_joules) / (time_source.now() - begin_seconds)
    first, *_, last = found.take()
    measured = (last.energy_joules - first.energy_joules) / (last.at - first.at)
    assert measured == pytest.approx(mean_watts, rel=0.02)


def test_the_driver_is_asked_only_when_a_step_is_near(time_source):
    gpu = SimulatedGpu(A100, time_source=time_source)
    reads = []

    class CountedGpu(FaultyGpu):
        def read_energy_counter_joules(self):
            reads.append(time_source.now())
            return super().read_energy_counter_joules()

    steps = watch(CountedGpu(gpu), time_source, 5.0)
    assert len(steps) == 50
    assert len(reads) < 0.2 * 5.0 / POLL_SECONDS


def test_the_last_step_is_the_first_of_the_next_call(time_source):
    found = CounterWatch(SimulatedGpu(A100, time_source=time_source), time_source, 0.1)
    assert found.take() == []
    VirtualBackground(time_source).repeatedly(found.poll, POLL_SECONDS)
    time_source.advance(1.0)
    first = found.take()
    time_source.advance(1.0)
    second = found.take()
    assert second[0] == first[-1]
    assert [update.energy_joules for update in first + second[1:]] == sorted(
        {update.energy_joules for update in first + second}
    )


@pytest.mark.parametrize("error", [DriverFaultError("no answer"), DeviceLostError("gone")])
def test_steps_missed_while_the_driver_failed_are_not_guessed_at(time_source, error):
    gpu = FaultyGpu(SimulatedGpu(A100, time_source=time_source))
    found = CounterWatch(gpu, time_source, gpu.energy_counter_period_seconds)
    VirtualBackground(time_source).repeatedly(found.poll, POLL_SECONDS)
    time_source.advance(1.0)
    gpu.fail("read_energy_counter_joules", error)
    time_source.advance(1.0)
    gpu.heal()
    time_source.advance(1.0)
    for before, after in itertools.pairwise(found.take()):
        true_seconds = (after.energy_joules - before.energy_joules) / WAITING_WATTS
        uncertainty = before.half_width_seconds + after.half_width_seconds
        assert after.at - before.at == pytest.approx(true_seconds, abs=uncertainty + 2e-5)
        assert uncertainty <= 2 * POLL_SECONDS


class TestWithoutACounter:
    @pytest.fixture
    def gpu(self, time_source):
        gpu = FaultyGpu(SimulatedGpu(A100, time_source=time_source))
        gpu.fail("read_energy_counter_joules", NotSupportedError("no counter"))
        return gpu

    def test_power_is_added_up(self, time_source, gpu):
        steps = watch(gpu, time_source, 1.0)
        joules = steps[-1].energy_joules - steps[0].energy_joules
        assert joules == pytest.approx(WAITING_WATTS * (steps[-1].at - steps[0].at), rel=1e-5)
        assert len(steps) == pytest.approx(1.0 / POLL_SECONDS, abs=2)

    def test_energy_is_nowhere_made_up_while_power_could_not_be_read(self, time_source, gpu):
        found = CounterWatch(gpu, time_source, gpu.energy_counter_period_seconds)
        VirtualBackground(time_source).repeatedly(found.poll, POLL_SECONDS)
        time_source.advance(0.5)
        gpu.fail("read_power_watts", DriverFaultError("no answer"), times=100)
        time_source.advance(0.5)
        steps = found.take()
        watts = [
            (after.energy_joules - before.energy_joules) / (after.at - before.at)
            for before, after in itertools.pairwise(steps)
        ]
        (across,) = [power for power in watts if power != pytest.approx(WAITING_WATTS, rel=1e-4)]
        assert across < 0, "it begins anew, which spoils one interval"
