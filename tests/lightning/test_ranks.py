"""The callback in Trainers of several real processes, over gloo, on GPUs they share."""

import time

import lightning.pytorch
import pytest

from tests.lightning.trainers import loader, make_trainer, module_class, recorder
from tests.nvml_driver import DeviceSpec
from tests.support.accounts import account_of
from tests.support.hooks import be_patient
from tests.support.ranks import joules_of_rows, run_ranks
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import Energy, GlobalPowerLimitOptimizer
from zeus_core.search import GridSearch
from zeus_core.training.account import Account
from zeus_core.training.record.run_file import read_run
from zeus_lightning import ZeusCallback

LOADS = [[(0.3, 500.0), (0.1, 300.0)], [(1.0, 350.0)]]
STEP_SECONDS = 0.02


class SlowModule(module_class(lightning.pytorch)):
    """Takes its time, and notes when."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds
        self.spans = {"evaluation": [], "checkpoint": [], "training": []}

    def on_train_start(self):
        self.spans["training"] = [(time.monotonic(), None)]

    def training_step(self, batch, batch_idx):
        time.sleep(STEP_SECONDS)
        return super().training_step(batch, batch_idx)

    def on_validation_start(self):
        begin = time.monotonic()
        time.sleep(self.seconds / 2)
        self.spans["evaluation"].append((begin, time.monotonic()))

    def on_save_checkpoint(self, checkpoint):
        begin = time.monotonic()
        time.sleep(self.seconds / 2)
        self.spans["checkpoint"].append((begin, time.monotonic()))

    def on_train_end(self):
        ((begin, _),) = self.spans["training"]
        self.spans["training"] = [(begin, time.monotonic())]


def train_rank(folder, seconds):
    callback, log = ZeusCallback(), recorder()
    steps = 2 * round(seconds / (2 * STEP_SECONDS))
    trainer = make_trainer(
        folder,
        [callback, lightning.pytorch.callbacks.ModelCheckpoint(folder, every_n_train_steps=steps // 2)],
        max_steps=steps,
        log_every_n_steps=steps // 4,
        val_check_interval=steps // 2,
        enable_checkpointing=True,
        logger=log,
        devices=2,
        strategy="ddp",
    )
    module = SlowModule(seconds)
    trainer.fit(module, loader(2 * steps), loader(4))
    return callback.summary, module.spans, log.logged


@pytest.mark.real_time
@pytest.mark.long
def test_ranks_log_the_energy_of_all_devices_once(make_driver, tmp_path):
    """They share a GPU; in tests/huggingface each has one."""
    driver = make_driver(DeviceSpec())
    driver[0].set_load(LOADS[0], repeat=True)
    (summary, spans, logged), (other_summary, _, others_logged) = run_ranks(2, train_rank, tmp_path, 6.0)

    def truth(phase):
        return sum(device.true_energy_joules(begin, end) for begin, end in spans[phase] for device in driver)

    values = summary.values()
    assert summary.account == other_summary.account, "ranks agree"
    assert not any("energy" in name for _, metrics in others_logged for name in metrics), "rank zero logs"
    assert values["train_energy_j"] == pytest.approx(truth("training"), rel=0.1)
    assert values["train_energy_evaluation_j"] == pytest.approx(truth("evaluation"), rel=0.1)
    assert values["train_energy_checkpoint_j"] == pytest.approx(truth("checkpoint"), rel=0.1)
    steps_truth = truth("training") - truth("evaluation") - truth("checkpoint")
    assert values["train_energy_steps_j"] == pytest.approx(steps_truth, rel=0.1)
    intervals = [metrics["train/energy_j"] for _, metrics in logged if "train/energy_j" in metrics]
    assert sum(intervals) == pytest.approx(values["train_energy_steps_j"], rel=0.1)
    assert summary.account.samples == 2 * 4 * summary.steps
    assert {path.name for path in (tmp_path / "zeus-energy").iterdir()} == {"rank-0.jsonl", "rank-1.jsonl", "run.json"}
    assert read_run(tmp_path).account == summary.account


@pytest.mark.long
def test_ranks_that_lightning_spawns_count_each_gpu_once(make_driver, tmp_path, monkeypatch, capfd):
    driver = make_driver(DeviceSpec(), DeviceSpec())
    for device in driver:
        device.set_load([(1.0, 400.0)], repeat=True)
    for name, value in driver.environment.items():
        monkeypatch.setenv(name, value)
    callback = ZeusCallback(ZeusMonitor())  # which stays here
    module = SlowModule(0)
    arguments = {"max_steps": 40, "val_check_interval": 10, "devices": 2, "strategy": "ddp_spawn"}
    make_trainer(tmp_path, callback, **arguments).fit(module, loader(100), loader(4))
    accounts = []
    for path in (tmp_path / "zeus-energy").glob("rank-*.jsonl"):
        accounts.append(account_of(path.read_text().splitlines()[-1]))
    assert len(accounts) == 2
    account = Account.from_ranks(accounts)
    assert joules_of_rows(account, 2, 700.0) == account.total.energy_joules
    assert account.total.power_watts == pytest.approx(800, rel=0.1)
    assert capfd.readouterr().err.count("+- zeus-core") == 1


def search_rank(folder):
    be_patient()

    def make_optimizer(monitor):
        return GlobalPowerLimitOptimizer(
            monitor, Energy(), wait_steps=0, warmup_steps=0, profile_steps=5, pl_step=150, search=GridSearch
        )

    callback, log = ZeusCallback(ZeusMonitor(), make_optimizer), recorder()
    trainer = make_trainer(folder, callback, max_steps=60, logger=log, devices=2, strategy="ddp")
    trainer.fit(SlowModule(0), loader(120))
    optimizer = callback.energy.optimizer
    trials = [(trial.setting, trial.measurement.time, trial.joules_per_step) for trial in optimizer.trials]
    return trials, optimizer.chosen_limit_watts


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
