"""Activities with names of a user's own: in one process, and on several ranks."""

import copy
import json
import os
import pickle
from contextlib import suppress

import pytest

from zeus_core.codec import decode, encode
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.device.cpu import CpuDiscovery
from zeus_core.errors import UsageError
from zeus_core.events import Activity
from zeus_core.monitor import ZeusMonitor
from zeus_core.testing import ThreadWorld, VirtualTime
from zeus_core.training import TrainingEnergy
from zeus_core.training.account import Account
from zeus_core.training.record.run_file import read_run

WORK = Work(0.5, 484.9, 0.938, 0.744)
DECODING = Work(0.5, 200.0, 1.0, 0.05)


def begun(world=None, **arguments):
    """A GPU, and the account of a training on it."""
    time_source = VirtualTime()
    gpu = SimulatedGpu(find_preset("A40"), 0 if world is None else world.rank, time_source=time_source)
    monitor = ZeusMonitor(gpus=[gpu], cpus=CpuDiscovery((), "not part of this test"), time_source=time_source)
    return gpu, TrainingEnergy(monitor, world=world, quiet=True, **arguments)


def step(energy, gpu):
    with energy.step():
        gpu.execute(WORK)


def is_sum(account):
    return sum(tally.measured_joules for tally in account.activities.values()) == account.total.measured_joules


@pytest.mark.parametrize("name", ["", "1st", "roll out", "rôle", "a" * 33, "per_token", "redone", "token", "a-b"])
def test_bad_names_raise_where_they_are_given(name):
    _, energy = begun()
    with pytest.raises(UsageError, match="activity is"), energy.during(name):
        pass


def test_names_of_kinds_are_the_kinds_also_when_copied():
    assert Activity("evaluation") is Activity.EVALUATION is copy.deepcopy(Activity.EVALUATION)
    assert pickle.loads(pickle.dumps(Activity.STEPS)) is Activity.STEPS
    assert decode(Activity, encode(Activity.STEPS)) is Activity.STEPS
    assert Activity("rollout") == pickle.loads(pickle.dumps(Activity("rollout")))


def test_an_activity_of_ones_own_has_metrics_and_a_row(tmp_path):
    gpu, energy = begun(folder=tmp_path)
    with energy:
        for _ in range(4):
            step(energy, gpu)
            with energy.during("rollout"):
                gpu.execute(DECODING)
            with energy.during(Activity.GENERATION):
                gpu.execute(DECODING)
                energy.count(generated_tokens=50)
            energy.count(generated_tokens=7)  # of no generation
    values, account = energy.summary.values(), energy.summary.account
    assert values["train_energy_rollout_j"] == pytest.approx(4 * 0.5 * 200, rel=0.05)
    assert values["train_energy_per_rollout_j"] == values["train_energy_rollout_j"] / 4
    assert values["train_energy_per_generated_token_j"] == values["train_energy_generation_j"] / 200
    assert "rollout" in energy.summary.rows()["each"]
    assert is_sum(account)
    assert read_run(tmp_path).account == account


def test_text_generated_before_the_first_step_is_generation():
    gpu, energy = begun()
    with energy:
        with energy.during("generation"):
            gpu.execute(DECODING)
        step(energy, gpu)
        with energy.during(Activity.EVALUATION), energy.during("generation"):
            gpu.execute(DECODING)
    account = energy.summary.account
    assert account.activities[Activity.GENERATION].seconds == pytest.approx(0.5, abs=0.01)
    assert account.visits == {Activity.GENERATION: 1, Activity.EVALUATION: 1}


def test_nested_overlapping_raising_and_endless_activities_add_up():
    gpu, energy = begun()
    with energy:
        step(energy, gpu)
        with energy.during("outer"), energy.during("inner"), energy.during("inner"):
            gpu.execute(DECODING)
        first, second = energy.during("first"), energy.during("second")
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        gpu.execute(DECODING)
        second.__exit__(None, None, None)
        with suppress(KeyError), energy.during("broken"):
            raise KeyError
        energy.on_pause(Activity("endless"))
        gpu.execute(DECODING)
        step(energy, gpu)
        energy.on_pause("not a name")  # a hook raises nothing
        step(energy, gpu)
    account = energy.summary.account
    assert is_sum(account)
    assert account.visits[Activity("inner")] == 1
    assert account.activities[Activity.STEPS].seconds < 3 * 0.6


def test_a_thousand_names_become_32_and_the_other(caplog):
    gpu, energy = begun()
    with energy:
        for number in range(1000):
            with energy.during(f"name_{number}"):
                gpu.execute(Work(0.01, 200.0))
    account = energy.summary.account
    assert sum(each.is_own for each in account.activities) == 32
    assert account.visits[Activity.OTHER] == 968
    assert is_sum(account)
    assert caplog.text.count("names of your own") == 1
    again = account + Account(account.total, {Activity("later"): account.total})
    assert sum(each.is_own for each in again.activities) == 32
    assert is_sum(again)


def test_a_fork_within_an_activity_changes_nothing(tmp_path):
    gpu, energy = begun(folder=tmp_path)
    with energy:
        step(energy, gpu)
        with energy.during("rollout"):
            gpu.execute(DECODING)
            child = os.fork()
            if child == 0:
                os._exit(0 if Activity("rollout") == energy._recorder._split.activity else 1)
            assert os.waitpid(child, 0)[1] == 0
        step(energy, gpu)
    assert energy.summary.account.visits == {Activity("rollout"): 1}


def test_ranks_agree_on_activities_that_only_some_have(tmp_path):
    def train(world):
        gpu, energy = begun(world, folder=tmp_path)
        logs = []
        with energy:
            for number in range(6):
                step(energy, gpu)
                if world.rank == 1 and number >= 2:
                    with energy.during("rollout"):
                        gpu.execute(DECODING)
                if world.rank == 2 and number == 4:
                    for other in range(40):
                        with energy.during(f"name_{other}"):
                            gpu.execute(Work(0.1, 200.0))
                logs.append(energy.log())
        return logs, energy.summary.account

    (logs, account), *others = ThreadWorld.run(3, train, timeout_seconds=30.0)
    assert others == [(logs, account)] * 2
    assert is_sum(account)
    assert account.visits[Activity("rollout")] == 4
    assert sum(each.is_own for each in account.activities) == 32
    assert account.visits[Activity.OTHER] == 9  # eight of rank 2 itself, and the one that the job has too many
    assert read_run(tmp_path).account == account


def test_files_of_before_are_read_without_the_new_members(tmp_path):
    gpu, energy = begun(folder=tmp_path)
    with energy:
        step(energy, gpu)
        state = energy.state_dict()
    before = energy.summary.account
    folder = tmp_path / "zeus-energy"
    for path in [folder / "run.json", *folder.glob("*.jsonl")]:
        text = path.read_text().replace('"visits": {}, "generated_tokens": 0', '"X": 0').replace(', "X": 0', "")
        path.write_text(text)
    assert "visits" not in (folder / "rank-0.jsonl").read_text()
    _, again = begun(folder=tmp_path)
    document = json.loads(json.dumps(state).replace(', "visits": {}, "generated_tokens": 0', ""))
    again.load_state_dict(document)
    again.on_train_begin(step=1)
    assert again.finish().account.total.measured_joules >= before.total.measured_joules
