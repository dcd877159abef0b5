"""Counters that stop within a window and never move again: of GPUs, CPU packages and their memory."""

import json
import time

import pytest

from tests.nvml_driver import DeviceSpec
from tests.support.scripted_gpu import CounterFault, ScriptedGpu, Senses
from zeus_core.device import discover_cpus, discover_gpus
from zeus_core.device.cpu import CpuDiscovery
from zeus_core.monitor import ZeusMonitor
from zeus_core.testing import FakeRapl, VirtualTime

NO_CPUS = CpuDiscovery(cpus=(), unavailable_because="not part of these tests")
WATTS = 270.0
STOP = 3.0


class Monitored:
    """A window of a GPU whose counter stops for good 2 s after the beginning."""

    def __init__(self, script=((60.0, WATTS),), stop=STOP):
        self.time_source = VirtualTime()
        self.gpu = ScriptedGpu(script, self.time_source, Senses(seed=5), [CounterFault(stop, 1e9)])
        self.monitor = ZeusMonitor(gpus=[self.gpu], cpus=NO_CPUS, time_source=self.time_source)
        self.time_source.advance(1.0)
        self.monitor.begin_window("window")

    def end(self, seconds, every=None):
        """End the window; the counter is read every so often."""
        for _ in range(round(seconds / every) if every else 1):
            self.time_source.advance(every or seconds)
            if every:
                self.monitor.read()
        self.true_joules = self.gpu.energy_at(1.0 + seconds) - self.gpu.energy_at(1.0)
        (energy,) = self.monitor.end_window("window").devices.values()
        return energy


def test_the_time_since_the_last_update_is_estimated_from_the_power():
    monitored = Monitored()
    energy = monitored.end(4.0, every=0.1)
    assert energy.method == "estimated"
    assert abs(energy.energy_joules - monitored.true_joules) <= energy.uncertainty_joules <= 100.0


def test_a_load_that_changes_after_the_stop_is_estimated_too():
    monitored = Monitored(script=[(3.5, 350.0), (1.0, 60.0), (0.8, 390.0), (60.0, 200.0)])
    energy = monitored.end(6.0, every=0.1)
    assert energy.method == "estimated"
    assert abs(energy.energy_joules - monitored.true_joules) <= energy.uncertainty_joules


@pytest.mark.parametrize("late", [0.15, 0.25, 0.35])
def test_an_end_soon_after_the_stop_is_not_claimed_as_counted(late):
    monitored = Monitored()
    energy = monitored.end(2.0 + late, every=0.05)
    assert energy.method == "estimated"
    assert abs(energy.energy_joules - monitored.true_joules) <= energy.uncertainty_joules


def test_a_stop_that_nobody_watched_is_found_at_the_end():
    monitored = Monitored()
    energy = monitored.end(4.0)
    assert energy.method == "lost"
    assert "has stopped" in energy.lost_because


def test_a_counter_that_works_is_still_counted_where_nobody_watched():
    monitored = Monitored(script=[(1.0 + 0.2, WATTS), (2.0, 50.0), (60.0, WATTS)], stop=1e6)
    energy = monitored.end(4.0)
    assert energy.method == "counted"
    assert abs(energy.energy_joules - monitored.true_joules) <= energy.uncertainty_joules


@pytest.mark.real_time
def test_a_monitor_watches_the_counters_of_its_windows(make_driver):
    driver = make_driver(DeviceSpec(highest_limit_watts=400.0))
    driver[0].set_load(WATTS)
    monitor = ZeusMonitor(gpus=discover_gpus({}), cpus=NO_CPUS)
    monitor.begin_window("window")
    begin = time.monotonic()
    driver[0].stick_counter(begin + 0.7)
    time.sleep(1.5)
    end = time.monotonic()
    energy = monitor.end_window("window").devices[monitor.devices[0]]
    assert energy.method == "estimated"
    assert abs(energy.energy_joules - driver[0].true_energy_joules(begin, end)) <= energy.uncertainty_joules + 2.0


class Machine:
    """A fake RAPL tree whose counters are moved by virtual time, except those that stand still."""

    def __init__(self, folder):
        self.rapl = FakeRapl(folder)
        package = self.rapl.add_package(0)
        self.zones = {"package": package, "dram": self.rapl.add_zone("dram", within=package)}
        self.time_source = VirtualTime()
        cpus = discover_cpus(self.rapl.root, self.rapl.read_text)
        self.monitor = ZeusMonitor(gpu_indices=[], cpus=cpus, time_source=self.time_source)

    def run(self, seconds, still=()):
        for _ in range(round(seconds / 0.1)):
            self.time_source.advance(0.1)
            for name, zone in self.zones.items():
                if name not in still:
                    self.rapl.add_energy(zone, 4_000_000)
            self.monitor.read()


@pytest.mark.parametrize("still", [("package",), ("dram",), ("package", "dram")])
def test_rapl_that_stands_still_is_lost_and_never_zero(tmp_path, still):
    machine = Machine(tmp_path)
    with machine.monitor.window("window") as window:
        machine.run(2.0, still)
    measurement = window.measurement
    energies = {"package": measurement.cpu_energy[0], "dram": measurement.dram_energy[0]}
    assert energies == {name: None if name in still else pytest.approx(80.0) for name in energies}
    assert set(measurement.lost_because.values()) == {"the RAPL counter stood still"}
    assert measurement.node_energy_joules is None
    assert json.dumps(measurement.to_json()).count("stood still") == len(still)


def test_rapl_that_stops_within_a_window_is_not_counted(tmp_path):
    machine = Machine(tmp_path)
    machine.monitor.begin_window("window")
    machine.run(2.0)
    machine.run(2.0, still=["package"])
    measurement = machine.monitor.end_window("window")
    assert measurement.of("cpu")[0].method == "lost"
    assert measurement.dram_energy == {0: pytest.approx(160.0)}
    assert measurement.of("dram")[0].method == "counted"


def test_rapl_that_stood_still_for_a_moment_is_estimated(tmp_path):
    machine = Machine(tmp_path)
    machine.monitor.begin_window("window")
    machine.run(60.0)
    machine.run(1.5, still=["package"])
    machine.run(200.0)
    measurement = machine.monitor.end_window("window")
    assert measurement.of("cpu")[0].method == "estimated"
    assert abs(measurement.cpu_energy[0] - 261.5 * 40.0) <= measurement.of("cpu")[0].uncertainty_joules


def test_rapl_that_is_late_at_the_end_is_estimated_from_the_mean(tmp_path):
    machine = Machine(tmp_path)
    machine.monitor.begin_window("window")
    machine.run(2.0)
    machine.run(0.8, still=["package"])
    measurement = machine.monitor.end_window("window")
    assert measurement.of("cpu")[0].method == "estimated"
    assert measurement.cpu_energy == {0: pytest.approx(2.8 * 40.0)}
    assert measurement.of("cpu")[0].uncertainty_joules >= 0.8 * 40.0
    assert measurement.of("dram")[0].method == "counted"


def test_a_window_too_short_to_tell_is_no_zero_either(tmp_path):
    machine = Machine(tmp_path)
    with machine.monitor.window("window") as window:
        machine.time_source.advance(0.005)
    energy = window.measurement.devices[machine.monitor.devices[0]]
    assert energy.method == "estimated"
    assert energy.uncertainty_joules >= 0.005 * 500.0
