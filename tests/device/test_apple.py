"""The GPU of Apple silicon, by a module in the place of `zeus_apple_silicon`, with uneven steps and missing fields."""

import platform
import random
import sys
import time
from types import ModuleType, SimpleNamespace

import pytest

from zeus_core.cli.doctor.gpus import gpu_remarks
from zeus_core.cli.doctor.machine import Driver, check_driver, other_drivers
from zeus_core.cli.doctor.rights import Rights, check_clock_rights, check_limit_rights
from zeus_core.device import apple, discover_gpus
from zeus_core.errors import DeviceError, DriverFaultError, NotSupportedError
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer.power_limit import Energy, GlobalPowerLimitOptimizer
from zeus_core.testing import VirtualTime

# What the fixtures replace, for parts that wait by it or import what depends on it.
OF_THIS_MACHINE = [
    (module, name, getattr(module, name))
    for module, name in ((sys, "platform"), (platform, "system"), (platform, "machine"), (time, "monotonic"))
]


class Chip(ModuleType):
    """As the package: integers in mJ since the monitor was made, published about every 1.05 s, give or take half."""

    def __init__(self, time_source, watts=30.0):
        super().__init__("zeus_apple_silicon")
        self.time_source, self.watts, self.random = time_source, watts, random.Random(1)
        self.begin = self.shown_at = self.due = time_source.now()
        self.AppleEnergyMonitor = self._open
        self.has_sram = self.has_gpu = self.has_dram = True
        self.fault = None

    def _open(self):
        if self.fault is not None:
            raise self.fault
        return self

    def get_cumulative_energy(self):
        if self.fault is not None:
            raise self.fault
        now = self.time_source.now()
        while self.due <= now:
            self.shown_at, self.due = self.due, self.due + self.random.uniform(0.5, 1.6)
        millijoules = round(1e3 * self.watts * (self.shown_at - self.begin))
        return SimpleNamespace(
            cpu_total_mj=millijoules // 2,
            gpu_mj=millijoules if self.has_gpu else None,
            gpu_sram_mj=millijoules // 10 if self.has_sram else None,
            dram_mj=millijoules // 5 if self.has_dram else None,
            ane_mj=0 if self.has_sram else None,
        )


@pytest.fixture
def time_source(monkeypatch):
    virtual = VirtualTime(1e6)
    monkeypatch.setattr(time, "monotonic", virtual.now)
    return virtual


@pytest.fixture
def chip(monkeypatch, time_source):
    made = Chip(time_source)
    monkeypatch.setitem(sys.modules, "zeus_apple_silicon", made)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    return made


@pytest.mark.parametrize("has_sram", [True, False])
@pytest.mark.parametrize("seconds", [1.0, 5.0, 30.0, 600.0])
def test_windows_hold_the_truth_and_short_ones_say_how_uncertain_they_are(chip, time_source, seconds, has_sram):
    chip.has_sram = has_sram
    (gpu,) = discover_gpus({})
    monitor = ZeusMonitor(gpus=[gpu], time_source=time_source)
    for _ in range(60):
        time_source.advance(0.1)
        monitor.read()
    monitor.begin_window("work")
    for _ in range(round(10 * seconds)):
        time_source.advance(0.1)
        monitor.read()
    measurement = monitor.end_window("work")
    energy = next(energy for device, energy in measurement.devices.items() if device.kind == "gpu")
    truth = 30.0 * (1.1 if has_sram else 1.0) * seconds
    assert abs(energy.energy_joules - truth) <= energy.uncertainty_joules
    if seconds >= 30.0:
        assert energy.uncertainty_joules < 0.25 * truth
    if seconds <= 5.0:
        assert energy.uncertainty_joules > 0.1 * truth


@pytest.mark.parametrize("has_dram", [True, False])
@pytest.mark.parametrize("seconds", [3.0, 30.0, 600.0])
def test_the_cpu_and_its_memory_are_measured_too(chip, time_source, seconds, has_dram):
    chip.has_dram = has_dram
    monitor = ZeusMonitor(gpus=discover_gpus({}), time_source=time_source)
    for number in range(60 + round(10 * seconds)):
        if number == 60:
            monitor.begin_window("work")
        time_source.advance(0.1)
        monitor.read()
    devices = {device.kind: energy for device, energy in monitor.end_window("work").devices.items()}
    assert devices.keys() == ({"gpu", "cpu", "dram"} if has_dram else {"gpu", "cpu"})
    for kind, watts in {"cpu": 15.0, "dram": 6.0}.items():
        if kind in devices:
            assert abs(devices[kind].energy_joules - watts * seconds) <= devices[kind].uncertainty_joules
            assert (devices[kind].uncertainty_joules < 0.25 * watts * seconds) == (seconds >= 30.0)


PEAKS = [
    ("Apple M1", 65.0),
    ("Apple M4 Pro", 140.0),
    ("Apple M2 Max", 145.0),
    ("Apple M2 Ultra", 300.0),
    ("Apple X9", 300.0),
]


@pytest.mark.parametrize(("name", "peak_watts"), PEAKS)
def test_the_peak_is_that_of_a_whole_mac_with_this_chip(chip, time_source, monkeypatch, name, peak_watts):
    monkeypatch.setattr(apple, "_chip_name", lambda: name)
    monitor = ZeusMonitor(gpus=discover_gpus({}), time_source=time_source)
    assert monitor.peak_watts == {0: peak_watts}


def test_twelve_seconds_on_a_small_mac_are_known_to_a_third(chip, time_source, monkeypatch):
    monkeypatch.setattr(apple, "_chip_name", lambda: "Apple M1")
    monitor = ZeusMonitor(gpus=discover_gpus({}), time_source=time_source)
    chip.watts = 12.0
    for number in range(180):
        if number == 60:
            monitor.begin_window("work")
        time_source.advance(0.1)
        monitor.read()
    (energy,) = [e for device, e in monitor.end_window("work").devices.items() if device.kind == "gpu"]
    truth = 12.0 * 1.1 * 12.0
    assert abs(energy.energy_joules - truth) <= energy.uncertainty_joules < 0.35 * truth


@pytest.mark.parametrize("begins_at", [0.0, 0.3, 0.7, 1.1])
def test_a_counter_of_two_seconds_is_looked_at_for_as_long(chip, time_source, monkeypatch, capsys, begins_at):
    monkeypatch.setattr(time, "sleep", time_source.advance)
    time_source.advance(begins_at)
    assert gpu_remarks(discover_gpus({})) == [None]
    chip.watts, chip.begin = 0.0, time_source.now()
    assert "stands still" in str(gpu_remarks(discover_gpus({})))


def test_no_right_is_promised_for_what_a_mac_has_not(chip):
    rights = Rights(True, "this process is root")
    for check in (check_limit_rights(rights, discover_gpus({})), check_clock_rights(rights, discover_gpus({}))):
        assert (check.state, check.sentence, check.fix) == ("missing", "no visible GPU has this", None)


def test_a_mac_is_not_told_to_get_a_driver_of_nvidia(chip, tmp_path):
    check = check_driver(Driver(fault="there is none"), tmp_path, others=other_drivers(discover_gpus({})))
    assert (check.name, check.state, check.fix) == ("GPU driver", "ok", None)
    assert check.sentence.startswith("zeus-apple-silicon")


def test_the_identity_lasts_and_nothing_can_be_set(chip):
    first, second = discover_gpus({})[0], discover_gpus({})[0]
    assert first.uuid == second.uuid
    assert first.uuid.startswith("GPU-")
    assert first.name == "Apple silicon GPU"
    for call in (first.read_power_limit_range_watts, first.read_supported_sm_clocks_mhz, first.unlock_sm_clock):
        with pytest.raises(NotSupportedError, match="Apple silicon GPU has no"):
            call()


def test_without_the_package_the_way_to_it_is_said(chip, monkeypatch):
    monkeypatch.setitem(sys.modules, "zeus_apple_silicon", None)
    with pytest.raises(DeviceError, match=r"pip install .*\[apple\]'"):
        discover_gpus({})


def test_a_package_that_fails_is_an_error_of_the_device(chip):
    (gpu,) = discover_gpus({})
    chip.fault = RuntimeError("no channels")
    with pytest.raises(DriverFaultError, match="no channels"):
        gpu.read_energy_counter_joules()
    with pytest.raises(DeviceError, match="cannot measure Apple silicon: no channels"):
        discover_gpus({})
    chip.fault, chip.has_gpu = None, False
    with pytest.raises(NotSupportedError):
        gpu.read_energy_counter_joules()


def test_a_training_is_measured_and_not_searched(chip, time_source, caplog):
    monitor = ZeusMonitor(gpus=discover_gpus({}), time_source=time_source)
    optimizer = GlobalPowerLimitOptimizer(monitor, Energy(), quiet=True)
    for _ in range(20):
        optimizer.on_step_begin()
        time_source.advance(0.5)
        optimizer.on_step_end()
    optimizer.on_train_end()
    assert "Apple silicon GPU has no power limit" in caplog.text


def test_a_trainer_logs_joules_and_joules_per_token(chip, time_source, tmp_path, monkeypatch):
    monitor = ZeusMonitor(gpus=discover_gpus({}), time_source=time_source)
    monkeypatch.setattr("zeus_core.device.apple.time", SimpleNamespace(monotonic=time_source.now))
    for module, name, value in OF_THIS_MACHINE:
        monkeypatch.setattr(module, name, value)
    transformers = pytest.importorskip("transformers")
    from tests.huggingface.trainers import make_trainer
    from zeus_huggingface import ZeusTrainerCallback

    class Step(transformers.TrainerCallback):
        def on_step_begin(self, *arguments, **named):
            time_source.advance(3.0)

    callback = ZeusTrainerCallback(monitor)
    trainer = make_trainer(
        tmp_path, [callback, Step()], max_steps=60, logging_steps=20, include_num_input_tokens_seen=True
    )
    trainer.train()
    measured = callback.summary.account.total.measured
    logged = [entry for entry in trainer.state.log_history if "energy_per_token_j" in entry]
    assert len(logged) == 3
    for entry in logged:
        assert entry["energy_per_token_j"] == pytest.approx(entry["energy_j"] / (20 * 2 * 8))
    assert measured.energy_joules == pytest.approx(30.0 * 1.1 * 180.0, abs=measured.uncertainty_joules)
