"""The result that `TrainingEnergy` shows at the end of training."""

import re
import time

import pytest

from tests.support.result_boxes import boxes, rows
from zeus_core.device import SimulatedGpu, Work, discover_gpus, find_preset
from zeus_core.events import Activity
from zeus_core.measurement import DeviceEnergy
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import Energy, GlobalPowerLimitOptimizer
from zeus_core.testing import ThreadWorld, VirtualTime
from zeus_core.training import TrainingEnergy, TrainingSummary
from zeus_core.training.account import Account
from zeus_core.training.activities.tally import Tally

WORK = Work(0.5, 484.9, 0.938, 0.744)


def train(energy, gpu, steps=10, **counts):
    for _ in range(steps):
        with energy.step(**counts):
            gpu.execute(WORK)


def test_the_end_shows_where_the_energy_went_in_one_box(monitor, gpu, capsys):
    with TrainingEnergy(monitor) as energy:
        train(energy, gpu, samples=4)
        with energy.during(Activity.EVALUATION):
            gpu.execute(WORK)
    (box,) = boxes(capsys)
    shown = rows(box)
    assert list(shown) == ["measured on", "energy", "steps", "per sample", "spent on"]
    assert shown["measured on"] == "A100-SXM4-80GB (simulated)"
    assert re.fullmatch(r"[\d.]+ ±[\d.]+ kJ \([\d.]+ Wh\) in [\d.]+ s, mean \d+ W", shown["energy"])
    assert re.fullmatch(r"steps [\d.]+ kJ, evaluation [\d.]+ J(, idle .*)?", shown["spent on"])


def test_tokens_come_before_samples(monitor, gpu, capsys):
    with TrainingEnergy(monitor) as energy:
        train(energy, gpu, samples=4, tokens=1000)
    assert "per token" in rows(boxes(capsys)[0])


@pytest.mark.parametrize("order", [["finish", "on_train_end", "on_train_end"], ["on_train_end", "finish"]])
def test_without_the_with_block_it_is_shown_once_too(monitor, gpu, capsys, order):
    energy = TrainingEnergy(monitor)
    energy.on_train_begin()
    train(energy, gpu)
    for name in order:
        getattr(energy, name)()
    assert len(boxes(capsys)) == 1


def test_an_optimizer_that_takes_part_is_in_the_same_box(monitor, gpu, capsys):
    optimizer = GlobalPowerLimitOptimizer(monitor, Energy(), pl_step=125, warmup_steps=1, profile_steps=5)
    with TrainingEnergy(optimizer=optimizer) as energy:
        train(energy, gpu, 40)
    (box,) = boxes(capsys)
    assert list(rows(box))[-5:] == ["power limit", "saving", "slowdown", "per step", "search"]


def test_an_error_of_training_is_followed_by_what_is_known(monitor, gpu, capsys):
    def interrupted_training():
        with TrainingEnergy(optimizer=GlobalPowerLimitOptimizer(monitor)) as energy:
            train(energy, gpu, 3)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted_training()
    (box,) = boxes(capsys)
    assert {"energy", "power limit"} <= rows(box).keys()
    assert "search unfinished: 0 of 51 settings measured" in rows(box)["power limit"]


def test_quiet_shows_nothing_of_the_optimizer_either(monitor, gpu, capsys):
    with TrainingEnergy(optimizer=GlobalPowerLimitOptimizer(monitor), quiet=True) as energy:
        train(energy, gpu, 3)
    assert energy.result().keys() >= {"energy", "power limit"}
    assert boxes(capsys) == []


def test_an_evaluation_outside_of_training_shows_nothing(monitor, gpu, capsys):
    energy = TrainingEnergy(monitor)
    with energy.during(Activity.EVALUATION):
        gpu.execute(WORK)
    energy.on_train_end()
    assert boxes(capsys) == []


def test_without_a_gpu_there_is_nothing_to_show(capsys, monkeypatch, caplog):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with TrainingEnergy() as energy, energy.step():
        pass
    assert boxes(capsys) == []


def test_an_energy_that_was_lost_is_not_a_total():
    tally = Tally(10.0, DeviceEnergy(2000.0, 20.0), lost_seconds=3.0)
    summary = TrainingSummary(1, Account(tally, {Activity.STEPS: tally}, samples=4))
    assert summary.rows() == {
        "energy": "at least 2 kJ in 10 s; of 3 s it was lost",
        "steps": "1",
        "spent on": "steps at least 2 kJ",
    }


def test_an_energy_that_was_lost_as_a_whole_is_not_measured_and_never_0():
    tally = Tally(3.12, DeviceEnergy(0.0, 0.0), lost_seconds=3.12)
    rows = TrainingSummary(1, Account(tally, {Activity.STEPS: tally})).rows()
    assert rows["energy"] == "not measured in 3.12 s: it was lost"
    assert " 0 J" not in str(rows)


def test_a_part_that_was_not_measured_is_absent():
    parts = {
        Activity.STEPS: Tally(10.0, DeviceEnergy(2000.0, 20.0)),
        Activity.REWARD: Tally(1e-4, DeviceEnergy(0.0, 1.0)),
    }
    account = Account(sum(parts.values(), Tally()), parts, visits={Activity.REWARD: 2})
    values = TrainingSummary(1, account).values()
    assert [name for name in values if "reward" in name] == []
    assert values["train_energy_steps_j"] == 2000.0


def test_a_variable_has_a_loop_of_ones_own_save(monitor, gpu, monkeypatch, capsys):
    monkeypatch.setenv("ZEUS_SAVE", "10%")
    with TrainingEnergy(monitor) as energy:
        train(energy, gpu)
    assert "power limit" in rows(boxes(capsys)[0])
    monkeypatch.setenv("ZEUS", "off")
    assert TrainingEnergy(monitor).optimizer is None


@pytest.mark.parametrize("quiet", [False, True])
def test_those_who_wrote_the_loop_alone_hear_how_to_announce_work(monitor, gpu, caplog, quiet):
    with TrainingEnergy(monitor, quiet=quiet) as energy:
        train(energy, gpu)
        gpu.execute(Work(5.0, 300.0))
        train(energy, gpu)
    assert ("announce it" in caplog.text) == (not quiet)


def test_of_several_ranks_the_first_shows_the_total_of_all(capsys):
    def rank_main(world):
        time_source = VirtualTime()
        gpu = SimulatedGpu(find_preset("A100"), world.rank, time_source=time_source)
        with TrainingEnergy(ZeusMonitor(gpus=[gpu], time_source=time_source), world=world) as energy:
            train(energy, gpu)
        return energy.result()

    first, *others = ThreadWorld.run(3, rank_main, 60.0)
    assert others == [first, first]
    assert len(boxes(capsys)) == 1


@pytest.mark.parametrize(("model", "is_followed_alone"), [("A40", False), ("V100-SXM2-32GB", True)])
def test_a_simulated_gpu_gets_a_load_from_the_steps_of_a_script(monkeypatch, model, is_followed_alone):
    """It had idled through a script of a user's own, and a limit was chosen for that."""
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", f"{model}:7")  # as in no other test: a process keeps those it has made
    gpu, *_ = discover_gpus()
    idle_watts = gpu.read_power_watts()
    hooks = GlobalPowerLimitOptimizer(ZeusMonitor(gpus=[gpu]), Energy(), quiet=True)
    if not is_followed_alone:
        hooks = TrainingEnergy(hooks.monitor, hooks, quiet=True)
    hooks.on_train_begin()
    busy = []
    for _ in range(12):
        hooks.on_step_begin()
        busy.append(gpu.read_power_watts() > idle_watts)
        time.sleep(0.1)  # a step is longer than a busy machine pauses a program
        hooks.on_step_end()
    assert busy[0] is False, "how long a step is, the first one tells"
    assert all(busy[1:])
    assert gpu.read_power_watts() == idle_watts, "between two steps it waits"
    said = hooks.result()["simulated"]
    assert re.fullmatch(r"the work did not run on it; each step counts as [\d.]+ s of work that wants 36[0-9] W", said)
    hooks.on_train_end()


def test_a_script_that_submits_its_work_gets_no_other(monkeypatch):
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "Quadro RTX 6000:1")
    (gpu,) = discover_gpus()
    energy = TrainingEnergy(ZeusMonitor(gpus=[gpu]), quiet=True)
    with energy:
        for _ in range(4):
            with energy.step():
                gpu.execute(Work(0.01, 300.0))
    assert gpu.submitted == 4
    assert "simulated" not in energy.result()
