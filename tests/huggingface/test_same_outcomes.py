"""A Trainer chooses, stops and returns the same with the callbacks as without them."""

import json

import pytest
from transformers import EarlyStoppingCallback, TrainerCallback
from transformers import trainer as trainer_module
from transformers.trainer_utils import BestRun, default_compute_objective

from tests.huggingface.trainers import BACKWARD, FORWARD, examples, losses_of, make_trainer, tiny_model
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
        "save_strategy": "best",
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
        "best": (trainer.state.best_metric, trainer.state.best_global_step),
        "checkpoints": sorted(path.name for path in folder.glob("checkpoint-*")),
        "weights": [weight.tolist() for weight in trainer.model.parameters()],
        "shown": watch.seen,
        "saved": untimed(json.loads((folder / "all_results.json").read_text())),
        "objective": default_compute_objective(evaluated),
    }


PLATEAU = {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 0}}
OWN_METRIC = {"greater_is_better": True, "metric_for_best_model": "mean_score"}


@pytest.mark.parametrize("arguments", [{}, PLATEAU, OWN_METRIC])
def test_the_best_checkpoint_and_the_stopping_step_are_the_same(tmp_path, gpu, make_callback, arguments):
    without = outcomes(tmp_path / "without", gpu, [], **arguments)
    assert without["stopped at"] < 60
    assert outcomes(tmp_path / "with", gpu, [make_callback()], **arguments) == without


def test_the_energy_of_an_evaluation_is_in_the_logs_alone(tmp_path, gpu, make_callback):
    trainer = simulate(make_trainer(tmp_path, [make_callback()], max_steps=2), gpu)
    trainer.train()
    assert not any("energy" in name for name in trainer.evaluate())
    assert trainer.state.log_history[-1]["eval_energy_j"] > 0


class GridBackend:
    """Searches as the backends of transformers do: the objective is that of an evaluation after each training."""

    rates = (0.001, 0.01, 0.03)

    def ensure_available(self):
        pass

    def default_hp_space(self, trial):
        return {}

    def run(self, trainer, n_trials, direction):
        objectives = {}
        for rate in self.rates:
            trainer.args.learning_rate = rate
            trainer.train()
            objectives[rate] = trainer.compute_objective(trainer.evaluate())
        best = min(objectives, key=objectives.get)
        return BestRun("0", objectives[best], {"learning_rate": best, **objectives})


def test_a_search_for_hyperparameters_finds_the_same(tmp_path, gpu, make_callback, monkeypatch):
    for backend in trainer_module.HPSearchBackend:
        monkeypatch.setitem(trainer_module.ALL_HYPERPARAMETER_SEARCH_BACKENDS, backend, GridBackend)

    def search(folder, callbacks):
        trainer = make_trainer(folder, callbacks, max_steps=10)
        trainer.model_init = lambda: simulated_model(gpu)
        return trainer.hyperparameter_search(backend="optuna")

    without = search(tmp_path / "without", [])
    assert search(tmp_path / "with", [make_callback()]) == without
    assert 0 < without.objective < 10


def simulated_model(gpu):
    model = tiny_model()
    SimulatedCompute(model, gpu, FORWARD, BACKWARD)
    return model
