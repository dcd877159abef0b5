"""The callbacks where there is no GPU: training is the same, with one warning."""

import logging

import pytest

from tests.huggingface.trainers import losses_of, make_trainer
from tests.support.variants import long_but_first
from zeus_core.errors import NoDeviceError
from zeus_huggingface import HFGlobalPowerLimitOptimizer, ZeusTrainerCallback


@pytest.fixture(autouse=True)
def no_device(monkeypatch):
    monkeypatch.delenv("ZEUS_SIMULATED_GPUS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def run(folder, callbacks):
    trainer = make_trainer(
        folder, callbacks, max_steps=6, logging_steps=2, eval_strategy="steps", eval_steps=2, save_strategy="steps"
    )
    output = trainer.train()
    evaluated, predicted = trainer.evaluate(), trainer.predict(trainer.eval_dataset)
    names = [sorted(metrics) for metrics in (output.metrics, evaluated, predicted.metrics, *trainer.state.log_history)]
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    return losses_of(trainer), names, files


@pytest.mark.parametrize(
    "make_callback",
    long_but_first(
        [
            lambda: ZeusTrainerCallback(optimizer=HFGlobalPowerLimitOptimizer()),
            ZeusTrainerCallback,
            HFGlobalPowerLimitOptimizer,
        ]
    ),
)
def test_training_goes_on_with_one_warning_and_nothing_else(tmp_path, caplog, capsys, make_callback):
    undisturbed = run(tmp_path / "without", [])
    caplog.clear()
    callback = make_callback()
    assert run(tmp_path / "with", [callback]) == undisturbed
    (warning,) = [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.name.startswith("zeus")
    ]
    assert "ZEUS_SIMULATED_GPUS=" in warning
    assert "zeus-core" not in capsys.readouterr().err
    if callback.optimizer is not None:
        assert (callback.optimizer.chosen_limit_watts, callback.optimizer.trials) == (None, [])
    if isinstance(callback, ZeusTrainerCallback):
        assert callback.summary.values() == {}


@pytest.mark.parametrize("make_callback", [ZeusTrainerCallback, HFGlobalPowerLimitOptimizer])
def test_those_who_want_the_error_get_it(make_callback):
    with pytest.raises(NoDeviceError, match="ZEUS_SIMULATED_GPUS="):
        make_callback(strict=True)
