"""The callback in real Trainers, on a simulated GPU whose clock is virtual."""

import copy
import json
import logging
import os
import pickle
import signal
from collections import UserDict
from dataclasses import dataclass
from types import SimpleNamespace

import lightning.pytorch
import pytest
import torch
from lightning.pytorch.utilities.exceptions import SIGTERMException
from pytorch_lightning.utilities.exceptions import SIGTERMException as OtherSIGTERMException

from tests.lightning.trainers import (
    BACKWARD,
    BATCH_SIZE,
    FORWARD,
    SAVING,
    at,
    at_step,
    joules_of,
    loader,
    make_trainer,
    module_class,
    recorder,
    step_joules,
    tensorboard_values,
)
from zeus_core.device import Work
from zeus_core.errors import UsageError
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import Energy, EnergyWithin, GlobalClockOptimizer, GlobalPowerLimitOptimizer
from zeus_core.optimizer.global_setting.phases import Phase
from zeus_core.search import GridSearch
from zeus_core.settings.limit_knob import PowerLimitKnob
from zeus_core.training.record.run_file import read_run
from zeus_lightning import ZeusCallback
from zeus_lightning._energy_source import EnergySource
from zeus_lightning._progress import samples_in

Module = module_class(lightning.pytorch)

INTERVAL_KEYS = {"energy_j", "power_w", "energy_per_sample_j", "total_energy_j", "power_limit_w"}
SUMMARY_KEYS = {
    "train_energy_j",
    "train_energy_wh",
    "train_energy_uncertainty_j",
    "train_energy_steps_j",
    "train_energy_evaluation_j",
    "train_energy_checkpoint_j",
    "train_energy_idle_j",
    "train_energy_overhead_s",
}


def test_a_fit_logs_where_its_energy_goes(pl, tmp_path, monitor, gpu):
    callback = ZeusCallback(monitor)
    trainer = make_trainer(
        tmp_path,
        callback,
        pl,
        max_steps=40,
        logger=pl.loggers.TensorBoardLogger(tmp_path / "board"),
        enable_checkpointing=True,
        val_check_interval=20,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=2,
    )
    begin = gpu.exact_energy_joules()
    trainer.fit(module_class(pl)(gpu, SAVING), loader(20), loader(10))
    total = gpu.exact_energy_joules() - begin

    logged = tensorboard_values(trainer.logger.log_dir)
    assert {f"train/{name}" for name in INTERVAL_KEYS} | {"validate/energy_j"} | SUMMARY_KEYS <= set(logged)
    assert set(logged["train/energy_j"]) == set(logged["loss"]) == {4, 9, 14, 19, 24, 29, 34, 39}
    assert set(logged["validate/energy_j"]) == {19, 39}

    step, evaluation = step_joules(gpu), 10 * joules_of(gpu, FORWARD)
    assert list(logged["train/energy_j"].values()) == pytest.approx([5 * step] * 8, rel=0.05)
    assert list(logged["train/energy_per_sample_j"].values()) == pytest.approx([step / BATCH_SIZE] * 8, rel=0.05)
    assert list(logged["validate/energy_j"].values()) == pytest.approx([evaluation] * 2, rel=0.05)
    assert list(logged["train/power_limit_w"].values()) == [350] * 8

    summary = {name: values[40] for name, values in logged.items() if name in SUMMARY_KEYS}
    assert summary["train_energy_j"] == pytest.approx(total, rel=0.001)
    assert summary["train_energy_steps_j"] == pytest.approx(40 * step, rel=0.03)
    sanity = 2 * joules_of(gpu, FORWARD)
    assert summary["train_energy_evaluation_j"] == pytest.approx(2 * evaluation + sanity, rel=0.03)
    assert summary["train_energy_checkpoint_j"] == pytest.approx(total - 40 * step - 2 * evaluation - sanity, rel=0.03)
    assert callback.summary.account.samples == 40 * BATCH_SIZE
    assert callback.summary.steps == 40
    assert {path.name for path in tmp_path.iterdir()} == {"board", "zeus-energy"}
    losses = [(point.step, point.value) for point in read_run(tmp_path).losses["loss"]]
    assert losses == [(step, pytest.approx(logged["loss"][step - 1])) for step in (20, 40)]


def test_evaluations_by_themselves_are_logged_too(tmp_path, monitor, gpu):
    pl = lightning.pytorch
    log = recorder(pl)
    trainer = make_trainer(tmp_path, ZeusCallback(monitor), pl, logger=log)
    module = module_class(pl)(gpu)
    trainer.validate(module, loader(10), verbose=False)
    trainer.test(module, loader(20), verbose=False)
    assert log.values("validate/energy_j") == pytest.approx([10 * joules_of(gpu, FORWARD)], rel=0.03)
    assert log.values("test/energy_j") == pytest.approx([20 * joules_of(gpu, FORWARD)], rel=0.03)
    assert list(tmp_path.iterdir()) == []


def test_a_prediction_by_itself_has_an_energy(tmp_path, monitor, gpu):
    pl = lightning.pytorch
    callback = ZeusCallback(monitor)
    trainer = make_trainer(tmp_path, callback, pl)
    module = module_class(pl)(gpu)
    module.predict_step = lambda batch, batch_idx: gpu.execute(FORWARD) or batch
    trainer.predict(module, loader(10), return_predictions=False)
    assert callback.energy.evaluation("predict") == {
        "predict_energy_j": pytest.approx(10 * joules_of(gpu, FORWARD), rel=0.03)
    }


@pytest.mark.parametrize("bar", ["TQDMProgressBar", "RichProgressBar"])
def test_the_progress_bar_shows_power_and_energy(pl, tmp_path, monitor, gpu, bar):
    if bar == "RichProgressBar":
        pytest.importorskip("rich")
    bar = getattr(pl.callbacks, bar)()
    shown = []
    look = at("on_train_end", lambda trainer: shown.append(bar.get_metrics(trainer, trainer.lightning_module)), pl)
    callbacks = [look, ZeusCallback(monitor), bar]
    trainer = make_trainer(tmp_path, callbacks, pl, log_every_n_steps=20, enable_progress_bar=True)
    module = module_class(pl)(gpu)
    trainer.fit(module, loader(20))
    assert shown[0]["power_w"] == pytest.approx(310, abs=20)
    assert shown[0]["energy_kj"] == pytest.approx(20 * step_joules(gpu) / 1000, rel=0.03)
    assert "get_metrics" not in vars(bar)


def test_tokens_and_samples_are_counted_as_one_says(tmp_path, monitor, gpu):
    log = recorder()
    callback = ZeusCallback(monitor, batch_size=7, tokens=lambda batch: batch.numel())
    make_trainer(tmp_path, callback, logger=log).fit(Module(gpu), loader(20))
    assert callback.summary.account.samples == 20 * 7
    assert callback.summary.account.tokens == 20 * BATCH_SIZE * 4
    assert callback.summary.values()["train_energy_per_token_j"] == pytest.approx(
        step_joules(gpu) / (BATCH_SIZE * 4), rel=0.05
    )
    per_token = step_joules(gpu) / (BATCH_SIZE * 4)
    assert log.values("train/energy_per_token_j") == pytest.approx([per_token] * 4, rel=0.05)
    assert log.values("train/energy_per_sample_j") == []


# Steps.


def search(monitor, **arguments):
    settings = {"wait_steps": 0, "warmup_steps": 1, "profile_steps": 8, "pl_step": 50, **arguments}
    return GlobalPowerLimitOptimizer(monitor, Energy(), **settings, search=GridSearch)


def check_trials(optimizer, gpu, batches=1):
    """That the trials hold whole training steps, and nothing else."""
    assert optimizer.confirmation is not None
    for trial in [*optimizer.trials, optimizer.confirmation]:
        points = [gpu.preset.physics.operating_point(work, trial.setting) for work in (FORWARD, BACKWARD)]
        assert trial.steps == 8
        assert trial.seconds_per_step == pytest.approx(batches * sum(point.seconds for point in points), rel=1e-9)
    assert gpu.read_power_limit_watts() == 350


def test_a_step_is_an_optimizer_step(tmp_path, monitor, gpu):
    pl = lightning.pytorch
    log, optimizer = recorder(pl), search(monitor)
    callback = ZeusCallback(optimizer=optimizer)
    trainer = make_trainer(tmp_path, callback, pl, max_steps=80, accumulate_grad_batches=3, logger=log)
    trainer.fit(module_class(pl)(gpu), loader(20))
    assert callback.summary.steps == trainer.global_step == 80
    # 20 batches are 6 steps of 3 batches and one of 2, at the end of each epoch.
    assert [trial.setting for trial in optimizer.trials] == [350, 300, 250, 200, 150, 100]
    assert len(log.values("train/energy_j")) == 80 // 5


@pytest.mark.long
def test_whole_steps_only_are_in_the_trials(tmp_path, monitor, gpu):
    optimizer = search(monitor)
    callback = ZeusCallback(optimizer=optimizer)
    trainer = make_trainer(
        tmp_path,
        callback,
        max_steps=120,
        accumulate_grad_batches=2,
        val_check_interval=15,
        check_val_every_n_epoch=None,
    )
    trainer.fit(Module(gpu), loader(60), loader(5))
    check_trials(optimizer, gpu, batches=2)


def test_evaluations_and_checkpoints_are_in_no_trial(tmp_path, monitor, gpu):
    pl = lightning.pytorch
    optimizer = search(monitor)
    trainer = make_trainer(
        tmp_path,
        [ZeusCallback(optimizer=optimizer), pl.callbacks.ModelCheckpoint(every_n_train_steps=7)],
        pl,
        max_steps=90,
        enable_checkpointing=True,
        val_check_interval=5,
        num_sanity_val_steps=2,
        logger=(log := recorder(pl)),
    )
    trainer.fit(module_class(pl)(gpu, SAVING), loader(10), loader(3))
    check_trials(optimizer, gpu)
    assert log.values("train_energy_saving_fraction") == pytest.approx([0.17], abs=0.02)
    assert set(log.values("train/power_limit_w")) <= {350, 300, 250, 200, 150, 100}


def test_a_sanity_check_does_not_hide_the_batch_size_from_the_profile(tmp_path, monitor, gpu):
    """Before it the trainer has no data. Trials of other batch sizes would be used, and a resumed search would not."""
    profile = tmp_path / "profile.json"
    for checks in (2, 0):
        optimizer = search(monitor, profile_path=profile)
        callback = ZeusCallback(optimizer=optimizer, quiet=True)
        trainer = make_trainer(tmp_path, callback, max_epochs=2, max_steps=-1, num_sanity_val_steps=checks)
        trainer.fit(Module(gpu), loader(45), loader(3))
        assert callback.summary.steps == 90
        assert callback.summary.account.redone.seconds == 0
        assert gpu.read_power_limit_watts() == 350
    (known,) = json.loads(profile.read_text())["profiles"]
    assert known["conditions"]["work"]["batch_size"] == 4


def test_an_optimizer_is_made_for_the_monitor(tmp_path, monitor, gpu):
    callback = ZeusCallback(monitor, search)
    trainer = make_trainer(tmp_path, callback, max_steps=10)
    trainer.fit(Module(gpu), loader(10))
    assert callback.energy.optimizer.monitor is monitor
    first = callback.energy.optimizer
    trainer.fit_loop.epoch_loop.max_steps = 90
    trainer.fit(Module(gpu), loader(10))
    assert callback.energy.optimizer is first
    check_trials(first, gpu)


@pytest.mark.long
@pytest.mark.parametrize("batches_per_step", [2, 1])
def test_several_optimizers_stepped_by_hand_make_one_step(tmp_path, monitor, gpu, batches_per_step):
    pl = lightning.pytorch

    class ByHand(module_class(pl)):
        def __init__(self):
            super().__init__(gpu)
            self.automatic_optimization = False

        def training_step(self, batch, batch_idx):
            self.manual_backward(self.loss(batch))
            if (batch_idx + 1) % batches_per_step == 0:
                for optimizer in self.optimizers():
                    optimizer.step()
                    optimizer.zero_grad()

        def configure_optimizers(self):
            return [torch.optim.SGD([parameter], 0.01) for parameter in self.parameters()]

    log, optimizer = recorder(pl), search(monitor)
    callback = ZeusCallback(optimizer=optimizer)
    trainer = make_trainer(tmp_path, callback, pl, max_steps=-1, max_epochs=4 * batches_per_step, logger=log)
    trainer.fit(ByHand(), loader(20))
    assert trainer.global_step == 2 * 80
    assert callback.summary.steps == 80
    assert len(log.values("train/energy_j")) == 80 // 5
    check_trials(optimizer, gpu, batches_per_step)


# Beginning and ending.


def test_a_second_fit_goes_on_where_the_first_has_ended(tmp_path, monitor, gpu, caplog):
    pl = lightning.pytorch
    callback = ZeusCallback(monitor)
    trainer = make_trainer(tmp_path, callback, pl, max_steps=-1, max_epochs=1)
    module = module_class(pl)(gpu)
    trainer.fit(module, loader(10))
    first = callback.summary
    trainer.test(module, loader(5), verbose=False)
    assert callback.summary is first
    trainer.fit_loop.max_epochs = 3
    trainer.fit(module, loader(10))
    assert callback.summary.steps == 20
    assert callback.summary.account.total.energy_joules == pytest.approx(30 * step_joules(gpu), rel=0.01)
    assert callback.summary.account.redone.seconds == 0

    trainer = make_trainer(tmp_path, callback, pl, max_steps=10)
    trainer.fit(module_class(pl)(gpu), loader(10))
    assert callback.summary.account.total.energy_joules == pytest.approx(10 * step_joules(gpu), rel=0.01)
    assert [record for record in caplog.records if record.name.startswith("zeus")] == []


def interrupt():
    raise KeyboardInterrupt


def fail():
    raise RuntimeError("boom")


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("end", [fail, interrupt, terminate])
def test_leaving_training_leaves_no_limit_and_no_window(pl, tmp_path, monitor, gpu, end, caplog):
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    callback = ZeusCallback(optimizer=search(monitor))
    trainer = make_trainer(tmp_path, [callback, at_step(25, end, pl)], pl, max_steps=90)
    limits = []
    module = module_class(pl)(gpu)
    module.on_train_batch_end = lambda *_: limits.append(gpu.read_power_limit_watts())
    with pytest.raises((RuntimeError, SystemExit, SIGTERMException, OtherSIGTERMException)):
        trainer.fit(module, loader(10))
    assert min(limits) < 350
    assert gpu.read_power_limit_watts() == 350
    assert callback.energy.optimizer.phase is Phase.REST
    with pytest.raises(UsageError, match="open windows: none"):
        monitor.end_window("anything")
    assert "save_checkpoint" not in vars(trainer)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == handlers
    assert callback.summary.account.total.energy_joules > 20 * 100
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_limit_set_before_the_training_leaves_sigterm_to_lightning(pl, tmp_path, monitor, gpu):
    knob = PowerLimitKnob([gpu], 25)
    knob.apply(300)  # signals are caught from here on, and Lightning would call the handler that it finds
    trainer = make_trainer(tmp_path, [ZeusCallback(monitor), at_step(5, terminate, pl)], pl, max_steps=20)
    with pytest.raises((SIGTERMException, OtherSIGTERMException)):
        trainer.fit(module_class(pl)(gpu), loader(10))
    assert gpu.read_power_limit_watts() == 350


@pytest.mark.parametrize("copies", ["the same twice", "another"])
def test_of_two_callbacks_the_second_steps_aside(pl, tmp_path, monitor, gpu, caplog, copies):
    callback = ZeusCallback(monitor)
    second = (
        callback
        if copies == "the same twice"
        else ZeusCallback(ZeusMonitor(gpus=[gpu], time_source=monitor.time_source))
    )
    log = recorder(pl)
    other = at("on_train_start", lambda trainer: None, pl)
    trainer = make_trainer(tmp_path, [callback, other, second], pl, logger=log)
    trainer.fit(module_class(pl)(gpu), loader(20))
    assert trainer.callbacks == [callback, other]
    assert len(log.values("train/energy_j")) == 4
    assert callback.summary.account.total.energy_joules == pytest.approx(20 * step_joules(gpu), rel=0.01)
    assert [record.getMessage() for record in caplog.records if record.name.startswith("zeus")] == [
        "a trainer needs one ZeusCallback: the first one measures, 1 more step aside"
    ]


def test_a_training_within_another_does_not_end_the_account_of_it(tmp_path, monitor, gpu, caplog):
    callback = ZeusCallback(monitor, quiet=True)
    begin = at_step(10, lambda: make_trainer(tmp_path, callback, max_steps=5).fit(Module(gpu), loader(5)))
    make_trainer(tmp_path, [callback, begin], max_steps=20).fit(Module(gpu), loader(20))
    assert callback.summary.steps == 20
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    (text,) = [record.getMessage() for record in caplog.records if "within the training" in record.getMessage()]
    assert "ZeusCallback is removed" in text


@pytest.mark.parametrize("is_wrapped", ["before", "after"])
def test_saving_that_somebody_else_has_wrapped_stays_wrapped(tmp_path, monitor, gpu, is_wrapped):
    pl = lightning.pytorch
    calls = []

    def wrap(trainer):
        save = trainer.save_checkpoint
        trainer.save_checkpoint = lambda *arguments: (calls.append(arguments), save(*arguments))

    others = [] if is_wrapped == "before" else [at("on_fit_start", wrap, pl)]
    trainer = make_trainer(tmp_path, [ZeusCallback(monitor), *others], pl)
    if is_wrapped == "before":
        wrap(trainer)
    theirs = vars(trainer).get("save_checkpoint")
    trainer.fit(module_class(pl)(gpu), loader(20))
    assert theirs in (None, vars(trainer)["save_checkpoint"])
    trainer.save_checkpoint(tmp_path / "after.ckpt")
    assert len(calls) == 1
    assert (tmp_path / "after.ckpt").exists()


def test_a_fast_dev_run_leaves_no_file(tmp_path, monitor, gpu, monkeypatch):
    pl = lightning.pytorch
    monkeypatch.chdir(tmp_path)
    callback = ZeusCallback(monitor)
    trainer = make_trainer(tmp_path, callback, pl, fast_dev_run=3, max_steps=-1)
    trainer.fit(module_class(pl)(gpu), loader(10), loader(10))
    assert callback.summary.steps == 3
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_a_bucket_holds_no_journal(tmp_path, monitor, gpu, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_trainer("memory://bucket/run", ZeusCallback(monitor)).fit(Module(gpu), loader(20))
    assert list(tmp_path.iterdir()) == []


def test_without_a_monitor_one_is_made_for_the_trainer(tmp_path, monkeypatch):
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "A40:2")
    callback = ZeusCallback()
    assert callback.energy is None
    make_trainer(tmp_path, callback).fit(Module(), loader(20))
    assert callback.energy.monitor.gpu_indices == [0, 1]
    assert callback.summary.account.total.energy_joules > 0


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda callback: pickle.loads(pickle.dumps(callback))])
def test_a_copy_measures_where_it_trains_and_sets_no_limit(tmp_path, monitor, monkeypatch, caplog, copied):
    """The strategy "ddp_spawn" pickles the callbacks for each process."""
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "A40:1")
    optimizer = GlobalPowerLimitOptimizer(monitor)
    sent = copied(ZeusCallback(monitor, optimizer, tokens=7))
    make_trainer(tmp_path, sent).fit(Module(), loader(20))
    assert sent.summary.steps == 20
    assert sent.summary.account.tokens == 20 * 7
    assert sent.energy.optimizer is None
    assert sent.energy.monitor.gpus[0].name == "A40 (simulated)"
    assert "optimizer=GlobalPowerLimitOptimizer" in caplog.text


def test_a_copy_makes_its_own_optimizer(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "A40:1")
    sent = pickle.loads(pickle.dumps(ZeusCallback(optimizer=GlobalPowerLimitOptimizer)))
    make_trainer(tmp_path, sent).fit(Module(), loader(20))
    assert isinstance(sent.energy.optimizer, GlobalPowerLimitOptimizer)
    assert "sets no power limit" not in caplog.text


def test_where_nothing_can_be_measured_training_goes_on(tmp_path, monkeypatch, caplog):
    pl = lightning.pytorch
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "B1000")
    module = module_class(pl)()
    trainer = make_trainer(tmp_path, ZeusCallback(), pl, enable_checkpointing=True)
    trainer.fit(module, loader(20), loader(2))
    trainer.validate(module, loader(2), verbose=False)
    assert trainer.global_step == 20
    (message,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert message.startswith("ZeusCallback._begin_session failed; training continues: there is no GPU model")


def test_training_on_a_gpu_that_is_not_measured_is_said(monitor, caplog):
    """The trainer's GPU is not touched, so that it need not be there."""
    strategy = SimpleNamespace(root_device=torch.device("cuda", 3))
    trainer = SimpleNamespace(strategy=strategy, default_root_dir=".", fast_dev_run=True)
    EnergySource(monitor, None).energy_of(trainer)
    (message,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "training runs on GPU 3" in message


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"monitor": "gpu"}, "monitor is 'gpu'"),
        ({"optimizer": "energy"}, "optimizer is 'energy'"),
        ({"batch_size": "4"}, "batch_size is '4'"),
        ({"tokens": -1}, "tokens is -1"),
    ],
)
def test_wrong_arguments_are_named_at_construction(arguments, complaint):
    with pytest.raises(UsageError, match=complaint):
        ZeusCallback(**arguments)


@dataclass
class Pair:
    text: list[str]
    image: torch.Tensor


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.zeros(5, 2), 5),
        ([torch.zeros(3), torch.zeros(9)], 3),
        ({"text": ["a", "b"], "ids": torch.zeros(2, 7)}, 2),
        (UserDict(ids=torch.zeros(6, 7)), 6),
        (Pair(["a"], torch.zeros(8, 1)), 8),
        (torch.tensor(1.0), 1),
        ("text", 0),
        (iter([torch.zeros(5)]), 0),
    ],
)
def test_the_first_tensor_of_a_batch_has_its_samples(batch, samples):
    assert samples_in(batch) == samples


@pytest.mark.parametrize(("windows", "samples"), [(64, 20 * 64), (None, 0)])
def test_windows_that_a_module_draws_from_a_batch_are_its_samples(tmp_path, monitor, gpu, windows, samples):
    """As modules of neuralforecast do, whose batches hold whole series."""
    module = Module(gpu)
    module.windows_batch_size = windows
    callback = ZeusCallback(monitor)
    make_trainer(tmp_path, callback).fit(module, loader(20))
    assert callback.summary.account.samples == samples
    assert ("per sample" in callback.summary.rows()) is (samples > 0)


def test_a_clock_is_searched_instead_of_a_limit_with_that_optimizer(tmp_path, monitor, gpu):
    def make_optimizer(monitor):
        search = lambda clocks, selector: GridSearch(clocks[::20])  # noqa: E731
        return GlobalClockOptimizer(
            monitor,
            Energy(),
            warmup_steps=1,
            profile_steps=4,
            search=search,
            profile_path=tmp_path / "profile.json",
        )

    callback = ZeusCallback(monitor, make_optimizer, quiet=True)
    make_trainer(tmp_path, callback, max_steps=60).fit(Module(gpu), loader(60))
    optimizer = callback.energy.optimizer
    assert [trial.setting for trial in optimizer.trials] == [1410, 1110, 810, 510, 210]
    gpu.submit(Work(1e6, 90.0))
    assert gpu.read_sm_clock_mhz() == 1410, "it is unlocked again"
    (profile,) = json.loads((tmp_path / "profile.json").read_text())["profiles"]
    work = profile["conditions"]["work"]
    assert (work["model"], work["batch_size"]) == ("Module", BATCH_SIZE)
    assert work["parameters"] > 0


def test_steps_and_long_validations_may_have_clocks_of_their_own(tmp_path, monitor, gpu):
    def make_optimizer(monitor):
        own = {"activities": "each", "changes_per_hour": 10**6, "max_steps": 80}
        return GlobalClockOptimizer(monitor, EnergyWithin(1.1), **own)

    def trained(callbacks):
        module, often = Module(gpu), {"val_check_interval": 4, "check_val_every_n_epoch": None}
        make_trainer(tmp_path, callbacks, max_steps=80, **often).fit(module, loader(20), loader(20))
        gpu.submit(Work(1e6, 90.0))
        assert gpu.read_sm_clock_mhz() == 1410, "it is unlocked again"
        return module.losses, [weight.tolist() for weight in module.parameters()]

    callback = ZeusCallback(monitor, make_optimizer, quiet=True)
    assert trained(callback) == trained([])
    rows, trials = callback.energy.optimizer.result(), callback.energy.optimizer._search.trials_of("evaluation")
    assert "of the time" in rows["during evaluation"]
    assert "of the energy" in rows["during steps"]
    assert len({trial.setting for trial in trials}) > 1
    seconds = 20 * gpu.preset.physics.operating_point(FORWARD, 350).seconds
    assert trials[0].seconds_per_step == pytest.approx(seconds, rel=0.01), "the whole of it"


def test_logs_add_up_where_validations_follow_the_last_of_them(tmp_path, monitor, gpu):
    pl = lightning.pytorch
    log, callback = recorder(pl), ZeusCallback(monitor)
    trainer = make_trainer(
        tmp_path, callback, pl, max_steps=23, logger=log, val_check_interval=4, check_val_every_n_epoch=None
    )
    trainer.fit(module_class(pl)(gpu), loader(20), loader(5))
    values = callback.summary.values()
    assert sum(log.values("train/energy_j")) == values["train_energy_steps_j"]
    assert values["train_energy_steps_j"] == pytest.approx(23 * step_joules(gpu), rel=0.03)
    assert sum(log.values("validate/energy_j")) == pytest.approx(values["train_energy_evaluation_j"], rel=0.005)
