"""Readings that are watched for a moment: what a counter did not show at an edge."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.errors import DriverFaultError
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor._counted_energy import counted_energy
from zeus_core.monitor._integral import PendingIntegral
from zeus_core.monitor._reading import GpuEdge
from zeus_core.testing import FaultyGpu

PERIOD = 0.1
PEAK = 400.0


class Load:
    """A power that is one value before a moment and another one after it, and the counter it moves."""

    def __init__(self, before_watts, after_watts, change_at, phase):
        self.before, self.after, self.change_at, self.phase = before_watts, after_watts, change_at, phase

    def energy(self, at):
        return self.before * min(at, self.change_at) + self.after * max(at - self.change_at, 0.0)

    def edge(self, at):
        step = (at - self.phase) // PERIOD * PERIOD + self.phase
        return GpuEdge(at, self.energy(step), self.before if at < self.change_at else self.after)

    def aligned(self, at):
        edge = self.edge(at)
        after = PendingIntegral(edge)
        moment = at
        while not after.is_over:
            moment += 0.005
            pending = after.add(self.edge(moment))
        return edge._replace(pending=pending)


watts = st.floats(60, PEAK)


@given(watts, watts, st.floats(9.8, 10.2), st.floats(0, PERIOD), st.floats(10.0, 10.1), st.floats(0.05, 3.0))
def test_the_truth_lies_in_the_interval_which_is_small(before, after, change_at, phase, begin, seconds):
    load = Load(before, after, change_at, phase)
    end = begin + seconds
    energy = counted_energy(load.aligned(begin), load.aligned(end), PERIOD, PEAK)
    truth = load.energy(end) - load.energy(begin)
    assert abs(energy.energy_joules - truth) <= energy.uncertainty_joules + 1e-6
    assert energy.uncertainty_joules <= 2 * PEAK * 0.005 + 2 * abs(after - before) * 0.005 + 1e-6

    with_one = counted_energy(load.aligned(begin), load.edge(end), PERIOD, PEAK)
    assert abs(with_one.energy_joules - truth) <= with_one.uncertainty_joules + 1e-6
    assert with_one.uncertainty_joules <= PERIOD * PEAK + 2 * PEAK * 0.005


def test_a_gap_between_the_samples_tells_nothing():
    edge = GpuEdge(0.0, 5.0, 300.0)
    after = PendingIntegral(edge)
    assert after.add(GpuEdge(0.05, 30.0, 300.0)) is None
    assert after.is_over


def aligned_measurement(monitor, gpu):
    """A measurement, and the lowest and the highest that its true energy can be."""
    before = gpu.exact_energy_joules()
    first = monitor.read(align=True)
    begun = gpu.exact_energy_joules()
    time.sleep(0.3)
    ending = gpu.exact_energy_joules()
    second = monitor.read(align=True)
    after = gpu.exact_energy_joules()
    time.sleep(0.15)
    return monitor.between(first, second), ending - begun, after - before


@pytest.mark.real_time
def test_an_aligned_reading_is_much_surer_than_a_plain_one():
    gpu = SimulatedGpu(find_preset("A100"))
    monitor = ZeusMonitor(gpus=[gpu])
    gpu.submit(Work(20.0, 484.9, 0.938, 0.744))
    uncertainties = []
    for _ in range(20):  # on a busy machine an edge may go unwatched
        measurement, lowest_joules, highest_joules = aligned_measurement(monitor, gpu)
        uncertainty = measurement.gpu_uncertainty_joules[0]
        assert measurement.gpu_method[0] == "counted"
        assert lowest_joules - uncertainty <= measurement.total_energy <= highest_joules + uncertainty
        uncertainties.append(uncertainty)
        if uncertainty < 10:
            return
    raise AssertionError(uncertainties)


@pytest.mark.real_time
@pytest.mark.parametrize("precise", [False, True])
def test_a_gpu_that_fails_while_it_is_watched_leaves_the_reading_as_it_was(precise):
    simulated = SimulatedGpu(find_preset("A100"))
    gpu = FaultyGpu(simulated)
    monitor = ZeusMonitor(gpus=[gpu], precise=precise)
    gpu.fail("read_power_watts", DriverFaultError("unknown error"))
    before = simulated.exact_energy_joules()
    first = monitor.read(align=True)
    begun = simulated.exact_energy_joules()
    time.sleep(0.25)
    gpu.heal()
    ending = simulated.exact_energy_joules()
    second = monitor.read(align=True)
    after = simulated.exact_energy_joules()
    gpu.fail("read_energy_counter_joules", DriverFaultError("unknown error"))
    time.sleep(0.25)
    measurement = monitor.between(first, second)
    uncertainty = measurement.total_uncertainty_joules
    assert ending - begun - uncertainty <= measurement.total_energy <= after - before + uncertainty


def test_virtual_time_cannot_be_watched_and_nothing_breaks(monitor, gpu, work):
    first = monitor.read(align=True)
    gpu.execute(work)
    second = monitor.read(align=True)
    assert monitor.between(first, second).total_energy == pytest.approx(200, rel=0.3)
