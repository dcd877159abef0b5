"""Time in which nothing can be read is lost in every face of a run, and what was measured before stays."""

import json

import pytest

from tests.support.driven_gpu import Fault, Physics
from tests.support.random_training import Case, measure
from zeus_core.device import SimulatedGpu, find_preset
from zeus_core.errors import DriverFaultError
from zeus_core.events import Activity
from zeus_core.monitor import ZeusMonitor
from zeus_core.report.energy_statement import card_of, statement_of
from zeus_core.report.run_lines import run_line
from zeus_core.report.run_page import run_page
from zeus_core.report.run_text import runs_json, runs_markdown
from zeus_core.testing import FaultyGpu, ThreadWorld, VirtualTime
from zeus_core.training import TrainingEnergy
from zeus_core.training.record.run_file import read_run

BEGIN, GONE = 0.3, 4.3  # of the training, and of its driver
PERIODS = [0.1, 0.02, None]  # of the counter; None for a GPU without one


def training_of(fault, period_seconds=0.1, seconds=20.0):
    physics = Physics(period_seconds, period_seconds or 0.1, 0.005, seed=3)
    case = Case(physics, script=[(70.0, BEGIN)], faults=[fault])
    for number in range(round(seconds / 0.2)):
        case.run(Activity.STEPS, [300.0], 0.2)
        if number % 10 == 9:
            case.run(Activity.EVALUATION, [150.0], 0.3)
    case.script.append((70.0, 1.0))
    return case


def joules_until(case, moment):
    """The energy from the beginning of the training to a moment of the script."""
    at, joules = 0.0, 0.0
    for watts, seconds in case.script:
        joules += watts * max(min(at + seconds, moment) - max(at, BEGIN), 0.0)
        at += seconds
    return joules


@pytest.mark.parametrize("period_seconds", PERIODS)
@pytest.mark.parametrize("kind", ["leaves", "unloads", "freezes"])
def test_the_rest_of_a_run_without_its_driver_is_lost(kind, period_seconds):
    """Before what was drawn until then was extrapolated: 1173 +-657 J of 2008, `lost_seconds` 0."""
    case = training_of(Fault(kind, GONE, 1000.0), period_seconds)
    outcome = measure(case)
    account = outcome.summary.account
    missing = account.total.seconds - (GONE - BEGIN)
    assert missing - 0.1 <= account.total.lost_seconds <= missing + (0.2 if period_seconds else 0.5)
    assert account.total.energy_joules is account.activities[Activity.STEPS].energy_joules is None
    before = joules_until(case, GONE)
    assert before - 0.5 * 300 <= account.total.measured_joules <= before + account.total.measured.uncertainty_joules
    assert sum(tally.measured_joules for tally in account.activities.values()) == account.total.measured_joules
    assert sum(tally.lost_seconds for tally in account.activities.values()) == pytest.approx(account.total.lost_seconds)
    (remark,) = outcome.summary.remarks
    assert remark.startswith("GPU 0: its energy is lost for ")


def test_a_gpu_that_never_answers_is_lost_and_named():
    summary = measure(training_of(Fault("leaves", 0.0, 1000.0))).summary
    assert summary.account.total.lost_seconds == summary.account.total.seconds
    assert summary.account.total.measured_joules == 0
    assert "the GPU fell off the bus" in summary.rows()["remarks"]


def test_no_log_has_an_energy_after_the_driver_has_gone():
    logged = measure(training_of(Fault("unloads", GONE, 1000.0), seconds=60.0)).logged
    with_energy = [bool(values.keys() & {"energy_j", "total_energy_j", "power_w"}) for values in logged]
    assert True in with_energy
    assert not any(with_energy[len(with_energy) // 3 :])
    assert with_energy == sorted(with_energy, reverse=True)


def test_quick_logs_extrapolate_no_longer_than_some_updates():
    """Before, logs within a second of the latest division extended it by the power until then."""
    gpu = FaultyGpu(SimulatedGpu(find_preset("A100"), time_source=(time_source := VirtualTime())))
    with TrainingEnergy(ZeusMonitor(gpus=[gpu], time_source=time_source), quiet=True) as energy:
        logged = {}
        for number in range(100):
            if number == 55:  # amid a second that one division is for
                for method in ("read_energy_counter_joules", "read_power_watts"):
                    gpu.fail(method, DriverFaultError("it fell off the bus"))
            with energy.step():
                time_source.advance(0.05)
            logged[number] = energy.log()
    assert all("energy_j" in logged[number] for number in range(20, 55))
    assert not any("energy_j" in logged[number] for number in range(55 + round(0.7 / 0.05), 100))


def test_box_and_table_state_the_least_and_the_reason(caplog):
    summary = measure(training_of(Fault("leaves", GONE, 1000.0))).summary
    rows = summary.rows()
    assert rows["energy"].startswith("at least ")
    assert rows["energy"].endswith(" s it was lost")
    assert rows["spent on"].startswith("steps at least ")
    assert "the GPU fell off the bus" in rows["remarks"]
    assert summary.values().keys().isdisjoint({"train_energy_j", "train_energy_wh", "train_energy_steps_j"})
    assert " s lost" in str(summary)
    assert [record.getMessage() for record in caplog.records if "is lost" in record.getMessage()] == [rows["remarks"]]


def test_the_file_report_and_statement_state_the_least(tmp_path):
    outcome = measure(training_of(Fault("unloads", GONE, 1000.0)), folder=tmp_path)
    run = read_run(tmp_path)
    assert run.account == outcome.summary.account
    (device,) = run.latest.ranks[0].devices
    assert device.energy.lost_seconds == pytest.approx(run.account.total.lost_seconds)
    assert device.power[-1].seconds <= GONE - BEGIN + 0.2, "the time that was lost is no time at 0 W"
    runs = [("it", run)]
    for text in (runs_markdown(runs), run_page(runs), run_line(run), card_of(statement_of(runs), runs)):
        assert "at least " in text
    for text in (runs_markdown(runs), run_page(runs), card_of(statement_of(runs), runs)):
        assert "the NVIDIA driver is not loaded" in text
    (written,) = json.loads(runs_json(runs))["runs"]
    assert (
        written["metrics"].keys().isdisjoint({"energy_j", "energy_kwh", "power_w", "energy_steps_j", "saving_fraction"})
    )
    stated = statement_of(runs)
    assert stated["energy_joules"] is stated["co2_eq_grams"] is None
    assert stated["at_least_joules"] == run.account.total.measured_joules
    assert "some of the energy was lost" in card_of(statement_of(runs), runs)


@pytest.mark.parametrize("seconds", [1.0, 5.0])
@pytest.mark.parametrize(("kind", "period_seconds"), [("reloads", 0.1), ("reloads", 0.02), ("leaves", None)])
def test_a_driver_that_comes_back_loses_its_absence_alone(kind, period_seconds, seconds):
    case = training_of(Fault(kind, GONE, GONE + seconds), period_seconds)
    outcome = measure(case)
    total = outcome.summary.account.total
    assert seconds <= total.lost_seconds <= seconds + 0.8
    truth = joules_until(case, 1e9) - joules_until(case, GONE + seconds) + joules_until(case, GONE)
    assert total.measured_joules == pytest.approx(truth, abs=0.6 * 300)
    assert "energy_j" in outcome.logged[-1]
    assert "total_energy_j" not in outcome.logged[-1]


@pytest.mark.parametrize("kind", ["leaves", "unloads"])
def test_a_counter_that_went_on_in_the_absence_loses_nothing(kind):
    outcome = measure(training_of(Fault(kind, GONE, GONE + 5.0)))
    total = outcome.summary.account.total
    assert total.lost_seconds == 0
    assert abs(total.energy_joules - sum(outcome.truth.values())) <= total.measured.uncertainty_joules
    assert total.measured.uncertainty_joules <= 0.01 * total.energy_joules


def test_one_lost_gpu_of_two_ranks_is_named_to_both(tmp_path):
    time_source = VirtualTime()
    gpus = [FaultyGpu(SimulatedGpu(find_preset("A100"), index, time_source=time_source)) for index in range(2)]

    def main(world):
        monitor = ZeusMonitor(gpus=[gpus[world.rank]], time_source=time_source)
        energy = TrainingEnergy(monitor, world=world, folder=tmp_path, quiet=True)
        energy.on_train_begin()
        for number in range(20):
            if world.rank == 1 and number == 5:
                for method in ("read_energy_counter_joules", "read_power_watts"):
                    gpus[1].fail(method, DriverFaultError("it fell off the bus"))
            world.gather(None)
            with energy.step():
                if world.rank == 0:
                    time_source.advance(0.5)
                world.gather(None)
        summary = energy.finish()
        energy.on_train_end()
        return summary

    first, second = ThreadWorld.run(2, main, timeout_seconds=60.0)
    assert first.account == second.account
    assert first.account.total.lost_seconds == pytest.approx(7.5, abs=0.3)
    assert first.account.total.energy_joules is None
    assert first.remarks == second.remarks
    assert first.rows()["remarks"].startswith("rank 1, GPU 0: its energy is lost for 7.")
    assert read_run(tmp_path).latest.results["remarks"] == first.rows()["remarks"]
