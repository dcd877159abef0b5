"""Training where there is no GPU: one warning, no numbers, and nothing else changes."""

import logging
import re

import pytest

from zeus_core.device import SimulatedGpu, discover_cpus, find_preset
from zeus_core.errors import DriverFaultError, NoDeviceError, UsageError
from zeus_core.events import Activity
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor.no_monitor import training_monitor
from zeus_core.optimizer import GlobalPowerLimitOptimizer
from zeus_core.testing import FakeRapl, ThreadWorld, VirtualTime
from zeus_core.training import TrainingEnergy


@pytest.fixture(autouse=True)
def no_device(monkeypatch):
    monkeypatch.delenv("ZEUS_SIMULATED_GPUS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def messages(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def trained(energy, optimizer=None):
    """Everything that a loop does; returns what it is told."""
    with energy:
        with energy.step(samples=4):
            pass
        logged = [energy.log()]
        with energy.during(Activity.EVALUATION):
            logged.append(energy.evaluation())
        logged.append(energy.state_dict())
    with energy.during(Activity.EVALUATION):
        logged.append(energy.evaluation())
    return logged


def test_a_loop_continues_without_numbers_and_with_one_warning_naming_the_remedy(tmp_path, caplog):
    energy = TrainingEnergy(folder=tmp_path)
    assert trained(energy) == trained(energy) == [{}, {}, {}, {}]
    assert (energy.summary.values(), energy.summary.log_values()) == ({}, {})
    assert "ZEUS_SIMULATED_GPUS=" in energy.summary.rows()["energy"]
    assert "not measured: " in str(energy.summary)
    assert energy.summary.co2_grams is energy.summary.cost is None
    (warning,) = messages(caplog)
    assert "training goes on" in warning
    assert "ZEUS_SIMULATED_GPUS=" in warning
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("optimizer", [None, "auto"])
def test_where_cpus_can_be_read_their_energy_over_the_training_is_the_result(tmp_path, caplog, optimizer):
    rapl, time_source = FakeRapl(tmp_path), VirtualTime()
    package = rapl.add_package(0)
    monitor = ZeusMonitor(cpus=discover_cpus(rapl.root, read_text=rapl.read_text), time_source=time_source)
    energy = TrainingEnergy(training_monitor(monitor), optimizer, quiet=True)
    for watts in (18, 30):
        with energy:
            for _ in range(20):
                with energy.step():
                    for _ in range(10):
                        time_source.advance(0.05)
                        rapl.add_energy(package, watts * 50_000)
        (text,) = energy.result().values()
        assert re.match(rf"{watts * 10} J|{watts * 10}\.\d", text.replace("+-", " +-")), text
        assert text.endswith("all that CPU 0 drew")
    assert "no energy is measured" not in caplog.text
    assert "the energy of the CPUs alone is measured, over the whole training" in caplog.text


def test_a_search_asked_for_by_a_word_adds_no_warning(caplog):
    assert trained(TrainingEnergy(optimizer="auto")) == [{}, {}, {}, {}]
    assert len(messages(caplog)) == 1


def test_a_search_changes_nothing_and_adds_no_warning(tmp_path, caplog):
    profile = tmp_path / "profile.json"
    optimizer = GlobalPowerLimitOptimizer(training_monitor(None), warmup_steps=0, profile_steps=1, profile_path=profile)
    energy = TrainingEnergy(optimizer=optimizer)
    assert trained(energy) == [{}, {}, {}, {}]
    energy.forget()
    assert (optimizer.trials, optimizer.chosen_limit_watts, energy.saving_fraction) == ([], None, None)
    assert len(messages(caplog)) == 1
    assert not profile.exists()


def test_those_who_want_the_error_get_it(caplog):
    with pytest.raises(NoDeviceError, match="ZEUS_SIMULATED_GPUS="):
        TrainingEnergy(strict=True)
    with pytest.raises(NoDeviceError):
        TrainingEnergy(training_monitor(None), strict=True)
    with pytest.raises(NoDeviceError):
        ZeusMonitor()
    with pytest.raises(UsageError, match="measures no GPU"):
        TrainingEnergy(ZeusMonitor(gpu_indices=[]))


def test_a_driver_failing_at_first_ends_no_script_unlike_wrong_settings(caplog, monkeypatch):
    def fail():
        raise DriverFaultError("unknown error")

    assert trained(TrainingEnergy(training_monitor(None, make=fail))) == [{}, {}, {}, {}]
    assert "unknown error" in messages(caplog)[0]
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "nonsense")
    with pytest.raises(UsageError):
        TrainingEnergy()


def test_of_the_processes_on_a_machine_one_warns(caplog, monkeypatch):
    for name, value in (("LOCAL_WORLD_SIZE", "2"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    assert trained(TrainingEnergy()) == [{}, {}, {}, {}]
    assert messages(caplog) == []
    monkeypatch.setenv("LOCAL_RANK", "0")
    TrainingEnergy()
    assert len(messages(caplog)) == 1


@pytest.mark.parametrize("has_gpu", [(True, False), (False, True), (False, False)])
def test_a_rank_without_a_gpu_takes_part_and_counts_nothing(caplog, has_gpu):
    time_source = VirtualTime()
    gpu = SimulatedGpu(find_preset("A40"), time_source=time_source)

    def main(world):
        monitor = ZeusMonitor(gpus=[gpu], time_source=time_source) if has_gpu[world.rank] else None
        energy = TrainingEnergy(monitor, world=world)
        with energy, energy.step(samples=4):
            if world.rank == 0:
                time_source.advance(10)
            world.gather(None)
            logged = energy.log()
        return logged, energy.summary

    (first, first_summary), (second, second_summary) = ThreadWorld.run(2, main)
    assert [not first_summary.values(), not second_summary.values()] == [not any(has_gpu)] * 2
    first.pop("power_limit_w", None), second.pop("power_limit_w", None)
    assert first == second
    assert bool(first) == any(has_gpu)
    some = [message for message in messages(caplog) if "the totals exclude" in message]
    assert len(some) == (1 if any(has_gpu) else 0)
    assert len(messages(caplog)) == has_gpu.count(False) + len(some)
