"""Totals that outlive interruptions."""

import contextlib
import itertools
import multiprocessing
import os
import signal

import lightning.pytorch
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint

from tests.lightning.trainers import at, at_step, loader, make_trainer, module_class, step_joules
from tests.support.variants import long_but_first
from zeus_core.device import SimulatedGpu, find_preset
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import GlobalClockOptimizer
from zeus_core.optimizer.power_limit import EnergyWithin
from zeus_core.testing import VirtualTime
from zeus_lightning import ZeusCallback

Module = module_class(lightning.pytorch)


def train(folder, gpu, time_source, max_steps, resume_from=None, callbacks=(), pl=lightning.pytorch, callback=None):
    callback = callback or ZeusCallback(ZeusMonitor(gpus=[gpu], time_source=time_source))
    saving = pl.callbacks.ModelCheckpoint(
        folder / "checkpoints", filename="{step}", every_n_train_steps=10, save_top_k=-1
    )
    trainer = make_trainer(folder, [callback, *callbacks, saving], pl, max_steps=max_steps, enable_checkpointing=True)
    checkpoint = resume_from and folder / "checkpoints" / f"step={resume_from}.ckpt"
    trainer.fit(module_class(pl)(gpu), loader(20), ckpt_path=checkpoint)
    return callback


def part(folder, results, resume_from, kill_at):
    """A process that trains until it is killed, or to the end. It writes down the true energy at each log."""
    time_source = VirtualTime()
    gpu = SimulatedGpu(find_preset("A100-SXM4-80GB"), time_source=time_source, power_limit_watts=350)
    begin = gpu.exact_energy_joules()

    def write_truth(trainer):
        if trainer.global_step % 5 == 0:
            (folder / f"truth-{resume_from}").write_text(str(gpu.exact_energy_joules() - begin))

    kill = at_step(kill_at, lambda: os.kill(os.getpid(), signal.SIGKILL))
    callback = train(folder, gpu, time_source, 50, resume_from, [at("on_train_batch_end", write_truth), kill])
    results.put(callback.summary)


def test_a_run_killed_three_times_knows_all_it_has_taken(tmp_path, gpu):
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    for resume_from, kill_at in [(None, 17), (10, 28), (20, 36), (30, None)]:
        process = context.Process(target=part, args=(tmp_path, results, resume_from, kill_at))
        process.start()
        process.join(240)
        assert process.exitcode == (0 if kill_at is None else -signal.SIGKILL)
    account = results.get().account
    truths = [float((tmp_path / f"truth-{resumed_at}").read_text()) for resumed_at in (None, 10, 20, 30)]
    steps = [15, 15, 15, 20]  # up to the last log of each part
    assert truths == pytest.approx([count * step_joules(gpu) for count in steps], rel=0.001)
    assert account.total.energy_joules == pytest.approx(sum(truths), rel=0.005)
    assert account.redone.energy_joules == pytest.approx(3 * 5 * step_joules(gpu), rel=0.03)
    assert account.samples == 65 * 4


def test_a_checkpoint_takes_the_total_along_to_where_no_journal_is(pl, tmp_path, gpu, time_source, caplog):
    train(tmp_path, gpu, time_source, 20, pl=pl)
    (tmp_path / "zeus-energy" / "rank-0.jsonl").unlink()
    callback = train(tmp_path, gpu, time_source, 30, resume_from=20, pl=pl)
    assert callback.summary.account.total.energy_joules == pytest.approx(30 * step_joules(gpu), rel=0.01)
    assert "there is no energy journal of this run here" in caplog.text


def messages_of_ours(caplog):
    return [record.getMessage() for record in caplog.records if record.name.startswith("zeus")]


def test_training_goes_on_from_a_checkpoint_made_without_the_callback(tmp_path, gpu, time_source, caplog):
    pl = lightning.pytorch
    nobody = at("on_train_start", lambda _: None, pl)
    train(tmp_path, gpu, time_source, 10, pl=pl, callback=nobody)
    callback = train(tmp_path, gpu, time_source, 20, resume_from=10, pl=pl)
    assert callback.summary.account.total.energy_joules == pytest.approx(10 * step_joules(gpu), rel=0.01)
    (message,) = messages_of_ours(caplog)
    assert message.startswith("training resumes at step 10 from a checkpoint with no energy state")


def test_training_goes_on_without_the_callback_that_was_there(tmp_path, gpu, time_source):
    pl = lightning.pytorch
    """Lightning logs no warning, which would be an error here."""
    nobody = at("on_train_start", lambda _: None, pl)
    train(tmp_path, gpu, time_source, 10, pl=pl)
    train(tmp_path, gpu, time_source, 20, resume_from=10, pl=pl, callback=nobody)


@pytest.mark.parametrize(
    "state", long_but_first([{"step": 10, "energy": {"format": 7}}, "nonsense", {"step": "ten"}, []])
)
def test_a_damaged_state_is_as_good_as_none(tmp_path, gpu, time_source, caplog, state):
    train(tmp_path, gpu, time_source, 10)
    path = tmp_path / "checkpoints" / "step=10.ckpt"
    checkpoint = torch.load(path, weights_only=False)
    checkpoint["zeus_lightning.ZeusCallback"] = state
    torch.save(checkpoint, path)
    callback = train(tmp_path, gpu, time_source, 20, resume_from=10)
    assert callback.summary.account.total.energy_joules == pytest.approx(10 * step_joules(gpu), rel=0.01)
    assert "training resumes at step 10 from a checkpoint with no energy state" in messages_of_ours(caplog)[-1]


def test_an_evaluation_of_a_checkpoint_changes_nothing_of_the_run(tmp_path, monitor, gpu):
    callback = ZeusCallback(monitor)
    saving = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=5, save_top_k=-1)
    trainer = make_trainer(tmp_path, [callback, saving], max_steps=20, enable_checkpointing=True)
    module = Module(gpu)
    trainer.fit(module, loader(20))
    trainer.test(module, loader(2), ckpt_path=tmp_path / "step=5.ckpt", verbose=False)
    trainer.save_checkpoint(tmp_path / "final.ckpt")
    trainer.fit_loop.epoch_loop.max_steps = 30
    trainer.fit(module, loader(20))
    assert callback.summary.account.total.energy_joules == pytest.approx(30 * step_joules(gpu), rel=0.01)
    state = torch.load(tmp_path / "final.ckpt", weights_only=True)["zeus_lightning.ZeusCallback"]
    assert state["step"] == 20


@pytest.mark.filterwarnings("ignore:.*there is no last checkpoint available")
def test_after_an_exception_the_run_goes_on(tmp_path, monitor, gpu):
    def fail():
        raise RuntimeError("boom")

    callback = ZeusCallback(monitor)
    saving = OnExceptionCheckpoint(tmp_path)
    trainer = make_trainer(tmp_path, [at_step(12, fail), callback, saving], max_steps=30, enable_checkpointing=True)
    with pytest.raises(RuntimeError, match="boom"):
        trainer.fit(Module(gpu), loader(20), ckpt_path="last")
    trainer = make_trainer(tmp_path, callback, max_steps=30)
    trainer.fit(Module(gpu), loader(20), ckpt_path=saving.ckpt_path)
    assert callback.summary.account.total.energy_joules == pytest.approx(30 * step_joules(gpu), rel=0.01)
    assert callback.summary.account.redone.seconds == pytest.approx(0, abs=2)


def test_a_checkpoint_of_a_trainer_that_has_not_begun_says_nothing(monitor):
    checkpoint = {}
    ZeusCallback(monitor).on_save_checkpoint(None, None, checkpoint)
    assert checkpoint == {}


@pytest.mark.long
def test_a_run_resumed_in_its_validation_measures_no_curve_again(tmp_path):
    """A clock each for steps and validation: what was measured of both is in the checkpoint."""

    def fit(stop_at, resume_from=None):
        gpu = SimulatedGpu(find_preset("A100"), time_source=(time_source := VirtualTime()))
        monitor = ZeusMonitor(gpus=[gpu], cpu_indices=[], time_source=time_source)
        search = GlobalClockOptimizer(monitor, EnergyWithin(1.05), activities="each", changes_per_hour=10**6)
        saving = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=40, save_top_k=-1)
        found, validations = [], itertools.count(40 if resume_from else 0)

        def validate(trainer):
            if resume_from and not found:
                found.append(search._search.of_activities["evaluation"].blocks[:])
            if next(validations) == stop_at:
                found.append(search._search.of_activities["evaluation"].blocks[:])
                raise KeyboardInterrupt  # within the validation

        callbacks = [ZeusCallback(optimizer=search, quiet=True), saving, at("on_validation_batch_end", validate)]
        trainer = make_trainer(tmp_path, callbacks, max_steps=80, val_check_interval=1, enable_checkpointing=True)
        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            trainer.fit(Module(gpu), loader(80), loader(1), ckpt_path=resume_from)
        assert gpu._locked_clock_mhz == gpu.preset.highest_clock_mhz
        return found

    (known,) = fit(45)
    (resumed,) = fit(200, tmp_path / "step=40.ckpt")
    assert len(known) > 1
    assert [block.trial for block in resumed] == [block.trial for block in known][: len(resumed)]
    assert len(resumed) >= len(known) - 2, "but for those since the checkpoint"
