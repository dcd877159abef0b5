"""Sums over ranks in whole numbers: of real processes over gloo, in any order, and where a rank dies meanwhile."""

import json
import math
import multiprocessing
import os

import pytest
import torch.distributed
from hypothesis import given
from hypothesis import strategies as st

from tests.support.accounts import account_of, accounts
from tests.support.ranks import run_ranks, torchrun_environments
from zeus_core.codec import encode
from zeus_core.device import SimulatedGpu, SimulatedNoise, Work, find_preset
from zeus_core.electricity import ConstantSignal, Electricity
from zeus_core.errors import WorldError
from zeus_core.events import Activity
from zeus_core.measurement import DeviceEnergy
from zeus_core.monitor import ZeusMonitor
from zeus_core.ports.world import WholeNumbers
from zeus_core.pytorch import torch_world
from zeus_core.testing import ThreadWorld, VirtualTime
from zeus_core.training import TrainingEnergy
from zeus_core.training.account import Account
from zeus_core.training.activities.tally import Tally
from zeus_core.training.charges.charging import Charge
from zeus_core.training.record.rank_records import RankReport, part_ranks
from zeus_core.training.record.run_file import read_run
from zeus_core.training.record.run_records import DeviceRecord, RankRecord

RANKS = 4
WORK = Work(0.11, 290.0, 0.9, 0.8)
ELECTRICITY = Electricity(ConstantSignal(380, "g/kWh"), ConstantSignal(0.3, "EUR/kWh"), pue=1.3)


def trained(rank, world, folder):
    """Train; return the energy of all ranks in a log, and their account at the end."""
    time_source = VirtualTime()
    gpu = SimulatedGpu(find_preset("A100-SXM4-80GB"), rank, time_source=time_source, noise=SimulatedNoise(seed=rank))
    monitor = ZeusMonitor(gpus=[gpu], cpu_indices=[], time_source=time_source)
    energy = TrainingEnergy(monitor, world=world, folder=folder, electricity=ELECTRICITY, quiet=True)
    logged = []
    with energy:
        for _ in range(3):
            for _ in range(12):
                with energy.step(samples=4, tokens=100 + rank):
                    gpu.execute(WORK)
                    time_source.advance(0.013 * rank)
            with energy.during(Activity.EVALUATION):
                gpu.execute(WORK)
            logged.append(energy.log()["total_energy_j"])
    return logged, energy.summary.account


def process_main(folder):
    torch.distributed.init_process_group("gloo")
    torch.set_default_device("meta")  # a script's own default, on which nothing of ours is made
    return trained(torch.distributed.get_rank(), torch_world(), folder)


def added_up(tallies):
    """Return the sum of tallies as it was computed when ranks gathered them: floats, rank after rank."""
    return Tally(
        max(tally.seconds for tally in tallies),
        sum((tally.measured for tally in tallies), DeviceEnergy()),
        sum(tally.lost_seconds for tally in tallies),
    )


def test_sums_of_four_processes_equal_gathered_ones_to_the_bit(tmp_path):
    answers = run_ranks(RANKS, process_main, tmp_path)
    (logged, account), *others = answers
    assert others == [(logged, account)] * (RANKS - 1)
    journals = [(tmp_path / "zeus-energy" / f"rank-{rank}.jsonl").read_text().splitlines() for rank in range(RANKS)]
    entries = [[account_of(line) for line in journal] for journal in journals]
    ends = [of_rank[-1] for of_rank in entries]
    assert logged[-1] == sum(of_rank[-2].total.measured_joules for of_rank in entries)
    assert account.total == added_up([end.total for end in ends])
    assert len(account.activities) == 3
    for activity, tally in account.activities.items():
        assert tally == added_up([end.activities[activity] for end in ends])
    assert account.charges == {
        unit: sum((end.charges[unit] for end in ends), Charge()) for unit in ("g", "EUR")
    }  # four sums of amounts
    assert (account.samples, account.tokens) == (RANKS * 144, sum(36 * (100 + rank) for rank in range(RANKS)))
    ranks = read_run(tmp_path).latest.ranks
    assert [rank.account for rank in ranks] == ends


def own_activities_main(folder):
    torch.distributed.init_process_group("gloo")
    world, time_source = torch_world(), VirtualTime()
    gpu = SimulatedGpu(find_preset("A100-SXM4-80GB"), world.rank, time_source=time_source)
    monitor = ZeusMonitor(gpus=[gpu], cpu_indices=[], time_source=time_source)
    energy = TrainingEnergy(monitor, world=world, folder=folder, quiet=True)
    with energy:
        for number in range(20 * (world.rank % 2)):
            with energy.step():
                gpu.execute(WORK)
            with energy.during(f"of_rank_{world.rank}_{number}"):
                gpu.execute(WORK)
            energy.on_resume()
        logged = [energy.log()["total_energy_j"], energy.log()["total_energy_j"]]
    return logged, energy.summary.account


def test_processes_agree_on_activities_that_others_do_not_have(tmp_path):
    (logged, account), *others = run_ranks(RANKS, own_activities_main, tmp_path)
    assert others == [(logged, account)] * (RANKS - 1)
    assert sum(each.is_own for each in account.activities) == 32
    assert account.visits[Activity.OTHER] == 2 * 20 - 32
    assert sum(tally.measured_joules for tally in account.activities.values()) == account.total.measured_joules
    assert read_run(tmp_path).account == account


def die_within_a_sum(mode):
    torch.distributed.init_process_group("gloo")
    world = torch_world(timeout_seconds=5.0)
    world.reduce(WholeNumbers([1]))
    if world.rank == 1:
        if mode == "after rank 3":  # has got the numbers of that rank, and sends none
            torch.distributed.recv(torch.empty(128, dtype=torch.int64), 3, group=world._group)
        os._exit(9)
    for _ in range(2):
        with pytest.raises(WorldError, match="did not reach each other"):
            world.reduce(WholeNumbers([1]))
    os._exit(0)


def enter(environment, mode):
    os.environ.update(environment)
    die_within_a_sum(mode)


@pytest.mark.parametrize("mode", ["before", "after rank 3"])
def test_a_rank_that_dies_in_a_sum_ends_it_on_others(mode):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=enter, args=(each, mode)) for each in torchrun_environments(RANKS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
    assert [process.exitcode for process in processes] == [0, 9, 0, 0]


@given(st.lists(accounts, min_size=2, max_size=7), st.randoms(use_true_random=False), st.integers(1, 6))
def test_sums_are_the_same_in_every_order_and_grouping(ranks, order, cut):
    units = ["g", "EUR"]
    numbers = [rank.to_numbers(units) for rank in ranks]
    whole = Account.from_numbers(WholeNumbers.of_all(numbers), units)
    order.shuffle(numbers)
    parts = [WholeNumbers.of_all(part) for part in (numbers[:cut], numbers[cut:]) if part]
    assert Account.from_numbers(WholeNumbers.of_all(parts), units) == whole
    assert whole.total.seconds == max(rank.total.seconds for rank in ranks)
    joules = math.fsum(rank.total.measured_joules for rank in ranks)
    assert whole.total.measured_joules == pytest.approx(joules, rel=1e-15, abs=1e-8)
    charged = math.fsum(rank.charges.get("EUR", Charge()).amount for rank in ranks)
    assert whole.charges["EUR"].amount == pytest.approx(charged, rel=1e-15, abs=1e-8)


@given(accounts)
def test_an_account_in_whole_numbers_stays_so(account):
    units = list(account.charges)
    once = Account.from_numbers(account.to_numbers(units), units)
    assert Account.from_numbers(once.to_numbers(units), units) == once


def test_infinite_and_unknown_amounts_do_not_end_the_sum():
    infinite = Account(Tally(1.0, DeviceEnergy(1.0, float("inf"))), charges={"g": Charge(float("nan"))})
    account = Account.from_ranks([infinite, Account(Tally(2.0, DeviceEnergy(2.0, 1.0)))])
    assert account.total.measured_joules == 3.0
    assert account.total.measured.uncertainty_joules > 1e12
    assert account.charges["g"].amount > 1e12


@pytest.mark.long
def test_the_run_file_of_many_ranks_lists_machines_and_all_power(tmp_path):
    def rank_main(world):
        return trained(world.rank, world, tmp_path)

    answers = ThreadWorld.run(65, rank_main, timeout_seconds=60.0)
    run = read_run(tmp_path)
    assert run.account == answers[0][1]
    (machine,) = run.latest.ranks
    (gpus,) = machine.devices
    assert (machine.count, gpus.count, gpus.uuid, machine.account) == (65, 65, "", None)
    assert gpus.energy.measured_joules == run.account.total.measured_joules
    assert run.latest.power[-1].joules == pytest.approx(run.account.total.measured_joules, rel=0.02)
    assert (tmp_path / "zeus-energy" / "run.json").stat().st_size < 30_000


def test_thousand_machines_take_less_than_300_kilobytes():
    models = ["A100", "H100"]
    ranks = [
        RankRecord(
            f"node-{number}.cluster.example.org",
            tuple(DeviceRecord(f"GPU-{number}-{model}", 0, model, False, "570.1", 400.0) for model in models),
            ("CPU 0",),
        )
        for number in range(1024)
    ]
    energy = Tally(1234.567891234, DeviceEnergy(2.0**-10, 0.123456789123456))
    reports = {
        number: RankReport({device.uuid: (energy, ()) for device in rank.devices}, (), None)
        for number, rank in enumerate(ranks[:-1])  # the last one has not reported
    }
    machines = part_ranks(ranks, reports)
    assert len(machines) == 256
    assert sum(machine.count for machine in machines) == 1024
    assert {device.count for machine in machines for device in machine.devices} == {4}
    assert machines[0].host == "node-0.cluster.example.org and 3 more"
    assert [device.energy.measured_joules for device in machines[0].devices] == [2.0**-8] * 2
    assert machines[-1].devices[0].energy is None, "not all of it is known"
    assert len(json.dumps(encode(machines))) < 300_000
