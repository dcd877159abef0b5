"""`ZeusTrainerCallback` in real Trainers, on a simulated GPU whose clock is virtual."""

import copy
import gc
import json
import logging
import pickle

import pytest
import torch
from transformers import ProgressCallback, Trainer, TrainerCallback

from tests.huggingface.trainers import (
    BACKWARD,
    FORWARD,
    RaiseAt,
    examples,
    losses_of,
    make_trainer,
    reports_to_tensorboard,
    tensorboard_tags,
    tiny_model,
)
from tests.support.variants import long_but_first
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.device.cpu import CpuDiscovery
from zeus_core.errors import DriverFaultError, UsageError
from zeus_core.events import Activity
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor.selection import warn_unless_measured
from zeus_core.optimizer.power_limit import Energy, GlobalPowerLimitOptimizer
from zeus_core.pytorch import SimulatedCompute
from zeus_core.search import GridSearch
from zeus_core.testing import FaultyGpu
from zeus_core.training.record.run_file import read_run
from zeus_huggingface import HFGlobalPowerLimitOptimizer, ZeusTrainerCallback, _trainer_patches

LOGGED = {"energy_j", "power_w", "energy_per_sample_j", "total_energy_j", "power_limit_w"}
AT_THE_END = {
    "train_energy_j",
    "train_energy_wh",
    "train_energy_uncertainty_j",
    "train_energy_steps_j",
    "train_energy_evaluation_j",
    "train_energy_checkpoint_j",
    "train_energy_idle_j",
    "train_energy_overhead_s",
}


class Truth:
    """The true energy of what happens between two moments, added up by name."""

    def __init__(self, gpu):
        self.gpu, self.joules = gpu, {}

    def of(self, name):
        truth, begin = self, self.gpu.exact_energy_joules()

        class Span:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                truth.joules[name] = truth.joules.get(name, 0.0) + truth.gpu.exact_energy_joules() - begin

        return Span()


@pytest.fixture
def callback(monitor):
    return ZeusTrainerCallback(monitor)


def simulate(trainer, gpu):
    SimulatedCompute(trainer.model, gpu, FORWARD, BACKWARD)
    return trainer


def test_energy_is_where_the_losses_are_and_true(tmp_path, callback, gpu, time_source, monkeypatch):
    truth = Truth(gpu)

    class WatchedTrainer(Trainer):
        def evaluate(self, *args, **kwargs):
            with truth.of("evaluation"):
                return super().evaluate(*args, **kwargs)

        def _save_checkpoint(self, *args, **kwargs):
            with truth.of("checkpoint"):
                super()._save_checkpoint(*args, **kwargs)

        def save_model(self, *args, **kwargs):
            super().save_model(*args, **kwargs)
            time_source.advance(20)

    trainer = make_trainer(
        tmp_path,
        [callback],
        WatchedTrainer,
        max_steps=60,
        logging_steps=10,
        **reports_to_tensorboard(tmp_path / "runs", monkeypatch),
        eval_strategy="steps",
        eval_steps=20,
        save_strategy="steps",
        save_steps=30,
    )
    trainer.eval_dataset = examples(40)
    simulate(trainer, gpu)
    with truth.of("all"):
        output = trainer.train()

    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(logs) == 6
    assert all(entry.keys() >= LOGGED for entry in logs)
    evaluations = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    assert [entry["eval_energy_j"] for entry in evaluations] == pytest.approx(
        [truth.joules["evaluation"] / 3] * 3, rel=0.03
    )
    losses = read_run(tmp_path).losses
    assert {name: [point.value for point in points] for name, points in losses.items()} == {
        "loss": [entry["loss"] for entry in logs],
        "eval_loss": [entry["eval_loss"] for entry in evaluations],
    }
    assert output.metrics.keys() >= AT_THE_END
    assert trainer.state.log_history[-1].keys() >= AT_THE_END

    metrics = output.metrics
    assert metrics["train_energy_j"] == pytest.approx(truth.joules["all"], rel=0.01)
    assert metrics["train_energy_j"] == pytest.approx(metrics["train_energy_wh"] * 3600)
    assert metrics["train_energy_evaluation_j"] == pytest.approx(truth.joules["evaluation"], rel=0.03)
    assert metrics["train_energy_checkpoint_j"] == pytest.approx(truth.joules["checkpoint"], rel=0.03)
    steps_joules = truth.joules["all"] - truth.joules["evaluation"] - truth.joules["checkpoint"]
    assert metrics["train_energy_steps_j"] == pytest.approx(steps_joules, rel=0.03)
    assert sum(entry["energy_j"] for entry in logs) == pytest.approx(metrics["train_energy_steps_j"], rel=0.01)
    assert logs[0]["energy_per_sample_j"] == pytest.approx(logs[0]["energy_j"] / 20)
    assert logs[0]["power_w"] == pytest.approx(steps_joules / 60 / 0.9, rel=0.2)
    assert logs[0]["power_limit_w"] == 350

    tags = tensorboard_tags(tmp_path / "runs")
    assert {f"train/{name}" for name in LOGGED} | {"eval/energy_j", "train/train_energy_j"} <= tags.keys()
    assert tags["train/energy_j"] == pytest.approx([entry["energy_j"] for entry in logs], rel=1e-5)
    assert callback.summary.steps == 60
    assert "evaluation" in str(callback.summary)


def test_tokens_are_counted_where_the_trainer_counts_them(tmp_path, callback, gpu):
    trainer = simulate(
        make_trainer(tmp_path, [callback], max_steps=20, logging_steps=10, include_num_input_tokens_seen="all"), gpu
    )
    trainer.train()
    first, second = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert "energy_per_sample_j" not in first
    for entry in (first, second):
        assert entry["energy_per_token_j"] == pytest.approx(entry["energy_j"] / (10 * 2 * 8))


def test_the_progress_bar_shows_power_and_energy(tmp_path, callback, gpu, capsys):
    trainer = make_trainer(tmp_path, [callback], max_steps=10, logging_steps=5, disable_tqdm=False)
    bar = next(callback for callback in trainer.callback_handler.callbacks if isinstance(callback, ProgressCallback))
    shown = []

    class Look(TrainerCallback):
        def on_log(self, *_, **__):
            shown.append(bar.training_bar.postfix)

    trainer.add_callback(Look())
    simulate(trainer, gpu).train()
    assert shown[0].endswith("kJ")
    assert " W, " in shown[0]


def test_a_progress_bar_of_another_kind_costs_no_value(tmp_path, callback, gpu):
    class OtherProgress(ProgressCallback):
        def on_train_begin(self, *_, **__):
            self.training_bar = object()

        def on_step_end(self, *_, **__):
            pass

        def on_log(self, *_, **__):
            pass

        def on_train_end(self, *_, **__):
            pass

    trainer = make_trainer(tmp_path, [callback, OtherProgress()], max_steps=10, logging_steps=5)
    simulate(trainer, gpu).train()
    assert all("power_w" in entry for entry in trainer.state.log_history if "loss" in entry)


def logged_energies(trainer):
    """The energies of evaluations in the logs, by name: the latest of each."""
    return {
        name: value
        for entry in trainer.state.log_history
        for name, value in entry.items()
        if name.endswith("_energy_j") and "eval" in name
    }


def test_evaluation_and_prediction_of_their_own_are_measured(tmp_path, callback, gpu):
    trainer = simulate(make_trainer(tmp_path, [callback]), gpu)
    trainer.eval_dataset = {"long": examples(40), "short": examples(20)}
    truth = Truth(gpu)
    with truth.of("evaluation"):
        trainer.evaluate()
    logged = logged_energies(trainer)
    assert logged["eval_long_energy_j"] + logged["eval_short_energy_j"] == pytest.approx(
        truth.joules["evaluation"], rel=0.03
    )
    assert logged["eval_long_energy_j"] == pytest.approx(2 * logged["eval_short_energy_j"], rel=0.05)
    assert callback.energy.evaluation()["eval_energy_j"] == pytest.approx(truth.joules["evaluation"], rel=0.03)
    with truth.of("prediction"):
        trainer.predict(examples(40))
    assert callback.energy.evaluation("test")["test_energy_j"] == pytest.approx(truth.joules["prediction"], rel=0.03)
    assert trainer.train().metrics["train_energy_j"] > 0


def test_what_the_trainer_adds_to_its_metrics_is_still_there(tmp_path, callback):
    with_it = make_trainer(tmp_path / "with", [callback], max_steps=4)
    without = make_trainer(tmp_path / "without", [], max_steps=4)
    assert with_it.train().metrics.keys() - AT_THE_END == without.train().metrics.keys()
    assert with_it.evaluate().keys() == without.evaluate().keys()


def test_trainers_without_the_callback_are_left_alone(tmp_path, callback):
    trainer = make_trainer(tmp_path, [], max_steps=4, logging_steps=2)
    trainer.train()
    assert not any("energy" in name for entry in trainer.state.log_history for name in entry)


@pytest.mark.long
def test_a_limit_is_found_too_and_the_saving_reported(tmp_path, monitor, gpu):
    optimizer = GlobalPowerLimitOptimizer(monitor, Energy(), warmup_steps=2, profile_steps=8, search=GridSearch)
    trainer = simulate(
        make_trainer(tmp_path, [ZeusTrainerCallback(optimizer=optimizer)], num_train_epochs=5, logging_steps=10), gpu
    )
    metrics = trainer.train().metrics
    assert optimizer.chosen_limit_watts == 250
    assert metrics["train_energy_saving_fraction"] == pytest.approx(optimizer.saving_fraction)
    assert 0.1 < metrics["train_energy_saving_fraction"] < 0.4
    limits = [entry["power_limit_w"] for entry in trainer.state.log_history if "loss" in entry]
    assert limits[0] == 350
    assert limits[-1] == 250
    assert gpu.read_power_limit_watts() == 350


@pytest.mark.parametrize("search_first", [True, False])
def test_a_search_given_twice_is_made_once(tmp_path, monitor, gpu, caplog, search_first):
    search = HFGlobalPowerLimitOptimizer(monitor, Energy(), warmup_steps=2, profile_steps=8, search=GridSearch)
    callbacks = [ZeusTrainerCallback(monitor, search), search]
    trainer = simulate(make_trainer(tmp_path, callbacks[:: -1 if search_first else 1], max_steps=24), gpu)
    trainer.train()
    assert [trial.steps for trial in search.optimizer.trials] == [8, 8]
    assert "HFGlobalPowerLimitOptimizer does nothing here" in caplog.text


def test_of_two_callbacks_one_counts(tmp_path, monitor, gpu, caplog):
    trainer = simulate(
        make_trainer(tmp_path, [ZeusTrainerCallback(monitor), ZeusTrainerCallback(monitor)], max_steps=20), gpu
    )
    begin = gpu.exact_energy_joules()
    metrics = trainer.train().metrics
    assert metrics["train_energy_j"] == pytest.approx(gpu.exact_energy_joules() - begin, rel=0.02)
    assert caplog.text.count("ZeusTrainerCallback does nothing here") == 1


@pytest.mark.long
def test_both_kinds_of_callback_work_side_by_side(tmp_path, monitor, gpu):
    search = HFGlobalPowerLimitOptimizer(monitor, Energy(), warmup_steps=2, profile_steps=8, search=GridSearch)
    trainer = simulate(make_trainer(tmp_path, [search, ZeusTrainerCallback(monitor)], num_train_epochs=5), gpu)
    metrics = trainer.train().metrics
    assert search.optimizer.chosen_limit_watts == 250
    assert metrics["train_energy_steps_j"] > 0


@pytest.mark.parametrize("error", long_but_first([KeyboardInterrupt(), RuntimeError("boom")]))
def test_leaving_training_by_an_exception_leaves_no_window_and_a_journal(tmp_path, callback, monitor, gpu, error):
    settings = {"max_steps": 20, "save_strategy": "steps", "save_steps": 8}
    trainer = simulate(make_trainer(tmp_path, [callback, RaiseAt(10, error)], **settings), gpu)
    with pytest.raises(type(error)):
        trainer.train()
    with pytest.raises(UsageError, match="open windows: none"):
        monitor.end_window("anything")
    lines = (tmp_path / "zeus-energy" / "rank-0.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 8, 10]
    trainer.remove_callback(RaiseAt)
    assert trainer.train().metrics["train_energy_j"] > 0


def test_training_that_ends_before_its_first_checkpoint_leaves_an_empty_folder(tmp_path, callback, gpu):
    """Scripts of transformers refuse to begin again in a folder that is not empty and has no checkpoint."""
    settings = {"max_steps": 20, "logging_steps": 2, "save_strategy": "steps"}
    trainer = make_trainer(tmp_path, [callback, RaiseAt(10, RuntimeError("preempted"))], **settings)
    with pytest.raises(RuntimeError, match="preempted"):
        simulate(trainer, gpu).train()
    assert list(tmp_path.iterdir()) == []


def test_training_twice_makes_two_runs(tmp_path, callback, gpu):
    trainer = simulate(make_trainer(tmp_path, [callback], max_steps=20), gpu)
    first, second = trainer.train().metrics, trainer.train().metrics
    assert second["train_energy_j"] == pytest.approx(first["train_energy_j"], rel=0.05)
    assert "train_energy_redone_j" not in second


@pytest.mark.long
def test_the_energy_of_a_batch_size_given_up_counts_as_spent(tmp_path, callback, gpu):
    class TooLarge(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.train_batch_size == 8 and state.global_step == 3:
                raise RuntimeError("CUDA out of memory.")

    trainer = simulate(
        make_trainer(
            tmp_path,
            [callback, TooLarge()],
            max_steps=20,
            auto_find_batch_size=True,
            per_device_train_batch_size=8,
        ),
        gpu,
    )
    begin = gpu.exact_energy_joules()
    metrics = trainer.train().metrics
    assert metrics["train_energy_j"] == pytest.approx(gpu.exact_energy_joules() - begin, rel=0.02)
    assert metrics["train_energy_redone_j"] == pytest.approx(metrics["train_energy_j"] * 3 / 23, rel=0.05)


@pytest.mark.long
def test_checkpoints_remember_the_energy_of_a_batch_size_given_up(tmp_path, monitor, gpu):
    class TooLarge(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.train_batch_size == 8 and state.global_step == 3:
                raise RuntimeError("CUDA out of memory.")

    def trainer(*callbacks, **arguments):
        settings = {"max_steps": 20, "save_strategy": "steps", "save_steps": 5, **arguments}
        return simulate(make_trainer(tmp_path, [ZeusTrainerCallback(monitor), *callbacks], **settings), gpu)

    begin = gpu.exact_energy_joules()
    given_up = trainer(
        TooLarge(), RaiseAt(7, KeyError("preempted")), auto_find_batch_size=True, per_device_train_batch_size=8
    )
    with pytest.raises(KeyError, match="preempted"):
        given_up.train()
    metrics = trainer().train(resume_from_checkpoint=True).metrics
    assert metrics["train_energy_j"] == pytest.approx(gpu.exact_energy_joules() - begin, rel=0.02)


# Resuming.


def interrupted_and_resumed(folder, gpu, monitor, stops, **arguments):
    """Trains up to each of the steps in turn; returns the metrics of the last part."""
    settings = {"max_steps": 60, "logging_steps": 5, "save_strategy": "steps", "save_steps": 20, **arguments}
    for number, stop in enumerate(stops):
        stopping = [RaiseAt(stop, RuntimeError("preempted"))] if stop is not None else []
        trainer = simulate(make_trainer(folder, [ZeusTrainerCallback(monitor), *stopping], **settings), gpu)
        if stop is None:
            return trainer.train(resume_from_checkpoint=number > 0).metrics
        with pytest.raises(RuntimeError, match="preempted"):
            trainer.train(resume_from_checkpoint=number > 0)
    return None


def test_totals_outlive_interruptions(tmp_path, monitor, gpu):
    begin = gpu.exact_energy_joules()
    metrics = interrupted_and_resumed(tmp_path, gpu, monitor, [25, 48, None])
    spent = gpu.exact_energy_joules() - begin
    assert metrics["train_energy_j"] == pytest.approx(spent, rel=0.01)
    redone_steps = (25 - 20) + (48 - 40)
    assert metrics["train_energy_redone_j"] == pytest.approx(spent * redone_steps / (60 + redone_steps), rel=0.05)


def test_resuming_without_what_was_kept_says_so_and_goes_on(tmp_path, monitor, gpu, caplog):
    interrupted_and_resumed(tmp_path, gpu, monitor, [25])
    (tmp_path / "checkpoint-20" / "zeus_energy.json").unlink()
    metrics = interrupted_and_resumed(tmp_path, gpu, monitor, [1, None])
    assert "resumes at step 20 from a checkpoint with no energy state" in caplog.text
    assert "train_energy_redone_j" not in metrics


@pytest.mark.parametrize("damage", long_but_first(["{", '{"format": "zeus-core energy", "version": 99}', "null"]))
def test_a_damaged_state_is_reported_and_training_goes_on(tmp_path, monitor, gpu, caplog, damage):
    make = {"max_steps": 6, "save_strategy": "steps", "save_steps": 4}
    simulate(make_trainer(tmp_path, [ZeusTrainerCallback(monitor)], **make), gpu).train()
    for state in tmp_path.glob("checkpoint-*/zeus_energy.json"):
        state.write_text(damage)
    trainer = simulate(make_trainer(tmp_path, [ZeusTrainerCallback(monitor)], **{**make, "max_steps": 8}), gpu)
    assert trainer.train(resume_from_checkpoint=True).metrics["train_energy_j"] > 0
    assert "no energy state" in caplog.text


@pytest.mark.long
def test_without_its_journal_a_run_goes_on_from_what_the_checkpoint_says(tmp_path, monitor, gpu, caplog):
    begin = gpu.exact_energy_joules()
    interrupted_and_resumed(tmp_path, gpu, monitor, [25])
    (tmp_path / "zeus-energy" / "rank-0.jsonl").unlink()
    metrics = interrupted_and_resumed(tmp_path, gpu, monitor, [1, None])
    assert "there is no energy journal of this run here" in caplog.text
    spent = gpu.exact_energy_joules() - begin
    assert metrics["train_energy_j"] == pytest.approx(spent * 60 / 65, rel=0.03)


# Trouble.


def losses_with(folder, callbacks, gpu=None, **arguments):
    settings = {
        "max_steps": 12,
        "logging_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 4,
        "save_strategy": "steps",
        "save_steps": 4,
        **arguments,
    }
    trainer = make_trainer(folder, callbacks, **settings)
    if gpu is not None:
        simulate(trainer, gpu)
    trainer.train()
    return losses_of(trainer)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return losses_with(tmp_path_factory.mktemp("undisturbed"), [])


def test_training_is_the_same_bit_for_bit(tmp_path, callback, gpu, undisturbed):
    assert losses_with(tmp_path / "with", [callback], gpu) == undisturbed


class MeddleAt(TrainerCallback):
    def __init__(self, event, meddle):
        setattr(self, event, lambda *_, **__: meddle())


@pytest.mark.parametrize(
    "event", long_but_first(["on_step_begin", "on_save", "on_train_begin", "on_log", "on_prediction_step"], 2)
)
def test_a_driver_that_fails_changes_no_loss(tmp_path, gpu, time_source, undisturbed, event):
    faulty = FaultyGpu(gpu)
    monitor = ZeusMonitor(gpus=[faulty], time_source=time_source)
    callback = ZeusTrainerCallback(
        monitor, GlobalPowerLimitOptimizer(monitor, warmup_steps=0, profile_steps=2, search=GridSearch)
    )

    def fail():
        for method in ("read_energy_counter_joules", "read_power_watts", "read_power_limit_watts"):
            faulty.fail(method, DriverFaultError("unknown error"), times=3)
        faulty.fail("set_power_limit", DriverFaultError("unknown error"), times=4)

    assert losses_with(tmp_path / "with", [MeddleAt(event, fail), callback], gpu) == undisturbed
    assert gpu.read_power_limit_watts() == 350


@pytest.mark.parametrize("event", long_but_first(["on_prediction_step", "on_step_begin"]))
def test_a_monitor_reset_behind_our_back_changes_no_loss(tmp_path, callback, monitor, gpu, undisturbed, event):
    meddling = MeddleAt(event, monitor.reset_windows)
    assert losses_with(tmp_path / "with", [meddling, callback], gpu) == undisturbed


def test_a_folder_that_cannot_be_written_is_reported_once(tmp_path, callback, gpu, undisturbed, caplog):
    folder = tmp_path / "with"
    folder.mkdir()
    (folder / "zeus-energy").write_text("in the way")
    assert losses_with(folder, [callback], gpu) == undisturbed
    assert caplog.text.count("the energy journal") == 1


def test_a_logger_that_raises_stops_training_as_it_would_without_us(tmp_path, callback, monitor, gpu):
    def raise_error():
        raise OSError("the logger's disk is full")

    trainer = simulate(make_trainer(tmp_path, [callback, MeddleAt("on_log", raise_error)], max_steps=60), gpu)
    with pytest.raises(OSError, match="disk is full"):
        trainer.train()
    with pytest.raises(UsageError, match="open windows: none"):
        monitor.end_window("anything")


def test_no_error_of_ours_reaches_the_trainer(tmp_path, callback, undisturbed, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("a bug")

    for name in ("prepare", "begin", "end", "_meet_ranks", "_detach_passes"):
        monkeypatch.setattr(callback._calls, name, fail)
    for name in ("count", "state_dict", "log", "evaluation", "finish"):
        monkeypatch.setattr(callback.energy, name, fail)
    assert losses_with(tmp_path / "with", [callback]) == undisturbed


def test_the_trainer_is_patched_while_a_callback_exists(monitor, monkeypatch):
    monkeypatch.setattr(_trainer_patches, "_callbacks", set())  # other tests may have left some behind
    monkeypatch.setattr(_trainer_patches, "_patches", [])
    train = Trainer.train
    callbacks = [ZeusTrainerCallback(monitor), HFGlobalPowerLimitOptimizer(monitor)]
    patched = Trainer.train
    assert patched.__wrapped__ is train
    callbacks.pop()
    gc.collect()
    assert Trainer.train is patched
    callbacks.pop()
    gc.collect()
    assert Trainer.train is train


def test_a_fault_of_ours_is_logged_once(tmp_path, callback, gpu, undisturbed, caplog, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("a bug")

    for name in ("begin_window", "read", "between"):
        monkeypatch.setattr(callback.energy.monitor, name, fail)
    assert losses_with(tmp_path / "with", [callback], gpu) == undisturbed
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
    assert "a bug" in caplog.text


def test_wrong_arguments_are_named(monitor, gpu, time_source):
    with pytest.raises(UsageError, match="monitor is 3"):
        ZeusTrainerCallback(3)
    with pytest.raises(UsageError, match="optimizer is 'best'"):
        ZeusTrainerCallback(monitor, "best")
    other = ZeusMonitor(gpus=[SimulatedGpu(find_preset("A40"), time_source=time_source)], time_source=time_source)
    with pytest.raises(UsageError, match="optimizer has another monitor"):
        ZeusTrainerCallback(monitor, GlobalPowerLimitOptimizer(other))


def test_nothing_is_written_outside_of_the_output_folder(tmp_path, callback, gpu, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    losses_with(tmp_path / "output", [callback], gpu)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_trainer_that_returns_something_of_its_own_may(tmp_path, callback, gpu):
    class OwnLoop(Trainer):
        def _inner_training_loop(self, *args, **kwargs):
            super()._inner_training_loop(*args, **kwargs)

    trainer = simulate(make_trainer(tmp_path, [callback], OwnLoop, max_steps=4), gpu)
    assert trainer.train() is None
    assert callback.summary.steps == 4


def test_generation_is_told_apart(tmp_path, callback, gpu):
    class Generating(Trainer):
        def training_step(self, model, inputs, *args, **kwargs):
            model.generate(inputs["input_ids"][:, :2], max_new_tokens=3, pad_token_id=0, do_sample=False)
            return super().training_step(model, inputs, *args, **kwargs)

    trainer = simulate(make_trainer(tmp_path, [callback], Generating, max_steps=10), gpu)
    trainer.train()
    activities = callback.summary.account.activities
    assert activities[Activity.GENERATION].seconds == pytest.approx(10 * 3 * 0.3, rel=0.2)
    assert activities[Activity.STEPS].seconds == pytest.approx(10 * 0.9, rel=0.2)
    tokens = torch.tensor([[1, 2]])
    seconds = gpu._time_source.now()
    trainer.model.generate(tokens, max_new_tokens=3, pad_token_id=0, do_sample=False)
    assert gpu._time_source.now() > seconds
    assert callback.summary.account.activities == activities, "after training, nobody is told"


# What others have found.


def test_an_evaluation_with_two_callbacks_is_logged_right(tmp_path, monitor, gpu):
    trainer = simulate(
        make_trainer(
            tmp_path,
            [ZeusTrainerCallback(monitor), ZeusTrainerCallback(monitor)],
            max_steps=10,
            eval_strategy="steps",
            eval_steps=10,
        ),
        gpu,
    )
    trainer.train()
    (evaluated,) = [entry["eval_energy_j"] for entry in trainer.state.log_history if "eval_energy_j" in entry]
    assert evaluated > 100


def test_each_evaluation_has_its_own_energy_under_any_name(tmp_path, callback, gpu):
    trainer = simulate(make_trainer(tmp_path, [callback]), gpu)
    trainer.evaluate(examples(20), metric_key_prefix="other")  # fewer last a few updates of the counter, or none
    short = trainer.state.log_history[-1]["other_energy_j"]
    trainer.predict(examples(60))
    assert callback.energy.evaluation()["eval_energy_j"] == pytest.approx(3 * short, rel=0.2)


def test_an_evaluation_all_of_its_own_is_an_evaluation_too(tmp_path, callback, gpu):
    truth = Truth(gpu)

    class OwnEvaluation(Trainer):
        def evaluate(self, *_, **__):
            with truth.of("evaluation"):
                for batch in self.get_eval_dataloader():
                    self.prediction_step(self.model, batch, prediction_loss_only=True)
            metrics = {"eval_loss": 1.0, "eval_runtime": 1.0}
            self.log(metrics)
            return metrics

    trainer = make_trainer(tmp_path, [callback], OwnEvaluation, max_steps=20, eval_strategy="steps", eval_steps=10)
    trainer.eval_dataset = examples(60)
    simulate(trainer, gpu)
    metrics = trainer.train().metrics
    assert metrics["train_energy_evaluation_j"] == pytest.approx(truth.joules["evaluation"], rel=0.03)
    evaluated = [entry["eval_energy_j"] for entry in trainer.state.log_history if "eval_energy_j" in entry]
    assert sum(evaluated) == pytest.approx(truth.joules["evaluation"], rel=0.05)


def test_what_a_user_logs_is_left_as_it_is(tmp_path, callback, gpu):
    class Chatty(Trainer):
        def training_step(self, *args, **kwargs):
            self.log({"loss": 1.0, "step_runtime": 2.0})
            return super().training_step(*args, **kwargs)

    trainer = simulate(make_trainer(tmp_path, [callback], Chatty, max_steps=10, logging_steps=5), gpu)
    trainer.train()
    own = [entry for entry in trainer.state.log_history if "step_runtime" in entry]
    assert len(own) == 10
    assert not any("energy" in name for entry in own for name in entry)


@pytest.mark.long
def test_a_trainer_within_a_trainer_is_part_of_it(tmp_path, callback, gpu, caplog):
    class TrainAnother(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 5:
                inner = simulate(
                    make_trainer(tmp_path / "inner", [callback], max_steps=5, per_device_train_batch_size=4), gpu
                )
                assert "train_energy_j" not in inner.train().metrics

    trainer = simulate(make_trainer(tmp_path, [callback, TrainAnother()], max_steps=10, logging_steps=5), gpu)
    begin = gpu.exact_energy_joules()
    metrics = trainer.train().metrics
    assert metrics["train_energy_j"] == pytest.approx(gpu.exact_energy_joules() - begin, rel=0.02)
    assert "train_energy_redone_j" not in metrics
    assert callback.summary.account.samples == 10 * 2
    assert "does nothing here" in caplog.text


def test_with_model_init_generation_is_told_apart_too(tmp_path, callback, gpu):
    class Generating(Trainer):
        def training_step(self, model, inputs, *args, **kwargs):
            model.generate(inputs["input_ids"][:, :2], max_new_tokens=3, pad_token_id=0, do_sample=False)
            gpu.execute(FORWARD)
            return super().training_step(model, inputs, *args, **kwargs)

    trainer = make_trainer(tmp_path, [callback], Generating, max_steps=5)
    made = type(trainer.model)
    trainer.model_init = lambda: simulated_model(gpu)
    trainer.train()
    assert callback.summary.account.activities[Activity.GENERATION].seconds > 1
    copied = simulated_model(gpu)
    assert made.generate is type(copied).generate


def simulated_model(gpu):
    model = tiny_model()
    SimulatedCompute(model, gpu, FORWARD, BACKWARD)
    return model


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda callbacks: pickle.loads(pickle.dumps(callbacks))])
def test_a_copied_callback_measures_and_sets_no_limit(tmp_path, monitor, caplog, monkeypatch, copied):
    """Ray copies the callbacks into each of its processes, where a search for hyperparameters goes on."""
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "A100-SXM4-80GB:1")
    search = HFGlobalPowerLimitOptimizer(monitor, warmup_steps=0, profile_steps=1, search=GridSearch)
    callback = ZeusTrainerCallback(
        monitor, GlobalPowerLimitOptimizer(monitor, warmup_steps=0, profile_steps=1, search=GridSearch)
    )
    copies = copied([callback, search])
    trainer = make_trainer(tmp_path, copies, max_steps=4, logging_steps=2)
    trainer.train()
    assert losses_of(trainer) == losses_with(
        tmp_path / "without", [], max_steps=4, logging_steps=2, eval_strategy="no", save_strategy="no"
    )
    assert copies[0].summary.steps == 4
    assert copies[0].optimizer is None
    assert copies[1].optimizer.trials == []
    assert callback.summary.not_measured is not None
    assert caplog.text.count("sets no power limit") == 2


def test_a_search_given_twice_raises_no_alarm(tmp_path, monitor, gpu, caplog):
    search = HFGlobalPowerLimitOptimizer(monitor, Energy(), warmup_steps=2, profile_steps=20, search=GridSearch)
    simulate(make_trainer(tmp_path, [ZeusTrainerCallback(monitor, search), search], max_steps=10), gpu).train()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_gpu_that_is_not_the_trainers_is_mentioned(monitor, caplog):
    warn_unless_measured(monitor.gpus, torch.device("cuda", 0))
    warn_unless_measured(monitor.gpus, torch.device("cpu"))
    assert caplog.text == ""
    warn_unless_measured(monitor.gpus, torch.device("cuda", 3))
    assert "training runs on GPU 3, but the measured GPUs are 0: pass ZeusMonitor(gpu_indices=[3])" in caplog.text


def test_a_counter_that_never_answers_is_bridged_by_power(tmp_path, gpu, time_source):
    faulty = FaultyGpu(gpu)
    faulty.fail("read_energy_counter_joules", DriverFaultError("not ready"))
    callback = ZeusTrainerCallback(ZeusMonitor(gpus=[faulty], cpus=CpuDiscovery(()), time_source=time_source))
    trainer = make_trainer(tmp_path, [callback], max_steps=40, logging_steps=10, eval_strategy="steps", eval_steps=20)
    truth = Truth(gpu)
    with truth.of("all"):
        metrics = simulate(trainer, gpu).train().metrics
    total = callback.summary.account.total.measured
    assert total.method == "integrated"
    assert total.energy_joules == metrics["train_energy_j"]
    assert abs(total.energy_joules - truth.joules["all"]) <= total.uncertainty_joules <= 0.1 * truth.joules["all"]


def test_logs_add_up_where_evaluations_saves_and_a_reload_follow(tmp_path, callback, gpu):
    trainer = make_trainer(
        tmp_path,
        [callback],
        max_steps=24,
        logging_steps=10,
        eval_strategy="steps",
        eval_steps=8,
        save_strategy="steps",
        save_steps=8,
        load_best_model_at_end=True,
    )
    simulate(trainer, gpu)
    load = trainer.model.load_state_dict

    def load_slowly(*arguments, **options):
        gpu.execute(Work(5.0, 300.0))
        return load(*arguments, **options)

    trainer.model.load_state_dict = load_slowly
    train_joules = 24 * sum(gpu.preset.physics.operating_point(work, 350).energy_joules for work in (FORWARD, BACKWARD))
    metrics = trainer.train().metrics

    def logged(name):
        return sum(entry.get(name, 0.0) for entry in trainer.state.log_history)

    assert metrics["train_energy_steps_j"] == pytest.approx(train_joules, rel=0.03)
    assert logged("energy_j") == pytest.approx(metrics["train_energy_steps_j"], rel=0.005)
    assert logged("eval_energy_j") == pytest.approx(metrics["train_energy_evaluation_j"], rel=0.005)
    assert metrics["train_energy_checkpoint_j"] == pytest.approx(5 * 300, rel=0.1), "the reload is of a checkpoint"
    assert "energy_j" not in metrics
