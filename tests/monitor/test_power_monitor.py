"""Power, temperature and energy over time: on the driver in C and on simulated GPUs, in virtual time."""

import gc
import math
import threading
import time

import pytest

from tests.nvml_driver import DeviceSpec
from zeus_core.device import SimulatedGpu, discover_gpus, find_preset
from zeus_core.errors import UsageError
from zeus_core.monitor import PowerMonitor, ZeusMonitor
from zeus_core.testing import VirtualTime

BEGIN = 1e8


class Sampled:
    """A power monitor on devices of the driver, which draw 400 W, or 600 W every other half second."""

    def __init__(self, make_driver, *specs, **arguments):
        self.driver = make_driver(*specs)
        self.time_source = VirtualTime(BEGIN)
        self.driver.set_clock(BEGIN)
        for device in self.driver:
            device.set_load([(0.5, 400.0), (0.5, 600.0)], repeat=True)
        self.monitor = ZeusMonitor(gpus=discover_gpus({}), time_source=self.time_source)
        self.power = PowerMonitor(self.monitor, **arguments)
        self.ahead = self.time_source.clock_seconds() - self.time_source.now()

    def pass_seconds(self, seconds, step=0.05):
        """Virtual time has no thread here: samples are taken as the background would."""
        for _ in range(round(seconds / step)):
            self.time_source.advance(step)
            self.driver.set_clock(self.time_source.now())
            self.power._sample_if_due()

    def at(self, seconds):
        return BEGIN + seconds + self.ahead


WITHOUT_COUNTER = DeviceSpec(has_energy_counter=False, power_average_seconds=0.0)


@pytest.mark.parametrize("spec", [DeviceSpec(), WITHOUT_COUNTER])
@pytest.mark.parametrize(("begin", "end"), [(1.0, 9.0), (2.03, 2.51), (0.0, 0.37), (4.07, 4.07)])
def test_the_energy_between_two_times_holds_the_truth(make_driver, spec, begin, end):
    sampled = Sampled(make_driver, spec)
    sampled.pass_seconds(10.0)
    energy = sampled.power.energy(sampled.at(begin), sampled.at(end))[0]
    truth = sampled.driver[0].true_energy_joules(BEGIN + begin, BEGIN + end)
    assert abs(energy.energy_joules - truth) <= energy.uncertainty_joules
    assert energy.uncertainty_joules < 0.6 * 500.0
    assert sampled.power.get_energy(sampled.at(begin), sampled.at(end)) == {0: energy.energy_joules}


def test_memory_is_bounded_and_the_energy_stays_exact(make_driver):
    sampled = Sampled(make_driver, DeviceSpec(), max_samples=64)
    sampled.pass_seconds(200.0)
    samples = sampled.power.timeline(0)
    assert 32 <= len(samples) <= 64
    assert samples[0].at_seconds == pytest.approx(sampled.at(0.0))
    assert sampled.power.period_seconds == pytest.approx(3.2)
    energy = sampled.power.energy(sampled.at(0.0), sampled.at(192.0))[0]
    truth = sampled.driver[0].true_energy_joules(BEGIN, BEGIN + 192.0)
    assert abs(energy.energy_joules - truth) <= energy.uncertainty_joules < 0.02 * truth


def test_a_timeline_has_power_and_temperature_between_two_times(make_driver):
    sampled = Sampled(make_driver, DeviceSpec(), DeviceSpec(temperature_celsius=0))
    sampled.pass_seconds(1.0)
    sampled.driver[0].set_temperature(80)
    sampled.pass_seconds(1.0)
    samples = sampled.power.timeline(0, sampled.at(0.55), sampled.at(1.35))
    assert [sample.power_watts for sample in samples[:5]] == [600.0] * 5
    assert {sample.temperature_celsius for sample in samples} == {45.0, 80.0}
    assert {sample.temperature_celsius for sample in sampled.power.timeline(1)} == {None}
    pairs = sampled.power.get_power_timeline("device_instant", 0, sampled.at(0.55), sampled.at(1.35))
    assert pairs == {0: [(sample.at_seconds, sample.power_watts) for sample in samples]}
    assert sampled.power.get_power_timeline().keys() == {0, 1}


def test_programs_written_for_zeus_find_its_names(make_driver):
    sampled = Sampled(make_driver, DeviceSpec(), DeviceSpec(temperature_celsius=0))
    sampled.pass_seconds(2.0)
    power, ahead = sampled.power, sampled.at
    assert power.get_all_power_timelines(0) == {"device_instant": power.get_power_timeline(gpu_index=0)}
    assert power.get_power(ahead(0.32)) == {0: 400.0, 1: 400.0}
    assert power.get_power(ahead(0.74)) == {0: 600.0, 1: 600.0}
    assert power.get_power(ahead(-9.0)) == power.get_power(ahead(0.0)) == {0: 400.0, 1: 400.0}
    assert power.get_power() == power.get_power(ahead(9.0))
    assert power.get_temperature() is None, "one of the chips shows none"
    assert {celsius for _, celsius in power.get_temperature_timeline(0)[0]} == {45.0}
    assert power.get_temperature_timeline()[1] == []
    power.stop()
    sampled.time_source.advance(1.0)
    assert power.get_energy(ahead(1.0), ahead(2.5)) is None, "it samples no more"


def test_the_energy_until_now_is_known(make_driver):
    sampled = Sampled(make_driver, DeviceSpec())
    sampled.pass_seconds(2.0)
    sampled.time_source.advance(0.07)
    sampled.driver.set_clock(sampled.time_source.now())
    energy = sampled.power.energy(sampled.at(0.5), sampled.at(2.07))[0]
    truth = sampled.driver[0].true_energy_joules(BEGIN + 0.5, BEGIN + 2.07)
    assert abs(energy.energy_joules - truth) <= energy.uncertainty_joules


@pytest.mark.real_time
def test_in_real_time_the_present_is_sampled_for_the_energy_until_now(make_driver):
    make_driver(DeviceSpec())
    with PowerMonitor(ZeusMonitor(gpus=discover_gpus({})), period_seconds=0.5) as power:
        start = time.time()
        for _ in range(3):
            time.sleep(0.02)
            assert power.get_energy(start, time.time()) is not None


def test_what_was_not_sampled_is_lost_and_not_guessed(make_driver):
    sampled = Sampled(make_driver, DeviceSpec())
    sampled.pass_seconds(2.0)
    for begin, end in ((-1.0, 1.0), (1.0, 2.5)):
        assert sampled.power.energy(sampled.at(begin), sampled.at(end))[0].method == "lost"
        assert sampled.power.get_energy(sampled.at(begin), sampled.at(end)) is None


def test_a_device_that_fails_for_a_while_is_a_gap(make_driver):
    sampled = Sampled(make_driver, WITHOUT_COUNTER)
    sampled.pass_seconds(1.0)
    sampled.driver[0].fail(None, 999)
    sampled.pass_seconds(1.0)
    sampled.driver.clear_faults()
    sampled.pass_seconds(1.0)
    watts = [sample.power_watts for sample in sampled.power.timeline(0)]
    assert None in watts
    assert watts[-1] is not None
    assert len(sampled.power.get_power_timeline()[0][0]) == 2


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda power: power.timeline(7), "index is 7"),
        (lambda power: power.get_power_timeline("memory"), "power_domain is 'memory'"),
        (lambda power: power.energy(2.0, 1.0), "end_time is 1.0, before"),
        (lambda power: power.energy(math.nan, 1.0), "a time is nan"),
    ],
)
def test_wrong_arguments_are_named(make_driver, call, words):
    sampled = Sampled(make_driver, DeviceSpec())
    with pytest.raises(UsageError, match=words):
        call(sampled.power)


def test_threads_may_ask_while_it_samples_and_windows_stay():
    time_source = VirtualTime()
    monitor = ZeusMonitor(gpus=[SimulatedGpu(find_preset("A40"), time_source=time_source)], time_source=time_source)
    monitor.begin_window("own")
    with PowerMonitor(monitor, period_seconds=0.01, max_samples=16) as power:
        threads = [threading.Thread(target=lambda: [power.sample() for _ in range(200)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(200):
            time_source.advance(0.01)
            power.timeline(0), power.get_energy(0.0, 1.0)
        for thread in threads:
            thread.join()
        assert len(power.timeline(0)) <= 16
    assert monitor.end_window("own").time == pytest.approx(2.0)


def test_it_ends_with_the_object():
    before = threading.active_count()
    power = PowerMonitor(ZeusMonitor(gpus=[SimulatedGpu(find_preset("A40"), time_source=VirtualTime())]))
    del power
    gc.collect()
    assert threading.active_count() <= before + 4
