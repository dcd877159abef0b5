"""What others select, stop by, optimise and add up is the same with the callback as without it."""

import pytest
import torch

from tests.lightning.trainers import at, loader, make_trainer, module_class, recorder
from tests.support.untouched_torch import parts_of_torch
from zeus_lightning import ZeusCallback


def fit(pl, folder, callbacks, gpu):
    """A training whose validation loss rises in the end; returns all that others could go by."""
    reported = []

    class Report(pl.Callback):
        """Reports all metrics, as the callbacks of Ray Tune do if none is named."""

        def on_validation_end(self, trainer, pl_module):
            reported.append({name: float(value) for name, value in trainer.callback_metrics.items()})

    base = module_class(pl)

    class Module(base):
        def validation_step(self, batch, batch_idx):
            super().validation_step(batch, batch_idx)
            self.log("val_loss", torch.tensor(abs(self.trainer.current_epoch - 3.0)))

        test_step = validation_step

    checkpoint = pl.callbacks.ModelCheckpoint(folder, monitor="val_loss", filename="{epoch}-{val_loss:.2f}")
    stop = pl.callbacks.EarlyStopping("val_loss", patience=2)
    logger = recorder(pl)
    settings = {
        "max_steps": -1,
        "max_epochs": 20,
        "enable_checkpointing": True,
        "logger": logger,
        "log_every_n_steps": 1,
    }
    trainer = make_trainer(folder, [*callbacks, checkpoint, stop, Report()], pl, **settings)
    module = Module(gpu)
    trainer.fit(module, loader(4), loader(2))
    return {
        "losses": module.losses,
        "weights": {name: value.tolist() for name, value in module.state_dict().items()},
        "best": checkpoint.best_model_path.removeprefix(str(folder)),
        "steps": trainer.global_step,
        "reported": reported,
        "callback_metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
        "logged_metrics": {name: float(value) for name, value in trainer.logged_metrics.items()},
        "progress_bar_metrics": trainer.progress_bar_metrics,
        "validated": trainer.validate(module, loader(2), verbose=False),
        "tested": trainer.test(module, loader(2), verbose=False),
    }, logger


def test_nothing_of_ours_is_where_others_select_stop_optimise_or_add_up(pl, tmp_path, monitor, gpu):
    without, _ = fit(pl, tmp_path / "without", [], gpu)
    with_it, logger = fit(pl, tmp_path / "with", [ZeusCallback(monitor)], gpu)
    assert with_it == without
    assert without["best"] == "/epoch=3-val_loss=0.00.ckpt"
    assert without["steps"] == 24
    assert logger.values("train/energy_j"), "and it is logged nevertheless"


@pytest.mark.parametrize("name", ["power_w", "energy_kj", "train/energy_j", "train_energy_j"])
def test_a_monitor_that_is_misnamed_is_still_an_error(pl, tmp_path, monitor, gpu, name):
    stop = pl.callbacks.EarlyStopping(name)
    trainer = make_trainer(tmp_path, [ZeusCallback(monitor), stop], pl, log_every_n_steps=1)
    with pytest.raises(RuntimeError, match="conditioned on metric"):
        trainer.fit(module_class(pl)(gpu), loader(4), loader(2))


def test_torch_is_as_it_was_while_a_module_is_fitted(pl, tmp_path, monitor, gpu):
    untouched, seen = parts_of_torch(), []
    look = at("on_train_batch_end", lambda _: seen.append(parts_of_torch() == untouched), pl)
    trainer = make_trainer(tmp_path, [ZeusCallback(monitor), look], pl, max_steps=4, val_check_interval=2)
    trainer.fit(module_class(pl)(gpu), loader(4), loader(2))
    assert seen == [True] * 4
