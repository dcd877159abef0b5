"""The callback in trainers of scripts that nobody edits, by the entry points of the package and `ZEUS=1`."""

import csv
import os
import subprocess
import sys

import pytest
import torch

from tests.lightning.trainers import loader, make_trainer, module_class, recorder
from zeus_lightning import ZeusCallback

PROGRAM = """
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.demos.boring_classes import BoringDataModule


class Net(LightningModule):
    def __init__(self, width: int = 16, dropout: float = 0.3):
        super().__init__()
        self.save_hyperparameters()
        layers = torch.nn.Linear(32, width), torch.nn.ReLU(), torch.nn.Dropout(dropout), torch.nn.Linear(width, 1)
        self.layers = torch.nn.Sequential(*layers)

    def training_step(self, batch, batch_idx):
        loss = (self.layers(batch) - batch.mean(1, keepdim=True)).square().mean()
        self.log("train_loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", (self.layers(batch) - batch.mean(1, keepdim=True)).square().mean())


LightningCLI(Net, BoringDataModule, seed_everything_default=3)
"""
CONFIG = """
trainer:
  accelerator: cpu
  max_epochs: 60
  log_every_n_steps: 4
  enable_progress_bar: false
  logger: {class_path: lightning.pytorch.loggers.CSVLogger, init_args: {save_dir: .}}
  callbacks:
    - class_path: lightning.pytorch.callbacks.ModelCheckpoint
      init_args: {monitor: val_loss, filename: "{epoch}-{val_loss:.6f}"}
    - class_path: lightning.pytorch.callbacks.EarlyStopping
      init_args: {monitor: val_loss, patience: 1}
optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.03}}
lr_scheduler: {class_path: torch.optim.lr_scheduler.ExponentialLR, init_args: {gamma: 0.99}}
"""


pytestmark = pytest.mark.usefixtures("installed")


def ours(trainer):
    return [callback for callback in trainer.callbacks if isinstance(callback, ZeusCallback)]


@pytest.mark.parametrize("value", [None, "0", ""])
def test_a_trainer_gets_nothing_unless_it_is_asked_for(pl, tmp_path, monkeypatch, value):
    monkeypatch.delenv("ZEUS", raising=False)
    if value is not None:
        monkeypatch.setenv("ZEUS", value)
    assert ours(make_trainer(tmp_path, [], pl)) == []


def test_every_trainer_gets_a_callback(pl, tmp_path, monkeypatch):
    def fit(name):
        logger = recorder(pl)
        trainer = make_trainer(tmp_path / name, [], pl, logger=logger)
        module = module_class(pl)()
        trainer.fit(module, loader(20))
        return trainer, module.losses, logger

    _, losses, _ = fit("without")
    monkeypatch.setenv("ZEUS", "1")
    trainer, losses_with_it, logger = fit("with")
    assert len(ours(trainer)) == 1
    assert losses_with_it == losses
    assert logger.values("train/total_energy_j")
    assert logger.values("train_energy_j")


@pytest.mark.parametrize("value", ["10%", ""])
def test_a_variable_has_trainers_save(pl, tmp_path, monkeypatch, value):
    monkeypatch.setenv("ZEUS", "1")
    monkeypatch.setenv("ZEUS_SAVE", value)
    trainer = make_trainer(tmp_path, [], pl)
    trainer.fit(module_class(pl)(), loader(4))
    assert (ours(trainer)[0].energy.optimizer is not None) == bool(value)


def test_a_trainer_that_has_one_keeps_it_and_saves_if_that_is_asked_for(pl, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("ZEUS", "1")
    monkeypatch.setenv("ZEUS_SAVE", "10%")
    own = ZeusCallback()
    trainer = make_trainer(tmp_path, [own], pl)
    trainer.fit(module_class(pl)(), loader(20))
    assert ours(trainer) == [own]
    assert own.summary.steps == 20
    assert own.energy.optimizer is not None
    assert "needs one ZeusCallback" not in caplog.text


def test_a_cli_gets_a_callback(pl, tmp_path, monkeypatch, run_cli):
    monkeypatch.setenv("ZEUS", "1")
    (tmp_path / "fit.yaml").write_text(f"trainer: {{max_steps: 1, accelerator: cpu, default_root_dir: {tmp_path}}}")
    monkeypatch.setattr(module_class(pl), "train_dataloader", lambda self: loader(20), raising=False)
    trainer = run_cli(pl, module_class(pl), "fit", "--config", str(tmp_path / "fit.yaml"))
    (callback,) = ours(trainer)
    assert callback.summary.steps == 1


def run_program(folder, installed, *command):
    """Run the program of a LightningCLI; returns what it logged, the checkpoints it left, and its messages."""
    folder.mkdir()
    (folder / "main.py").write_text(PROGRAM)
    (folder / "fit.yaml").write_text(CONFIG)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), *filter(None, sys.path)])}
    command = [*command, sys.executable, "main.py", "fit", "--config", "fit.yaml"]
    process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)
    assert process.returncode == 0, process.stderr
    with next(folder.rglob("metrics.csv")).open() as file:
        rows = list(csv.DictReader(file))
    files = {path.name: torch.load(path)["state_dict"] for path in folder.rglob("*.ckpt")}
    weights = {name: {key: value.tolist() for key, value in state.items()} for name, state in files.items()}
    return rows, weights, process.stderr


@pytest.mark.long
def test_a_program_with_a_cli_trains_the_same(tmp_path, installed):
    rows, weights, _ = run_program(tmp_path / "without", installed)
    run = [sys.executable, "-m", "zeus_core", "run", "--trainer", "--"]
    rows_with_it, weights_with_it, messages = run_program(tmp_path / "with", installed, *run)
    assert len(weights) == 1, "the best checkpoint"
    assert weights_with_it == weights
    names = rows[0].keys()
    theirs = [{name: row[name] for name in names} for row in rows_with_it]
    assert [row for row in theirs if any(row[name] for name in names - {"epoch", "step"})] == rows
    assert 4 < len(rows) < 60 * 17, "it stopped early"
    assert any(float(row["train/energy_j"] or 0) > 0 for row in rows_with_it)
    assert messages.count("+- zeus-core") == 1
