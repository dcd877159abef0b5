"""The code of docs/lightning.md and the examples, as a user runs them."""

import logging
import os
import re
import runpy
import subprocess
import sys

import lightning.pytorch
import pytest

from tests.lightning.trainers import loader, module_class
from tests.support.pages import ROOT, blocks
from tests.support.result_boxes import check_search_of_example
from zeus_lightning import ZeusCallback

EXAMPLES = ROOT / "examples" / "lightning"


@pytest.fixture(autouse=True)
def _simulated(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "A100-SXM4-80GB:1")
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # which Lightning changes
    logger = logging.getLogger("zeus_core")
    level = logger.level
    yield
    logger.setLevel(level)


def test_the_code_of_the_page_runs(capsys):
    model = module_class(lightning.pytorch)()
    names = {"model": model, "train_loader": loader(10), "val_loader": loader(2)}
    for block in blocks("lightning.md"):
        exec(block, names)
    assert re.search(r"total .* ±[\d.]+ k?J .* W$", capsys.readouterr().out, re.MULTILINE)


class Module(module_class(lightning.pytorch)):
    def train_dataloader(self):
        return loader(10)


def test_the_yaml_of_the_page_runs(tmp_path, run_cli):
    (block,) = blocks("lightning.md", "yaml")
    (tmp_path / "page.yaml").write_text(block)
    arguments = ["--config", "page.yaml", "--trainer.max_steps=5", "--trainer.accelerator=cpu"]
    trainer = run_cli(lightning.pytorch, Module, "fit", *arguments)
    (callback,) = [callback for callback in trainer.callbacks if isinstance(callback, ZeusCallback)]
    assert str(callback.energy.optimizer.optimum_selector) == "EnergyWithin(factor=1.1)"
    assert callback.summary.steps == 5


def test_the_example_prints_where_the_energy_went(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fit.py", "--simulate", "A100-SXM4-80GB", "--steps", "10"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(EXAMPLES / "fit.py"), run_name="__main__")
    assert end.value.code == 0
    assert re.search(r"total .* ±[\d.]+ k?J .* W$", capsys.readouterr().out, re.MULTILINE)
    assert [path.name for path in tmp_path.iterdir()] == ["zeus-lightning"]


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments", [["fit.py", "--simulate", "A100-SXM4-80GB"], ["cli.py", "fit", "--config", str(EXAMPLES / "fit.yaml")]]
)
def test_the_examples_run_from_the_shell(tmp_path, arguments):
    script, *rest = arguments
    finished = subprocess.run(
        [sys.executable, EXAMPLES / script, *rest],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'integrations' / 'lightning'}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert finished.returncode == 0, finished.stderr
    if script != "cli.py":
        check_search_of_example(finished.stderr)
    assert [path.name for path in tmp_path.iterdir()] == ["zeus-lightning"]
