"""The callback in trainers of scripts that nobody edits, by the entry points of the package and `ZEUS=1`."""

import sys
from pathlib import Path

import pytest

from tests.lightning.trainers import loader, make_trainer, module_class, recorder
from zeus_lightning import ZeusCallback

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture(autouse=True)
def installed(tmp_path, monkeypatch):
    """The entry points of the package, as installing it makes them known."""
    folder = tmp_path / "installed" / "zeus_core-0.1.0.dist-info"
    folder.mkdir(parents=True)
    groups = tomllib.loads(PROJECT.read_text())["project"]["entry-points"]
    lines = [f"[{group}]\n{name} = {value}\n" for group, names in groups.items() for name, value in names.items()]
    (folder / "entry_points.txt").write_text("".join(lines))
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: zeus-core\nVersion: 0.1.0\n")
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "A40:1")


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


def test_a_trainer_that_has_one_keeps_it(pl, tmp_path, monkeypatch):
    monkeypatch.setenv("ZEUS", "1")
    own = ZeusCallback()
    trainer = make_trainer(tmp_path, [own], pl)
    trainer.fit(module_class(pl)(), loader(20))
    assert ours(trainer) == [own]
    assert own.summary.steps == 20


def test_a_cli_gets_a_callback(pl, tmp_path, monkeypatch, run_cli):
    monkeypatch.setenv("ZEUS", "1")
    (tmp_path / "fit.yaml").write_text(f"trainer: {{max_steps: 1, accelerator: cpu, default_root_dir: {tmp_path}}}")
    monkeypatch.setattr(module_class(pl), "train_dataloader", lambda self: loader(20), raising=False)
    trainer = run_cli(pl, module_class(pl), "fit", "--config", str(tmp_path / "fit.yaml"))
    (callback,) = ours(trainer)
    assert callback.summary.steps == 1
