"""A counter that fails within a window, which only other readings of the monitor have seen."""

import itertools

import pytest

from tests.support.scripted_gpu import CounterFault, ScriptedGpu, Senses
from zeus_core.device.cpu import CpuDiscovery
from zeus_core.errors import DriverFaultError
from zeus_core.monitor import ZeusMonitor
from zeus_core.testing import VirtualTime

NO_CPUS = CpuDiscovery(cpus=(), unavailable_because="not part of these tests")
WATTS = 300.0
OUTER = (1.0, 9.0)
INNER = (2.05, 3.05)
FAULTS = {
    "stands still and loses that": CounterFault(2.0, 3.2, drop_joules=None),
    "goes back": CounterFault(2.5, 2.5, drop_joules=800.0),
    "starts again at zero": CounterFault(2.5, 2.5, drop_joules=1e5 + 600.0),
    "fails and starts again": CounterFault(2.0, 3.0, fails=True, drop_joules=1e5 + 500.0),
    "fails and loses that": CounterFault(2.0, 3.0, fails=True, drop_joules=None),
    "jumps": CounterFault(2.5, 2.5, drop_joules=-5000.0),
}


class Measured:
    """Measures windows of a GPU with a faulty counter."""

    def __init__(self, *faults, script=((60.0, WATTS),), senses=None):
        self.time_source = VirtualTime()
        self.gpu = ScriptedGpu(script, self.time_source, senses or Senses(seed=3), faults)
        self.monitor = ZeusMonitor(gpus=[self.gpu], cpus=NO_CPUS, time_source=self.time_source)

    def read_at(self, *moments):
        """Readings at these moments."""
        return [self._read_at(moment) for moment in moments]

    def _read_at(self, moment):
        self.time_source.advance(self.gpu.start_seconds + moment - self.time_source.now())
        return self.monitor.read()

    def energy(self, first, second):
        (energy,) = self.monitor.between(first, second).devices.values()
        return energy

    def true_joules(self, begin, end):
        return self.gpu.energy_at(end) - self.gpu.energy_at(begin)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_an_outer_window_is_as_uncertain_as_its_faulty_inner_one(fault):
    measured = Measured(fault)
    outer_begin, inner_begin, inner_end, outer_end = measured.read_at(OUTER[0], *INNER, OUTER[1])
    inner, outer = measured.energy(inner_begin, inner_end), measured.energy(outer_begin, outer_end)
    assert inner.method != "counted"
    if inner.energy_joules is not None:
        assert abs(inner.energy_joules - measured.true_joules(*INNER)) <= inner.uncertainty_joules
    assert outer.method == "estimated"
    assert abs(outer.energy_joules - measured.true_joules(*OUTER)) <= outer.uncertainty_joules
    assert outer.energy_joules == pytest.approx(measured.true_joules(*OUTER), rel=0.1), "the power readings bridge it"


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_windows_that_end_before_the_fault_or_begin_after_it_are_counted(fault):
    measured = Measured(fault)
    readings = measured.read_at(0.5, 1.9, 3.5, 5.0, 9.0)
    for first, second, begin, end in [(0, 1, 0.5, 1.9), (3, 4, 5.0, 9.0)]:
        energy = measured.energy(readings[first], readings[second])
        assert energy.method == "counted"
        assert abs(energy.energy_joules - measured.true_joules(begin, end)) <= energy.uncertainty_joules


def test_a_counter_that_has_caught_up_is_trusted_again():
    measured = Measured(CounterFault(2.0, 3.0))
    readings = measured.read_at(1.0, 2.05, 2.95, 3.2, 5.0)
    inner = measured.energy(readings[1], readings[2])
    assert inner.method == "estimated"
    assert abs(inner.energy_joules - measured.true_joules(2.05, 2.95)) <= inner.uncertainty_joules
    outer = measured.energy(readings[0], readings[4])
    assert outer.method == "counted"
    assert outer.energy_joules == pytest.approx(measured.true_joules(1.0, 5.0), abs=0.1 * WATTS)


def test_a_call_that_fails_once_leaves_the_counted_energy_around_it():
    measured = Measured(CounterFault(2.4, 2.6, fails=True))
    first, failed, last = measured.read_at(1.0, 2.5, 5.0)
    assert failed.has_fault
    assert measured.energy(first, failed).lost_because == "not ready"
    outer = measured.energy(first, last)
    assert outer.method == "counted"
    assert abs(outer.energy_joules - measured.true_joules(1.0, 5.0)) <= outer.uncertainty_joules


def test_a_counter_not_ready_from_the_start_is_bridged_until_it_is():
    measured = Measured(CounterFault(-1.0, 2.0, fails=True))
    readings = measured.read_at(0.5, 1.0, 2.5, 9.0)
    for first, second in [(0, 1), (0, 2)]:
        energy = measured.energy(readings[first], readings[second])
        assert (energy.method, energy.lost_because) == ("lost", "not ready")
    outer = measured.energy(readings[0], readings[3])
    assert outer.method == "estimated"
    assert abs(outer.energy_joules - measured.true_joules(0.5, 9.0)) <= outer.uncertainty_joules
    assert outer.energy_joules == pytest.approx(measured.true_joules(0.5, 9.0), rel=0.1)
    assert measured.energy(readings[2], readings[3]).method == "counted"


def test_short_windows_see_together_that_a_counter_stands_still(caplog):
    measured = Measured(CounterFault(2.0, 60.0))
    readings = measured.read_at(*(1.0 + 0.1 * number for number in range(60)))
    methods = {measured.energy(first, second).method for first, second in itertools.pairwise(readings[30:])}
    assert methods == {"lost"}
    assert caplog.text.count("is lost for") == 1
    outer = measured.energy(readings[0], readings[-1])
    assert outer.method == "estimated"
    assert abs(outer.energy_joules - measured.true_joules(1.0, 6.9)) <= outer.uncertainty_joules <= 120.0


def test_a_reading_that_another_thread_overtakes_is_no_counter_that_goes_back():
    measured = Measured()
    (meter,) = measured.monitor._instruments._meters
    first, last = measured.read_at(1.0, 3.0)
    overtaken = meter._trail.follow(last.gpus[0].at - 0.5, first.gpus[0].counter_joules + 1.0, WATTS)
    assert overtaken.fault is None
    (later,) = measured.read_at(5.0)
    assert measured.energy(first, later).method == "counted"


def test_a_gpu_whose_every_call_fails_for_a_while_is_bridged_honestly(monkeypatch):
    measured = Measured(CounterFault(2.0, 3.0, fails=True, drop_joules=None))
    outer_begin, before = measured.read_at(1.0, 1.95)

    def fail():
        raise DriverFaultError("not ready")

    with monkeypatch.context() as patch:
        patch.setattr(measured.monitor._instruments._meters[0], "_read_power_watts", fail)
        measured.read_at(2.5)
    (outer_end,) = measured.read_at(5.0)
    outer = measured.energy(outer_begin, outer_end)
    assert before.gpus[0].fault is None
    assert (
        outer.method == "lost" or abs(outer.energy_joules - measured.true_joules(1.0, 5.0)) <= outer.uncertainty_joules
    )


def test_a_call_that_takes_long_shows_no_jump(monkeypatch):
    measured = Measured()
    (first,) = measured.read_at(1.0)
    (meter,) = measured.monitor._instruments._meters
    read = meter._read_counter_joules

    def hang():
        measured.time_source.advance(12.0)
        return read()

    with monkeypatch.context() as patch:
        patch.setattr(meter, "_read_counter_joules", hang)
        (hung,) = measured.read_at(3.0)
    (last,) = measured.read_at(20.0)
    for reading, moment in [(hung, 3.0), (last, 20.0)]:
        energy = measured.energy(first, reading)
        truth = measured.true_joules(1.0, moment)
        assert energy.method == "lost" or abs(energy.energy_joules - truth) <= energy.uncertainty_joules
    assert measured.energy(first, last).method == "counted"


def test_a_gpu_silent_from_the_start_is_lost_with_the_drivers_reason(monkeypatch):
    measured = Measured(CounterFault(-1.0, 60.0, fails=True))

    def fail():
        raise DriverFaultError("not ready")

    monkeypatch.setattr(measured.monitor._instruments._meters[0], "_read_power_watts", fail)
    first, last = measured.read_at(1.0, 3.0)
    assert measured.energy(first, last).lost_because == "not ready"
