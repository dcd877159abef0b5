"""The callback in a LightningCLI, told everything in YAML."""

import pytest

from tests.lightning.trainers import loader, module_class
from zeus_lightning import ZeusCallback

TRAINER = """
trainer:
  accelerator: cpu
  max_steps: 10
  logger: false
  enable_progress_bar: false
  enable_model_summary: false
  callbacks:
    class_path: zeus_lightning.ZeusCallback
"""
SEARCH = """
    init_args:
      monitor:
        gpu_indices: [1]
      batch_size: 4
      tokens: tests.lightning.trainers.tokens_in
      optimizer:
        class_path: zeus_core.optimizer.GlobalPowerLimitOptimizer
        init_args:
          optimum_selector:
            class_path: zeus_core.optimizer.MaxSlowdownConstraint
            init_args:
              factor: 1.2
          profile_steps: 3
"""
CLASS_ONLY = """
    init_args:
      optimizer: zeus_core.optimizer.GlobalPowerLimitOptimizer
"""
WRONG = """
    init_args:
      optimizer:
        class_path: zeus_core.optimizer.GlobalPowerLimitOptimizer
        init_args:
          profile_step: 3
"""


@pytest.fixture
def run(pl, run_cli, tmp_path, monkeypatch):
    """Runs a LightningCLI of a config; returns the callback."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "A100-SXM4-80GB:2")

    class Module(module_class(pl)):
        def train_dataloader(self):
            return loader(10)

    def run_config(config):
        (tmp_path / "energy.yaml").write_text(config)
        trainer = run_cli(pl, Module, "fit", "--config", "energy.yaml")
        (callback,) = [callback for callback in trainer.callbacks if isinstance(callback, ZeusCallback)]
        return callback

    return run_config


def test_nothing_has_to_be_said(run):
    callback = run(TRAINER)
    assert callback.energy.monitor.gpu_indices == [0, 1]
    assert callback.summary.account.samples == 40


def test_all_can_be_said(run):
    callback = run(TRAINER + SEARCH)
    assert callback.energy.monitor.gpu_indices == [1]
    assert str(callback.energy.optimizer.optimum_selector) == "MaxSlowdownConstraint(factor=1.2)"
    assert callback.energy.optimizer.profile_steps == 3
    assert callback.energy.optimizer.monitor is callback.energy.monitor
    assert callback.summary.account.tokens == 10 * 16


def test_the_name_of_the_optimizer_is_enough(run):
    assert run(TRAINER + CLASS_ONLY).energy.optimizer.profile_steps == 40


def test_a_misspelt_argument_is_named(run, capsys):
    with pytest.raises(SystemExit):
        run(TRAINER + WRONG)
    assert "'profile_step' is not accepted" in capsys.readouterr().err
