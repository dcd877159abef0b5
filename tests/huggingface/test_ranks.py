"""The callbacks in Trainers of several real processes, over gloo, on GPUs they share."""

import multiprocessing
import os
import signal
import time

import pytest
from transformers import Trainer, TrainerCallback

from tests.huggingface.trainers import BACKWARD, FORWARD, examples, losses_of, make_trainer
from tests.nvml_driver import DeviceSpec
from tests.support.hooks import be_patient
from tests.support.ranks import joules_of_rows, run_ranks, spawn_ranks
from zeus_core.codec import decode, encode
from zeus_core.device import SimulatedGpu, find_preset
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer.power_limit import Energy, GlobalPowerLimitOptimizer
from zeus_core.pytorch import SimulatedCompute
from zeus_core.search import GridSearch
from zeus_core.testing import VirtualTime
from zeus_core.training.account import Account
from zeus_core.training.record.run_file import read_run
from zeus_huggingface import ZeusTrainerCallback

LOADS = [[(0.3, 500.0), (0.1, 300.0)], [(1.0, 350.0)]]


class Spans(TrainerCallback):
    """When training, evaluations and checkpoints begin and end."""

    def __init__(self):
        self.of = {"evaluation": [], "checkpoint": [], "training": []}


def slow_trainer(spans, seconds):
    class SlowTrainer(Trainer):
        def training_step(self, *args, **kwargs):
            time.sleep(0.02)
            return super().training_step(*args, **kwargs)

        def evaluate(self, *args, **kwargs):
            begin = time.monotonic()
            metrics = super().evaluate(*args, **kwargs)
            spans["evaluation"].append((begin, time.monotonic()))
            return metrics

        def evaluation_loop(self, *args, **kwargs):
            time.sleep(seconds / 2)
            return super().evaluation_loop(*args, **kwargs)

        def _save_checkpoint(self, *args, **kwargs):
            begin = time.monotonic()
            super()._save_checkpoint(*args, **kwargs)
            spans["checkpoint"].append((begin, time.monotonic()))

        def save_model(self, *args, **kwargs):
            time.sleep(seconds / 2)
            return super().save_model(*args, **kwargs)

    return SlowTrainer


def train_rank(folder, seconds):
    callback = ZeusTrainerCallback(ZeusMonitor())
    spans = {"evaluation": [], "checkpoint": [], "training": []}

    class DeviceEvent(TrainerCallback):
        def on_train_begin(self, *_, **__):
            spans["training"] = [time.monotonic()]

        def on_train_end(self, *_, **__):
            spans["training"].append(time.monotonic())

    steps = 2 * round(seconds / 0.05)
    trainer = make_trainer(
        folder,
        [callback, DeviceEvent()],
        slow_trainer(spans, seconds),
        max_steps=steps,
        logging_steps=steps // 4,
        eval_strategy="steps",
        eval_steps=steps // 2,
        save_strategy="steps",
        save_steps=steps // 2,
        save_only_model=True,
        ddp_backend="gloo",
        report_to="tensorboard",
    )
    metrics = trainer.train().metrics
    return metrics, spans, trainer.state.log_history


@pytest.mark.real_time
@pytest.mark.long
def test_ranks_log_the_energy_of_all_devices_once(make_driver, tmp_path):
    """Each rank has a GPU; in tests/lightning they share one."""
    driver = make_driver(DeviceSpec(), DeviceSpec())
    for device, load in zip(driver, LOADS, strict=True):
        device.set_load(load, repeat=True)
    (metrics, spans, history), (other_metrics, _, other_history) = run_ranks(2, train_rank, tmp_path, 6.0)

    def truth(begin, end):
        return sum(device.true_energy_joules(begin, end) for device in driver)

    def phase_truth(name):
        return sum(truth(begin, end) for begin, end in spans[name])

    names = [name for name in metrics if name.startswith("train_energy") and not name.endswith("_s")]
    assert {name: metrics[name] for name in names} == {name: other_metrics[name] for name in names}, "ranks agree"
    energies = [[entry.get("energy_j"), entry.get("eval_energy_j")] for entry in history]
    assert energies == [[entry.get("energy_j"), entry.get("eval_energy_j")] for entry in other_history]
    assert metrics["train_energy_j"] == pytest.approx(truth(*spans["training"]), rel=0.1)
    assert metrics["train_energy_evaluation_j"] == pytest.approx(phase_truth("evaluation"), rel=0.1)
    assert metrics["train_energy_checkpoint_j"] == pytest.approx(phase_truth("checkpoint"), rel=0.1)
    steps_truth = truth(*spans["training"]) - phase_truth("evaluation") - phase_truth("checkpoint")
    assert metrics["train_energy_steps_j"] == pytest.approx(steps_truth, rel=0.1)
    assert {path.name for path in (tmp_path / "zeus-energy").iterdir()} == {"rank-0.jsonl", "rank-1.jsonl", "run.json"}
    assert read_run(tmp_path).account.interruptions == 0


def spawned_rank(folder):
    callback = ZeusTrainerCallback()  # of all GPUs, on each rank
    trainer = make_trainer(
        folder,
        [callback],
        slow_trainer({"evaluation": [], "checkpoint": []}, 0),
        max_steps=40,
        logging_steps=5,
        eval_strategy="steps",
        eval_steps=10,
        ddp_backend="gloo",
    )
    trainer.train()
    watts = [entry["power_w"] for entry in trainer.state.log_history if "power_w" in entry]
    return {"account": encode(callback.summary.account), "watts": watts}


@pytest.mark.long
def test_spawned_ranks_count_each_gpu_once(make_driver, tmp_path, monkeypatch, capfd):
    driver = make_driver(DeviceSpec(), DeviceSpec())
    for device in driver:
        device.set_load([(1.0, 400.0)], repeat=True)
    for name, value in driver.environment.items():
        monkeypatch.setenv(name, value)
    first, second = spawn_ranks(2, tmp_path, spawned_rank, str(tmp_path))
    assert first == second
    account = decode(Account, first["account"])
    assert joules_of_rows(account, 2, 700.0) == account.total.energy_joules
    assert account.total.power_watts == pytest.approx(800, rel=0.1)
    assert len(first["watts"]) == 8
    assert max(first["watts"]) <= 1.1 * 700.0 * 2
    assert capfd.readouterr().err.count("+- zeus-core") == 1


def search_rank(folder):
    be_patient()
    optimizer = GlobalPowerLimitOptimizer(
        ZeusMonitor(), Energy(), wait_steps=0, warmup_steps=0, profile_steps=5, pl_step=150, search=GridSearch
    )
    callback = ZeusTrainerCallback(optimizer=optimizer)
    trainer = make_trainer(
        folder,
        [callback],
        slow_trainer({"evaluation": [], "checkpoint": []}, 0),
        max_steps=60,
        logging_steps=5,
        ddp_backend="gloo",
    )
    trainer.train()
    limits = [entry["power_limit_w"] for entry in trainer.state.log_history if "loss" in entry]
    trials = [(trial.setting, trial.measurement.time, trial.joules_per_step) for trial in optimizer.trials]
    return trials, optimizer.chosen_limit_watts, limits


@pytest.mark.long
def test_ranks_search_together(make_driver, tmp_path):
    driver = make_driver(DeviceSpec(), DeviceSpec())
    for device, load in zip(driver, LOADS, strict=False):
        device.set_load(load, repeat=True)
    found = [device.power_limit_watts for device in driver]
    first, second = run_ranks(2, search_rank, tmp_path)
    assert first == second
    assert len(first[0]) >= 2
    assert first[1] is not None
    assert [device.power_limit_watts for device in driver] == found


# Kill and resume.


class KillAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


class WriteTruth(TrainerCallback):
    """Writes down the true energy at each log and checkpoint, when the journal is written."""

    def __init__(self, gpu, path):
        self.gpu, self.path = gpu, path

    def on_train_begin(self, *_, **__):
        self.begin = self.gpu.exact_energy_joules()

    def on_log(self, *_, **__):
        self.path.write_text(str(self.gpu.exact_energy_joules() - self.begin))

    on_save = on_log


def train_until_killed(folder, number, kill_at, results):
    time_source = VirtualTime()
    gpu = SimulatedGpu(find_preset("A100-SXM4-80GB"), time_source=time_source)
    callbacks = [
        ZeusTrainerCallback(ZeusMonitor(gpus=[gpu], time_source=time_source)),
        WriteTruth(gpu, folder / f"truth-{number}"),
    ]
    if kill_at is not None:
        callbacks.append(KillAt(kill_at))
    trainer = make_trainer(
        folder / "output", callbacks, max_steps=60, logging_steps=3, save_strategy="steps", save_steps=10
    )
    trainer.train_dataset = examples(60)
    SimulatedCompute(trainer.model, gpu, FORWARD, BACKWARD)
    metrics = trainer.train(resume_from_checkpoint=number > 0).metrics
    results.put((metrics, losses_of(trainer)))


@pytest.mark.long
def test_killed_and_resumed_three_times_the_totals_are_those_of_all_parts(tmp_path):
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    for number, kill_at in enumerate([17, 35, 44, None]):
        process = context.Process(target=train_until_killed, args=(tmp_path, number, kill_at, results))
        process.start()
        process.join(240)
        assert process.exitcode == (0 if kill_at is None else -signal.SIGKILL)
    metrics, _ = results.get()
    flushed = [float((tmp_path / f"truth-{number}").read_text()) for number in range(4)]
    assert metrics["train_energy_j"] == pytest.approx(sum(flushed), rel=0.01)
    steps_flushed_and_redone = (15 - 10) + (33 - 30) + (42 - 40)
    per_step = sum(flushed) / (60 + steps_flushed_and_redone)
    assert metrics["train_energy_redone_j"] == pytest.approx(steps_flushed_and_redone * per_step, rel=0.1)
