"""Programs with real packages, plainly and below `zeus-core run --trainer`: the same weights, and their energy."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.result_boxes import rows

REPOSITORY = Path(__file__).parents[2]
PYTHON = REPOSITORY / ".venv-programs/bin/python"

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not PYTHON.exists(), reason="`make .venv-programs/.ready` installs the packages"),
]


@pytest.fixture
def environment(tmp_path):
    """Nothing may be downloaded, and what a package writes for itself is thrown away."""
    offline = {"HF_HUB_OFFLINE": "1", "YOLO_OFFLINE": "1", "YOLO_CONFIG_DIR": str(tmp_path)}
    return {**os.environ, **offline, "ZEUS_SIMULATED_GPUS": "A100-SXM4-80GB:1", "OMP_NUM_THREADS": "1"}


def run(folder, environment, name, *options, is_coded=False):
    """Run a program; returns the hash of its weights, and what it has written to standard error."""
    command = [PYTHON, Path(__file__).with_name("programs.py"), name, "weights", *["coded"] * is_coded]
    if options:
        command = [PYTHON, "-m", "zeus_core", "run", "--quiet", *options, "--", *command]
    folder.mkdir()
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return (folder / "weights").read_text(), ended.stderr


def box(errors):
    """The one box of a program."""
    assert "no training was found" not in errors
    (only,) = errors.split("+- zeus-core ")[1:]
    return rows(only)


@pytest.mark.parametrize("name", ["sentence_transformers", "neuralforecast", "timm", "fabric"])
def test_a_program_trains_the_same_weights_and_shows_its_energy(tmp_path, environment, name):
    weights, errors = run(tmp_path / "plain", environment, name)
    assert "zeus-core" not in errors
    same_weights, errors = run(tmp_path / "measured", environment, name, "--trainer")
    assert same_weights == weights
    shown = box(errors)
    assert re.search(r"steps \d", shown["spent on"])
    if name in {"timm", "fabric"}:  # the others report their steps
        assert shown["steps"].startswith("40: ")


def test_a_recipe_of_torchtune_logs_its_energy(tmp_path, environment):
    weights, _ = run(tmp_path / "plain", environment, "torchtune")
    same_weights, errors = run(tmp_path / "measured", environment, "torchtune", is_coded=True)
    assert same_weights == weights
    assert box(errors)["steps"].startswith("40: ")
    (log,) = (tmp_path / "measured" / "logs").iterdir()
    assert len(re.findall("Step .*energy_j:.*loss:1.0", log.read_text())) == 40


def test_validations_and_saves_of_ultralytics_are_no_steps(tmp_path, environment):
    weights, _ = run(tmp_path / "plain", environment, "ultralytics")
    followed = run(tmp_path / "followed", environment, "ultralytics", "--trainer")
    coded = run(tmp_path / "coded", environment, "ultralytics", is_coded=True)
    for same_weights, errors in (followed, coded):
        assert same_weights == weights
        shown = box(errors)
        assert shown["steps"].startswith("6: ")
        assert all(f"{activity} " in shown["spent on"] for activity in ("steps", "evaluation", "checkpoint"))


def test_a_program_saves_without_code(tmp_path, environment):
    weights, _ = run(tmp_path / "plain", environment, "timm")
    same_weights, errors = run(tmp_path / "saving", environment, "timm", "--save", "10%")
    assert same_weights == weights
    assert "power limit" in box(errors)
