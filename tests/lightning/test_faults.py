"""Training is the same bit for bit after any fault of the integration."""

import functools
import inspect
import logging
import tempfile
from pathlib import Path

import lightning.pytorch
import pytest

from tests.lightning.trainers import SAVING, at, loader, make_trainer, module_class, recorder
from tests.support.variants import long_but_first
from zeus_core.errors import DriverFaultError
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import Energy, GlobalPowerLimitOptimizer
from zeus_core.search import GridSearch
from zeus_core.testing import FaultyGpu
from zeus_lightning import ZeusCallback

HOOKS = sorted(name for name in vars(ZeusCallback) if name.startswith("on_") or name in {"setup", "teardown"})
METHODS = [
    "read_energy_counter_joules",
    "read_power_watts",
    "read_power_limit_watts",
    "read_power_limit_range_watts",
    "set_power_limit",
]


def losses_of(folder, callbacks, pl=lightning.pytorch, gpu=None, **arguments):
    module = module_class(pl)(gpu, SAVING if gpu is not None else None)
    trainer = make_trainer(
        folder,
        [*callbacks, pl.callbacks.ModelCheckpoint(folder / "checkpoints", every_n_train_steps=6)],
        pl,
        max_steps=30,
        enable_checkpointing=True,
        num_sanity_val_steps=1,
        **arguments,
    )
    trainer.fit(module, loader(10), loader(2))
    return module.losses


@functools.cache
def undisturbed_losses(pl=lightning.pytorch):
    with tempfile.TemporaryDirectory() as folder:
        return losses_of(Path(folder), [], pl)


@pytest.fixture
def faulty(gpu):
    return FaultyGpu(gpu)


@pytest.fixture
def callback(faulty, time_source):
    monitor = ZeusMonitor(gpus=[faulty], time_source=time_source)
    optimizer = GlobalPowerLimitOptimizer(
        monitor, Energy(), wait_steps=0, warmup_steps=1, profile_steps=3, pl_step=100, search=GridSearch
    )
    return ZeusCallback(optimizer=optimizer)


def errors_of_ours(caplog):
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("zeus") and record.levelno >= logging.ERROR
    ]


def test_training_is_the_same_with_the_callback(pl, tmp_path, callback, gpu, caplog):
    assert losses_of(tmp_path / "with", [callback], pl, gpu) == undisturbed_losses(pl)
    assert callback.energy.optimizer.chosen_limit_watts is not None
    assert errors_of_ours(caplog) == []


@pytest.mark.parametrize("hook", HOOKS)
def test_no_error_leaves_a_hook(callback, hook, caplog):
    class Broken:
        def __getattr__(self, name):
            raise ZeroDivisionError(f"no {name}")

    callback._session = callback._loop = Broken()
    method = getattr(callback, hook)
    method(*[Broken() for _ in inspect.signature(method).parameters])
    assert "ZeusCallback" in caplog.text


@pytest.mark.parametrize(
    ("hook", "times"),
    long_but_first(
        [("on_train_batch_end", 1), ("setup", None), ("on_train_start", None), ("on_validation_start", None)]
    ),
)
def test_a_driver_that_fails(tmp_path, callback, faulty, gpu, hook, times):
    def break_driver(_):
        for method in METHODS:
            faulty.fail(method, DriverFaultError("GPU is lost"), times=times)

    before = [at(hook, break_driver), callback]
    assert losses_of(tmp_path / "with", before, gpu=gpu) == undisturbed_losses()
    faulty.heal()
    callback.energy.on_train_end()
    assert gpu.read_power_limit_watts() == 350


@pytest.mark.long
@pytest.mark.parametrize("hook", ["on_train_batch_start", "on_validation_end"])
def test_windows_that_somebody_drops(tmp_path, callback, gpu, hook):
    drop = at(hook, lambda _: callback.energy and callback.energy.monitor.reset_windows())
    assert losses_of(tmp_path / "with", [callback, drop], gpu=gpu) == undisturbed_losses()
    assert gpu.read_power_limit_watts() == 350


def test_a_folder_that_cannot_be_written(tmp_path, callback, gpu, caplog):
    folder = tmp_path / "with"
    folder.mkdir()
    (folder / "zeus-energy").write_text("a file")
    assert losses_of(folder, [callback], gpu=gpu) == undisturbed_losses()
    (message,) = [record.getMessage() for record in caplog.records if "journal" in record.getMessage()]
    assert "cannot be written" in message


def test_a_logger_that_raises_keeps_no_other_from_logging(pl, tmp_path, callback, gpu, caplog):
    bad, good = recorder(pl), recorder(pl)

    def refuse(metrics, step=None):
        if "loss" not in metrics:
            raise ConnectionError("no route to the tracker")

    bad.log_metrics = refuse
    with_us = losses_of(tmp_path / "with", [callback], pl, gpu, logger=[bad, good])
    assert with_us == undisturbed_losses(pl)
    assert len(good.values("train/energy_j")) == 6
    assert len(good.values("train_energy_j")) == 1
    (message,) = errors_of_ours(caplog)
    assert "no route to the tracker" in message


def test_a_function_of_batches_that_raises(tmp_path, monitor, gpu, caplog):
    callback = ZeusCallback(monitor, tokens=lambda batch: batch["ids"].numel())
    assert losses_of(tmp_path / "with", [callback], gpu=gpu) == undisturbed_losses()
    assert callback.summary.steps == 30
    assert len(errors_of_ours(caplog)) == 1
