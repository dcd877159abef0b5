"""What a training emits and costs: logs, summaries, journals and ranks against sums of true power times the signal."""

import json
import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.result_boxes import boxes, rows
from tests.support.true_amounts import HARD, HOUR, KILOWATT_HOUR, MONDAY, SOFT, Truth, hourly, time_from, train
from zeus_core.device import SimulatedGpu, discover_cpus, find_preset
from zeus_core.electricity import ConstantSignal, Electricity, RecordedSignal, WeeklyTariff
from zeus_core.errors import DeviceLostError, UsageError
from zeus_core.events import Activity
from zeus_core.measurement import DeviceEnergy
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor.reading import CpuEdge
from zeus_core.testing import FakeRapl, FaultyGpu, ThreadWorld
from zeus_core.training import TrainingEnergy
from zeus_core.training.activities.tally import Tally
from zeus_core.training.charges.charging import Charging
from zeus_core.training.charges.part_charges import HostEnergy


@pytest.fixture
def time_source():
    return time_from(MONDAY + 0.37 * HOUR)


@pytest.fixture
def monitor(gpu, time_source):
    return ZeusMonitor(gpus=[gpu], cpu_indices=[], time_source=time_source)


def test_logs_and_summary_equal_an_independent_sum(monitor, gpu, time_source):
    electricity = Electricity(hourly(1, hour=40.0), hourly(2, hour=40.0, unit="EUR/MWh"), pue=1.3)
    truth = Truth(gpu, time_source, electricity)
    with TrainingEnergy(monitor, electricity=electricity, quiet=True) as energy:
        for number in range(8):
            train(energy, truth, 12)
            with energy.during(Activity.EVALUATION):
                for _ in range(12):
                    truth.execute(SOFT)
            logged = energy.log()
            assert logged["co2_eq_g"] == pytest.approx(truth.amounts["g"], rel=5e-3), number
            assert logged["cost"] == pytest.approx(truth.amounts["EUR"], rel=5e-3), number
    values = energy.summary.values()
    assert values["train_co2_eq_g"] == pytest.approx(truth.amounts["g"], rel=2e-3)
    assert abs(values["train_co2_eq_g"] - truth.amounts["g"]) <= values["train_co2_eq_uncertainty_g"]
    assert values["train_co2_eq_uncertainty_g"] < 0.05 * values["train_co2_eq_g"]
    assert abs(values["train_cost"] - truth.amounts["EUR"]) <= values["train_cost_uncertainty"]
    assert values["train_co2_eq_stale_fraction"] == 0
    assert (energy.summary.co2_grams, energy.summary.cost) == (values["train_co2_eq_g"], values["train_cost"])


def test_a_loop_that_never_logs_is_charged_where_a_price_changes(monitor, gpu, time_source):
    """Without that, all of it would be charged at the mean price of the run."""
    tariff = WeeklyTariff({"Mon-Sun 00:30-24:00": 0.6, "Mon-Sun 00:00-00:30": 0.1}, "EUR/kWh", "UTC")
    time_source.set_clock(MONDAY + 1730.0)
    electricity = Electricity(price=tariff)
    truth = Truth(gpu, time_source, electricity)
    with TrainingEnergy(monitor, electricity=electricity, quiet=True) as energy:
        train(energy, truth, 80)  # 70 s before half past 0
        train(energy, truth, 70, SOFT)
    values = energy.summary.values()
    assert values["train_cost"] == pytest.approx(truth.amounts["EUR"], rel=5e-3)
    assert abs(values["train_cost"] - truth.amounts["EUR"]) <= values["train_cost_uncertainty"]
    assert values["train_cost_uncertainty"] < 0.1 * values["train_cost"]


def test_at_one_intensity_the_emissions_are_the_energy_to_the_last_digit(monitor, gpu, time_source):
    electricity = Electricity(ConstantSignal(380, "g/kWh"))
    truth = Truth(gpu, time_source, electricity)
    with TrainingEnergy(monitor, electricity=electricity, quiet=True) as energy:
        for _ in range(8):
            train(energy, truth, 5)
            logged = energy.log()
            assert logged["co2_eq_g"] == pytest.approx(logged["total_energy_j"] / KILOWATT_HOUR * 380, rel=1e-12)
    values = energy.summary.values()
    uncertainty_joules = values["train_energy_uncertainty_j"]
    assert values["train_co2_eq_uncertainty_g"] == pytest.approx(uncertainty_joules / KILOWATT_HOUR * 380)


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.floats(0, 50), st.floats(0, 500), st.floats(-1, 1)), min_size=1, max_size=20),
    st.lists(st.floats(0, 900), min_size=30, max_size=30),
)
def test_the_stated_interval_holds_the_truth_whatever_the_error_of_the_energy(intervals, values):
    """Each energy up to a moment is off by at most what it states, in any direction."""
    recorded = RecordedSignal([MONDAY + HOUR * hour for hour in range(30)], values, "g/kWh")
    charging = Charging(Electricity(recorded, pue=1.5))
    now, joules, grams, off_joules = MONDAY, 0.0, 0.0, 7.0
    for seconds, watts, error in intervals:
        for part in recorded.parts(now, now + seconds):
            grams += 1.5 * watts * part.seconds * part.value / KILOWATT_HOUR
        now, joules = now + seconds, joules + watts * seconds
        told = DeviceEnergy(joules + error * off_joules, off_joules)
        charging.charge(Tally(now - MONDAY, told), now)
    charge = charging.charges["g"]
    assert abs(charge.amount - grams) <= charge.uncertainty + 1e-6 * (
        1 + grams
    )  # times since 1970 are rounded to 0.2 µs


# Devices, clocks and signals in trouble.


def test_cpus_and_memory_are_part_of_it(gpu, time_source, tmp_path, capsys):
    rapl = FakeRapl(tmp_path)
    package = rapl.add_package(0)
    memory = rapl.add_zone("dram", within=package)
    cpus = discover_cpus(rapl.root, read_text=rapl.read_text)
    monitor = ZeusMonitor(gpus=[gpu], cpus=cpus, time_source=time_source)
    intensity = hourly()
    electricity = Electricity(intensity)
    truth = Truth(gpu, time_source, electricity)
    with TrainingEnergy(monitor, electricity=electricity) as energy:
        for _ in range(100):
            with energy.step():
                truth.execute(HARD)
                rapl.add_energy(package, 60_000_000)
                rapl.add_energy(memory, 15_000_000)
                now = time_source.clock_seconds()
                truth.amounts["g"] += 75.0 / KILOWATT_HOUR * intensity.parts(now, now)[0].value
    values = energy.summary.values()
    assert values["train_host_energy_j"] == pytest.approx(100 * 75.0)
    assert values["train_co2_eq_g"] == pytest.approx(truth.amounts["g"], rel=5e-3)
    shown = rows(boxes(capsys)[0])
    assert shown["CPUs, memory"].startswith("7.5")
    assert "g of GPUs, CPUs and memory, without PUE, at " in shown["CO2"]


def test_a_clock_that_is_set_in_mid_run_loses_and_doubles_nothing(monitor, gpu, time_source):
    price = ConstantSignal(0.3, "EUR/kWh")
    electricity = Electricity(hourly(count=200, begin=MONDAY - 100 * HOUR), price)
    truth = Truth(gpu, time_source, electricity)
    with TrainingEnergy(monitor, electricity=electricity, quiet=True) as energy:
        for jump_seconds in (-2.5 * HOUR, 0.0, 7 * HOUR, -20 * HOUR):
            train(energy, truth, 20)
            energy.log()
            time_source.set_clock(time_source.clock_seconds() + jump_seconds)
        train(energy, truth, 20)
    values = energy.summary.values()
    assert values["train_cost"] == pytest.approx(values["train_energy_j"] / KILOWATT_HOUR * 0.3, rel=1e-9)
    assert values["train_co2_eq_g"] == pytest.approx(truth.amounts["g"], rel=5e-3)


def test_a_signal_ending_in_mid_run_becomes_its_average_with_one_warning(monitor, gpu, time_source, caplog, capsys):
    electricity = Electricity(hourly(count=2))  # the second value holds for two hours
    truth = Truth(gpu, time_source, electricity)
    with TrainingEnergy(monitor, electricity=electricity) as energy:
        for _ in range(4):
            train(energy, truth, 33)
            energy.log()
        seconds = time_source.clock_seconds() - MONDAY
    values = energy.summary.values()
    assert values["train_co2_eq_g"] == pytest.approx(truth.amounts["g"], rel=5e-3)
    assert values["train_co2_eq_stale_fraction"] == pytest.approx(
        (seconds - 3 * HOUR) / (seconds - 0.37 * HOUR), abs=0.02
    )
    (record,) = caplog.records
    assert "given has no recent value at 2026-03-02 00:01+00:00: its average, " in record.message
    assert rows(boxes(capsys)[0])["CO2"].endswith("% of it at the mean value")


class Failing(ConstantSignal):
    """Somebody's signal, which fails after a while."""

    def __init__(self, failure):
        super().__init__(380, "g/kWh", source="mine")
        self.failure, self.calls = failure, 0

    def parts(self, begin_seconds, end_seconds):
        self.calls += 1
        if self.calls > 9:
            return self.failure(super().parts(begin_seconds, end_seconds))
        return super().parts(begin_seconds, end_seconds)


def raises(parts):
    raise RuntimeError("out of order")


def is_not_a_number(parts):
    return [type(part)(part.begin_seconds, part.end_seconds, float("nan")) for part in parts]


@pytest.mark.parametrize("failure", [raises, is_not_a_number, lambda parts: None, lambda parts: []])
def test_a_signal_that_fails_costs_its_amount_and_nothing_else(monitor, gpu, time_source, caplog, failure, tmp_path):
    electricity = Electricity(Failing(failure), ConstantSignal(0.3, "EUR/kWh"))
    truth = Truth(gpu, time_source, Electricity(price=electricity.price))
    with TrainingEnergy(monitor, electricity=electricity, quiet=True, folder=tmp_path) as energy:
        for _ in range(8):
            train(energy, truth, 6)
            logged = energy.log()
    assert "co2_eq_g" not in logged
    assert logged["cost"] == pytest.approx(truth.amounts["EUR"], rel=5e-3)
    assert energy.summary.steps == 48
    assert "train_co2_eq_g" not in energy.summary.values()
    assert "at least" in energy.summary.rows()["CO2"]
    (record,) = caplog.records
    assert "the signal mine failed" in record.message
    assert len((tmp_path / "zeus-energy" / "rank-0.jsonl").read_text().splitlines()) >= 4


def test_energy_that_is_lost_makes_no_amount_of_what_is_left(time_source):
    board = SimulatedGpu(find_preset("A100"), time_source=time_source)
    gpu = FaultyGpu(board)
    monitor = ZeusMonitor(gpus=[gpu], cpu_indices=[], time_source=time_source)
    electricity = Electricity(ConstantSignal(380, "g/kWh"))
    with TrainingEnergy(monitor, electricity=electricity, quiet=True) as energy:
        for number in range(20):
            with energy.step():
                board.execute(HARD)
            if number == 10:
                gpu.fail("read_energy_counter_joules", DeviceLostError("it fell off the bus"))
                gpu.fail("read_power_watts", DeviceLostError("it fell off the bus"))
            logged = energy.log()
    assert "total_energy_j" not in logged
    assert "co2_eq_g" not in logged


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "neither intensity nor price"),
        ({"intensity": ConstantSignal(0.3, "EUR/kWh")}, "intensity is .* in EUR/kWh; it must be like Const"),
        ({"price": ConstantSignal(380, "g/kWh")}, "price is .* in g/kWh; it must be like Const"),
        ({"intensity": 380}, "intensity is 380; it must be a signal, such as ConstantSignal"),
        ({"intensity": ConstantSignal(380, "g/kWh"), "pue": 0.9}, "pue is 0.9; it must be the energy of the data"),
        ({"intensity": ConstantSignal(380, "g/kWh"), "pue": 120}, "pue is 120; it must be"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(UsageError, match=message):
        Electricity(**arguments)


# Interruptions and ranks.

KILLED = """
import json, os, signal, sys
from tests.support.true_amounts import *
from zeus_core.device import SimulatedGpu, find_preset
from zeus_core.electricity import Electricity
from zeus_core.monitor import ZeusMonitor
from zeus_core.training import TrainingEnergy

folder, begin, steps, kill = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "kill"
time_source = time_from(begin)
gpu = SimulatedGpu(find_preset("A100"), time_source=time_source)
electricity = Electricity(hourly(1), hourly(2, unit="EUR/MWh"), pue=1.2)
truth = Truth(gpu, time_source, electricity)
monitor = ZeusMonitor(gpus=[gpu], cpu_indices=[], time_source=time_source)
energy = TrainingEnergy(monitor, electricity=electricity, folder=folder, quiet=True)
checkpoint = f"{folder}/checkpoint.json"
step = 0
if os.path.exists(checkpoint):
    state = json.load(open(checkpoint))
    energy.load_state_dict(state["energy"])
    step = state["step"]
energy.on_train_begin(step)
for number in range(steps):
    train(energy, truth, 1)
    if number == 50:
        json.dump({"energy": energy.state_dict(), "step": step + number + 1}, open(checkpoint, "w"))
    if number % 20 == 19:
        logged = energy.log()
if kill:
    logged = energy.log()
else:
    energy.finish()
    logged = energy.summary.values()
print(json.dumps({"truth": truth.amounts, "logged": logged, "end": time_source.clock_seconds()}), flush=True)
if kill:
    os.kill(os.getpid(), signal.SIGKILL)
energy.on_train_end()
"""


def run_part(folder, begin, steps, is_killed):
    command = [sys.executable, "-c", KILLED, str(folder), str(begin), str(steps), "kill" if is_killed else "end"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert ended.returncode == (-signal.SIGKILL if is_killed else 0), ended.stderr
    return json.loads(ended.stdout)


def test_totals_go_on_after_a_kill(tmp_path):
    """The energy of the steps after the checkpoint was taken and emitted, and the steps are done again."""
    first = run_part(tmp_path, MONDAY, 80, is_killed=True)
    second = run_part(tmp_path, first["end"] + 3 * HOUR, 80, is_killed=False)
    for unit, name in (("g", "train_co2_eq_g"), ("EUR", "train_cost")):
        true_amount = first["truth"][unit] + second["truth"][unit]
        assert second["logged"][name] == pytest.approx(true_amount, rel=5e-3)
    assert second["logged"]["train_co2_eq_g"] > 1.3 * first["logged"]["co2_eq_g"]
    assert second["logged"]["train_energy_redone_j"] > 0


def resumed(folder, monitor, gpu, time_source, *electricities):
    """Train a part with each, the second from the checkpoint of the first; return the second."""
    state = None
    for electricity in electricities:
        energy = TrainingEnergy(monitor, electricity=electricity, folder=folder, quiet=True)
        if state is not None:
            energy.load_state_dict(state)
        energy.on_train_begin(0 if state is None else 25)
        train(energy, Truth(gpu, time_source, Electricity(ConstantSignal(1, "g/kWh"))), 25)
        state = energy.state_dict()
        energy.log()
        energy.finish()
        energy.on_train_end()
    return energy


def test_parts_in_two_currencies_make_no_sum(monitor, gpu, time_source, tmp_path, caplog):
    euros, dollars = (Electricity(price=ConstantSignal(0.3, f"{currency}/kWh")) for currency in ("EUR", "USD"))
    values = (energy := resumed(tmp_path, monitor, gpu, time_source, euros, dollars)).summary.values()
    assert "train_energy_j" in values
    assert "train_cost" not in values
    shown = energy.summary.rows()
    assert "EUR, without 14.1 s that are not known" in shown["cost"]
    assert "USD, without 14.1 s that are not known" in shown["cost in USD"]
    (record,) = caplog.records
    assert "electricity= charges in USD, and the earlier parts of this run were charged in EUR" in record.message


def test_a_part_without_charges_is_not_one_without_emissions(monitor, gpu, time_source, tmp_path, caplog):
    charged = Electricity(ConstantSignal(380, "g/kWh"))
    energy = resumed(tmp_path, monitor, gpu, time_source, None, charged)
    assert "train_co2_eq_g" not in energy.summary.values()
    assert "without 14.1 s" in energy.summary.rows()["CO2"]
    assert "the earlier parts of this run were charged in nothing" in caplog.text
    assert "train_co2_eq_g" not in resumed(tmp_path / "2", monitor, gpu, time_source, charged, None).summary.values()


def test_a_training_begun_again_keeps_what_was_emitted(monitor, gpu, time_source):
    electricity = Electricity(ConstantSignal(380, "g/kWh"))
    truth = Truth(gpu, time_source, electricity)
    energy = TrainingEnergy(monitor, electricity=electricity, quiet=True)
    for _ in range(2):  # the first one has not ended
        energy.on_train_begin()
        train(energy, truth, 25)
    energy.finish()
    assert energy.summary.values()["train_co2_eq_g"] == pytest.approx(truth.amounts["g"], rel=5e-3)


def train_rank(world, electricity_of):
    time_source = time_from(MONDAY)
    gpu = SimulatedGpu(find_preset("A100"), world.rank, time_source=time_source)
    monitor = ZeusMonitor(gpus=[gpu], cpu_indices=[], time_source=time_source)
    electricity = electricity_of(world.rank)
    truth = Truth(gpu, time_source, electricity or Electricity(hourly()))
    with TrainingEnergy(monitor, electricity=electricity, world=world, quiet=True) as energy:
        for _ in range(3):
            train(energy, truth, 15 + 5 * world.rank)
            logged = energy.log()
    return logged, energy.summary, truth.amounts.get("g")


def test_all_ranks_are_added_up():
    ranks = ThreadWorld.run(3, lambda world: train_rank(world, lambda _: Electricity(hourly(), pue=1.1)), 30.0)
    true_grams = sum(grams for _, _, grams in ranks)
    for logged, summary, _ in ranks:
        assert logged["co2_eq_g"] == pytest.approx(true_grams, rel=5e-3)
        assert summary.values()["train_co2_eq_g"] == pytest.approx(true_grams, rel=5e-3)


def test_ranks_that_were_told_different_things_make_no_sum(caplog):
    dollars = Electricity(price=ConstantSignal(0.3, "USD/kWh"))
    ranks = ThreadWorld.run(
        2, lambda world: train_rank(world, lambda rank: [Electricity(hourly()), dollars][rank]), 30.0
    )
    for logged, summary, _ in ranks:
        assert not {"co2_eq_g", "cost"} & logged.keys()
        assert "at least" in summary.rows()["CO2"]
    assert caplog.text.count("the ranks were given different electricity (rank 0: g; rank 1: USD)") == 1


# What it costs.


def test_nothing_of_it_is_imported_unless_it_is_given():
    program = (
        "import sys, zeus_core.training as t; t.TrainingEnergy(quiet=True).on_train_begin(); "
        "print([name for name in sys.modules if 'electricity' in name.split('.')[1:2] or '_charging' in name])"
    )
    environment = {**os.environ, "ZEUS_SIMULATED_GPUS": "A40"}
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert ended.stdout == "[]\n"


def machine(folder):
    rapl = FakeRapl(folder)
    return rapl, rapl.add_package(0), discover_cpus(rapl.root, read_text=rapl.read_text)


def test_ranks_on_one_machine_count_its_cpus_once(tmp_path):
    rapl, package, cpus = machine(tmp_path)

    def rank_main(world):
        time_source = time_from(MONDAY)
        gpu = SimulatedGpu(find_preset("A100"), world.rank, time_source=time_source)
        monitor = ZeusMonitor(gpus=[gpu], cpus=cpus, time_source=time_source)
        electricity = Electricity(ConstantSignal(360, "g/kWh"))
        with TrainingEnergy(monitor, electricity=electricity, world=world, quiet=True) as energy:
            energy.log()
            if world.rank == 0:
                rapl.add_energy(package, 5_000_000_000)
            with energy.step():
                gpu.execute(HARD)
        return energy.summary.values()

    first, second = ThreadWorld.run(2, rank_main, 30.0)
    assert first["train_host_energy_j"] == second["train_host_energy_j"] == pytest.approx(5000)
    assert first["train_co2_eq_g"] == pytest.approx((first["train_energy_j"] + 5000) / KILOWATT_HOUR * 360)


def test_a_cpu_that_cannot_be_read_for_a_while_costs_nothing(gpu, time_source, tmp_path):
    rapl, package, cpus = machine(tmp_path)
    monitor = ZeusMonitor(gpus=[gpu], cpus=cpus, time_source=time_source)
    begin = monitor.read()
    host = HostEnergy(monitor, [0], begin)
    rapl.add_energy(package, 3_000_000)
    gpu.execute(HARD)
    between = monitor.read()
    faulty = between._replace(cpus=[CpuEdge(None, None, "no answer")])
    assert host.until(faulty).energy_joules is None
    assert host.until(between).energy_joules == pytest.approx(3)
    assert host.until(between).lost_seconds == 0
    assert host.until(faulty).energy_joules == pytest.approx(3), "it was read at this very moment"


def test_the_time_since_a_cpu_counter_stands_still_is_lost(gpu, time_source, tmp_path):
    rapl, package, cpus = machine(tmp_path)
    monitor = ZeusMonitor(gpus=[gpu], cpus=cpus, time_source=time_source)
    host = HostEnergy(monitor, [0], monitor.read())
    for _ in range(3):
        time_source.advance(1.0)
        rapl.add_energy(package, 30_000_000)
        host.until(monitor.read())
    time_source.advance(4.0)
    tally = host.until(monitor.read())
    assert (tally.measured_joules, tally.lost_seconds, tally.energy_joules) == (pytest.approx(90), 4.0, None)


def test_a_cpu_counter_that_never_moves_is_lost_and_not_zero(gpu, time_source, tmp_path):
    _, _, cpus = machine(tmp_path)
    monitor = ZeusMonitor(gpus=[gpu], cpus=cpus, time_source=time_source)
    host = HostEnergy(monitor, [0], monitor.read())
    time_source.advance(4.0)
    assert host.until(monitor.read()).energy_joules is None
