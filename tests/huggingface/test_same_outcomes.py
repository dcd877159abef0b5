"""A Trainer chooses, stops and returns the same with the callbacks as without them."""

import json
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState
from transformers import EarlyStoppingCallback, TrainerCallback
from transformers.trainer_utils import default_compute_objective

from tests.huggingface.trainers import BACKWARD, FORWARD, examples, losses_of, make_trainer, tiny_model
from tests.support.result_boxes import boxes, rows
from tests.support.untouched_torch import parts_of_torch
from tests.support.variants import long_but_first
from zeus_core.optimizer import GlobalPowerLimitOptimizer
from zeus_core.pytorch import SimulatedCompute
from zeus_huggingface import ZeusTrainerCallback

TIMES = ("_runtime", "_per_second")


@pytest.fixture
def make_callback(monitor):
    """Makes a callback that does all that ours do."""
    return lambda: ZeusTrainerCallback(optimizer=GlobalPowerLimitOptimizer(monitor, warmup_steps=0, profile_steps=2))


class Watch(TrainerCallback):
    """Keeps what other callbacks are shown of evaluations."""

    def __init__(self):
        self.seen = []

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        self.seen.append(untimed(metrics))

    def on_predict(self, args, state, control, metrics, **kwargs):
        self.seen.append(untimed(metrics))


def untimed(metrics):
    """The metrics in order, times by their name alone."""
    return [(name, None if name.endswith(TIMES) else value) for name, value in metrics.items()]


def simulate(trainer, gpu):
    SimulatedCompute(trainer.model, gpu, FORWARD, BACKWARD)
    return trainer


def outcomes(folder, gpu, callbacks, **arguments):
    watch = Watch()
    settings = {
        "num_train_epochs": 2,
        "logging_steps": 5,
        "learning_rate": 0.5,  # after a few steps it gets worse
        "eval_strategy": "steps",
        "eval_steps": 5,
        "save_strategy": "steps",
        "save_steps": 5,
        "load_best_model_at_end": True,
        "metric_for_best_model": "loss",
        **arguments,
    }
    trainer = make_trainer(folder, [*callbacks, EarlyStoppingCallback(2), watch], **settings)
    if settings["metric_for_best_model"] == "mean_score":
        trainer.compute_metrics = lambda predicted: {"mean_score": float(predicted.predictions.mean())}
    simulate(trainer, gpu).train()
    evaluated = trainer.evaluate()
    for split in (evaluated, trainer.predict(examples(8)).metrics):
        trainer.save_metrics("test", split)
    return {
        "losses": losses_of(trainer),
        "stopped at": trainer.state.global_step,
        "best": (trainer.state.best_metric, Path(trainer.state.best_model_checkpoint).name),
        "checkpoints": sorted(path.name for path in folder.glob("checkpoint-*")),
        "weights": [weight.tolist() for weight in trainer.model.parameters()],
        "shown": watch.seen,
        "saved": untimed(json.loads((folder / "all_results.json").read_text())),
        "objective": default_compute_objective(evaluated),
    }


PLATEAU = {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 0}}
OWN_METRIC = {"greater_is_better": True, "metric_for_best_model": "mean_score"}


@pytest.mark.parametrize("arguments", long_but_first([OWN_METRIC, {}, PLATEAU]))
def test_the_best_checkpoint_and_the_stopping_step_are_the_same(tmp_path, gpu, make_callback, arguments):
    without = outcomes(tmp_path / "without", gpu, [], **arguments)
    assert without["stopped at"] < 60
    assert outcomes(tmp_path / "with", gpu, [make_callback()], **arguments) == without


def test_the_energy_of_an_evaluation_is_in_the_logs_alone(tmp_path, gpu, make_callback):
    trainer = simulate(make_trainer(tmp_path, [make_callback()], max_steps=2), gpu)
    trainer.train()
    assert not any("energy" in name for name in trainer.evaluate())
    assert trainer.state.log_history[-1]["eval_energy_j"] > 0


def trials_of(folder, gpu, callbacks):
    """All that Optuna knows after a search: it samples by what earlier trials reported, and ends bad ones early."""
    studies = []

    def space(trial):
        studies.append(trial.study)
        return {"learning_rate": trial.suggest_float("learning_rate", 1e-4, 1.0, log=True)}

    trainer = make_trainer(folder, callbacks, max_steps=6, eval_strategy="steps", eval_steps=2)
    trainer.model_init = lambda: simulated_model(gpu)
    best = trainer.hyperparameter_search(
        space,
        n_trials=6,
        backend="optuna",
        sampler=optuna.samplers.TPESampler(seed=1, n_startup_trials=2),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=1),
    )
    return best, [(trial.params, trial.state, trial.value, trial.intermediate_values) for trial in studies[0].trials]


@pytest.mark.long
def test_optuna_finds_the_same(tmp_path, gpu, make_callback, capsys):
    best, trials = trials_of(tmp_path / "without", gpu, [])
    assert {state for _, state, *_ in trials} == {TrialState.COMPLETE, TrialState.PRUNED}
    assert not boxes(capsys)
    callback = make_callback()
    assert trials_of(tmp_path / "with", gpu, [callback]) == (best, trials)
    assert 0 < best.objective < 10, "a loss, and no joules"
    (box,) = boxes(capsys)
    assert rows(box)["trainings"] == "6"
    assert "steps" in rows(box)["spent on"]
    assert callback.energy.optimizer.trials, "of the search for a power limit, meanwhile"


def simulated_model(gpu):
    model = tiny_model()
    SimulatedCompute(model, gpu, FORWARD, BACKWARD)
    return model


def test_torch_is_as_it_was_while_a_trainer_trains(tmp_path, make_callback):
    untouched, seen = parts_of_torch(), []

    class Look(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            seen.append(parts_of_torch() == untouched)

    make_trainer(tmp_path, [make_callback(), Look()], max_steps=4, eval_strategy="steps", eval_steps=2).train()
    assert seen == [True] * 4
