"""Programs with real packages, plainly and below `zeus-core run`: the same weights, their energy, and saving."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.nvml_driver import DeviceSpec
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


def command_of(name, *words, options=()):
    """The command of a program, below `zeus-core run` if there are options for it."""
    command = [PYTHON, Path(__file__).with_name("programs.py"), name, "weights", *words]
    return [PYTHON, "-m", "zeus_core", "run", "--quiet", *options, "--", *command] if options else command


def run(folder, environment, name, *options, words=()):
    """Run a program; returns the hash of its weights, and what it has written to standard error."""
    folder.mkdir()
    command = command_of(name, *words, options=options)
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return (folder / "weights").read_text(), ended.stderr


def box(errors):
    """The one box of a program."""
    assert "no training was found" not in errors
    (only,) = errors.split("+- zeus-core ")[1:]
    return rows(only)


@pytest.mark.parametrize("name", ["sentence_transformers", "neuralforecast", "timm", "fabric", "torchtune"])
def test_a_program_saves_without_code_and_trains_the_same_weights(tmp_path, environment, name):
    weights, errors = run(tmp_path / "plain", environment, name)
    assert "zeus-core" not in errors.replace(str(REPOSITORY), "")  # warnings name files of this clone
    same_weights, errors = run(tmp_path / "saving", environment, name, "--save", "10%")
    assert same_weights == weights
    shown = box(errors)
    assert re.search(r"steps \d", shown["spent on"])
    assert "power limit" in shown
    if name in {"timm", "fabric", "torchtune"}:  # the others report their steps
        assert shown["steps"].startswith("40: ")


WAIT_SECONDS = 240.0  # far more than anything takes: timing never decides a test


def until(condition):
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end, "it has not happened"
        time.sleep(0.01)


@pytest.mark.parametrize("end", ["exception", signal.SIGTERM, signal.SIGKILL, "without rights"], ids=str)
def test_saving_restores_the_original_however_the_program_ends(tmp_path, environment, make_driver, end):
    """SIGTERM reaches the program by `zeus-core run`; SIGKILL is sent to the program itself."""
    driver = make_driver(DeviceSpec(default_limit_watts=650, power_limit_watts=450.0))
    driver[0].set_load(400.0)
    if end == "without rights":
        driver[0].deny_control()
    del environment["ZEUS_SIMULATED_GPUS"]
    command = command_of("endless", options=["--save", "10%"])
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env=environment | driver.environment, **pipes) as process:
        try:
            if end == "without rights":
                until((tmp_path / "steps").exists)
            else:
                until(lambda: driver[0].power_limit_watts < 450.0)
            if end == signal.SIGTERM:
                process.send_signal(end)
            elif end == signal.SIGKILL:
                (program,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                os.kill(int(program), end)
        finally:
            (tmp_path / "weights").touch()
        errors = process.communicate()[1]
    assert process.returncode == (1 if isinstance(end, str) else -end)
    until(lambda: driver[0].power_limit_watts == 450.0)
    if isinstance(end, str):
        assert "ValueError: of the user" in errors
        assert "power limit" in box(errors)


def test_a_recipe_of_torchtune_logs_its_energy(tmp_path, environment):
    weights, _ = run(tmp_path / "plain", environment, "torchtune")
    same_weights, errors = run(tmp_path / "measured", environment, "torchtune", words=["coded"])
    assert same_weights == weights
    assert box(errors)["steps"].startswith("40: ")
    (log,) = (tmp_path / "measured" / "logs").iterdir()
    assert len(re.findall("Step .*energy_j:.*loss:1.0", log.read_text())) == 40


def test_validations_and_saves_of_ultralytics_are_no_steps(tmp_path, environment):
    weights, _ = run(tmp_path / "plain", environment, "ultralytics")
    followed = run(tmp_path / "followed", environment, "ultralytics", "--trainer")
    coded = run(tmp_path / "coded", environment, "ultralytics", words=["coded"])
    for same_weights, errors in (followed, coded):
        assert same_weights == weights
        shown = box(errors)
        assert shown["steps"].startswith("6: ")
        assert all(f"{activity} " in shown["spent on"] for activity in ("steps", "evaluation", "checkpoint"))
