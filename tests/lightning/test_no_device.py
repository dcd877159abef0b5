"""The callback where there is no GPU: training is the same, with one warning."""

import lightning.pytorch
import pytest

from tests.lightning.trainers import loader, make_trainer, module_class, recorder
from zeus_core.errors import NoDeviceError
from zeus_core.optimizer import Energy, GlobalPowerLimitOptimizer
from zeus_lightning import ZeusCallback


@pytest.fixture(autouse=True)
def no_device(monkeypatch):
    monkeypatch.delenv("ZEUS_SIMULATED_GPUS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def run(folder, callbacks, pl=lightning.pytorch):
    logger = recorder(pl)
    trainer = make_trainer(
        folder, callbacks, pl, logger=logger, val_check_interval=5, check_val_every_n_epoch=None, num_sanity_val_steps=1
    )
    module = module_class(pl)()
    trainer.fit(module, loader(20), loader(2))
    results = [trainer.validate(module, loader(2), verbose=False), trainer.test(module, loader(2), verbose=False)]
    trainer.save_checkpoint(folder / "last.ckpt")
    return module.losses, results, logger.logged, sorted(path.name for path in folder.iterdir())


def search(monitor):
    return GlobalPowerLimitOptimizer(monitor, Energy(), warmup_steps=0, profile_steps=1)


@pytest.mark.parametrize("arguments", [{}, {"optimizer": search}], ids=["energy", "search"])
def test_training_goes_on_with_one_warning_and_nothing_else(pl, tmp_path, caplog, arguments):
    undisturbed = run(tmp_path / "without", [], pl)
    callback = ZeusCallback(**arguments)
    assert run(tmp_path / "with", [callback], pl) == undisturbed
    (warning,) = [record.getMessage() for record in caplog.records if record.name.startswith("zeus")]
    assert "training goes on" in warning
    assert "ZEUS_SIMULATED_GPUS=" in warning
    assert callback.summary.values() == {}


def test_those_who_want_the_error_get_it(tmp_path, monkeypatch):
    with pytest.raises(NoDeviceError, match="ZEUS_SIMULATED_GPUS="):
        ZeusCallback(strict=True)
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "A40:1")
    callback = ZeusCallback(strict=True)
    monkeypatch.delenv("ZEUS_SIMULATED_GPUS")
    with pytest.raises(NoDeviceError):
        run(tmp_path, [callback])
