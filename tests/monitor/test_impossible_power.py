"""Power sensors that show what the board cannot draw, without an energy counter and with one."""

import pytest

from tests.nvml_driver import DeviceSpec
from zeus_core.device import discover_gpus
from zeus_core.device.cpu import CpuDiscovery
from zeus_core.monitor import ZeusMonitor
from zeus_core.testing import VirtualTime

NO_CPUS = CpuDiscovery(cpus=(), unavailable_because="not part of these tests")
BOARD = {"name": "NVIDIA A100-SXM4-80GB", "lowest_limit_watts": 100.0, "highest_limit_watts": 400.0, "idle_watts": 0.0}
STEP_SECONDS = 0.05
WATTS = 228.0


class Monitored:
    """A GPU of the driver in virtual time, sampled every 50 ms."""

    def __init__(self, make_driver, **spec):
        self.driver = make_driver(DeviceSpec(**{**BOARD, "has_energy_counter": False, **spec}))
        self.time_source = VirtualTime()
        self.driver.set_clock(self.time_source.now())
        self.device = self.driver[0]
        self.device.set_load(WATTS)
        self.monitor = ZeusMonitor(gpus=discover_gpus({}), cpus=NO_CPUS, time_source=self.time_source)
        self.run(1.0)

    def run(self, seconds):
        for _ in range(round(seconds / STEP_SECONDS)):
            self.time_source.advance(STEP_SECONDS)
            self.driver.set_clock(self.time_source.now())
            self.monitor.read()

    def window(self, seconds=3.0, spikes=()):
        """Measure a window; spikes are (when, watts, readings)."""
        begun = self.time_source.now()
        self.monitor.begin_window("window")
        for when, watts, times in spikes:
            self.run(when - (self.time_source.now() - begun))
            self.device.spike_power(watts, times)
        self.run(seconds - (self.time_source.now() - begun))
        self.true_joules = self.device.true_energy_joules(begun, self.time_source.now())
        (energy,) = self.monitor.end_window("window").devices.values()
        return energy

    def holds(self, energy):
        return abs(energy.energy_joules - self.true_joules) <= energy.uncertainty_joules


def test_a_sensor_ten_times_too_high_loses_the_energy_with_the_reason(make_driver, caplog):
    monitored = Monitored(make_driver, power_gain=10.0)
    energy = monitored.window()
    assert energy.method == "lost"
    assert "more than the 440 W that the board can draw" in energy.lost_because
    assert monitored.window().method == "lost"
    assert caplog.text.count("2280 W; such readings are dropped") == 1


@pytest.mark.parametrize("when", [0.0, 1.5, 2.95])
def test_one_garbage_spike_does_not_spoil_a_window(make_driver, caplog, when):
    monitored = Monitored(make_driver)
    clean = monitored.window()
    energy = monitored.window(spikes=[(when, 4_000_000.0, 1)])
    assert energy.method == "integrated"
    assert monitored.holds(energy)
    assert energy.energy_joules == pytest.approx(clean.energy_joules, rel=0.02)
    assert energy.uncertainty_joules < clean.uncertainty_joules + 50.0
    assert "such readings are dropped" in caplog.text


def test_a_spike_at_the_first_edge_does_not_spoil_the_window(make_driver):
    monitored = Monitored(make_driver)
    monitored.time_source.advance(5.0)  # nobody has sampled meanwhile
    monitored.driver.set_clock(monitored.time_source.now())
    monitored.device.spike_power(9000.0)
    energy = monitored.window()
    assert energy.method == "integrated"
    assert monitored.holds(energy)
    assert energy.energy_joules == pytest.approx(3 * WATTS, rel=0.05)


def test_a_sensor_that_is_wrong_for_a_while_widens_the_interval(make_driver):
    monitored = Monitored(make_driver)
    energy = monitored.window(5.0, spikes=[(1.0, 3000.0, 20)])
    assert energy.method == "integrated"
    assert monitored.holds(energy)
    assert energy.uncertainty_joules > 100.0


def test_a_sensor_that_is_wrong_most_of_the_time_loses_the_energy(make_driver):
    monitored = Monitored(make_driver)
    energy = monitored.window(3.0, spikes=[(0.5, 3000.0, 49)])
    assert energy.method == "lost"
    assert "impossible" in energy.lost_because


def test_a_counter_is_counted_whatever_the_sensor_shows(make_driver):
    monitored = Monitored(make_driver, has_energy_counter=True, power_gain=10.0)
    energy = monitored.window()
    assert energy.method == "counted"
    assert monitored.holds(energy)


def test_power_at_the_bound_of_a_board_widens_the_interval(make_driver):
    monitored = Monitored(make_driver, follows_limit=False)
    monitored.device.set_load(440.0)
    energy = monitored.window()
    assert energy.method == "integrated"
    assert energy.uncertainty_joules > 0.01 * energy.energy_joules
