"""Loops written with Fabric, by its callback and by its entry points."""

import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.loggers import CSVLogger

from tests.support.result_boxes import boxes, rows
from zeus_core.events import Activity
from zeus_core.pytorch import FabricCallback
from zeus_core.pytorch.followed.followed_optimizers import followed_energy, stop_following


class Logger(CSVLogger):
    """Keeps what is logged."""

    def __init__(self):
        self.logged = []

    def log_metrics(self, metrics, step=None):
        self.logged.append((step, metrics))


@pytest.fixture(autouse=True)
def simulated(monkeypatch):
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "A40:1")
    yield
    stop_following()


def trained(callbacks, steps=12):
    """Train with Fabric; returns what was logged, the weights, and the account."""
    torch.manual_seed(0)
    logger = Logger()
    fabric = Fabric(accelerator="cpu", devices=1, callbacks=callbacks, loggers=logger)
    model, inner = fabric.setup(module := torch.nn.Linear(4, 1), torch.optim.Adam(module.parameters()))
    for step in range(steps):
        loss = model(torch.ones(2, 4)).square().mean()
        fabric.backward(loss)
        inner.step()
        inner.zero_grad()
        if step % 4 == 3:
            fabric.call("on_validation_start")
            model(torch.ones(2, 4))
            fabric.call("on_validation_end")
            fabric.log("loss", loss, step=step)
    energy = followed_energy()
    fabric.call("on_train_end")
    return logger.logged, module.weight.tolist(), energy


def test_energy_is_logged_beside_the_loss_and_the_weights_stay(capsys):
    plain, weights, nothing = trained([])
    logged, same_weights, energy = trained([FabricCallback()])
    assert nothing is None
    assert same_weights == weights
    assert [(step, metrics["loss"]) for step, metrics in logged] == [(step, it["loss"]) for step, it in plain]
    assert all("train/total_energy_j" in metrics for _, metrics in logged)
    assert energy.summary.steps == 12
    assert Activity.EVALUATION in energy.summary.account.activities
    assert rows("".join(boxes(capsys)))["steps"].startswith("12: ")


@pytest.mark.parametrize("value", ["1", "0"])
def test_the_entry_points_give_it_where_it_is_asked_for(installed, monkeypatch, value, caplog):
    monkeypatch.setenv("ZEUS", value)
    logged, _, energy = trained([])
    assert (energy is not None) == (value == "1")
    assert ("train/total_energy_j" in logged[0][1]) == (value == "1")
