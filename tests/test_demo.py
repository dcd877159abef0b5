"""The example behind `make demo`, as a user runs it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from zeus_core.training.record.run_file import read_run

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "huggingface" / "train_causal_lm.py"


def run(folder, *arguments):
    home = folder / "home"
    home.mkdir()
    return subprocess.run(
        [sys.executable, EXAMPLE, *arguments],
        cwd=folder,
        env={**os.environ, "HOME": str(home), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.long
def test_an_unknown_model_is_a_sentence(tmp_path):
    finished = run(tmp_path, "--simulate", "B1000")
    assert finished.returncode == 2
    assert finished.stderr.splitlines()[-1].startswith("there is no GPU model 'B1000' here; choose one of: V100")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_demo_finds_a_limit_and_writes_only_into_its_folder(tmp_path):
    finished = run(tmp_path, "--simulate", "A100-SXM4-80GB", "--steps", "130")
    assert finished.returncode == 0, finished.stderr
    # Which limit it is, and whether one is chosen at all, a busy machine has a say in.
    last_line = (
        r"On A100-SXM4-80GB \(simulated\): (\d+ W in place of 400 W, for .* time\. The saving is .*|.*400 W.*)\."
    )
    assert re.fullmatch(last_line, finished.stdout.splitlines()[-1]), finished.stdout
    tried = [int(limit) for limit in re.findall(r"^ *(\d+) W  ", finished.stdout, re.MULTILINE)]
    assert tried[0] == 400
    assert len(tried) <= 6
    assert "zeus-core report zeus-demo/checkpoints --output report.html" in finished.stdout
    assert read_run(tmp_path / "zeus-demo" / "checkpoints").latest.search is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "zeus-demo"]
    assert [path for path in (tmp_path / "home").rglob("*") if path.is_file()] == []


@pytest.mark.long
def test_the_example_of_trl_tells_the_energy_of_a_token(tmp_path):
    pytest.importorskip("trl", reason="TRL needs Python 3.11", exc_type=ImportError)
    program = [sys.executable, EXAMPLE.parent / "sft_lora.py", "--simulate", "A100-SXM4-80GB", "--steps", "30"]
    finished = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=560)
    assert finished.returncode == 0, finished.stderr
    last_line = finished.stdout.splitlines()[-1]
    assert re.fullmatch(r"A token took [\d.]+ J on A100-SXM4-80GB \(simulated\)\.", last_line)
    assert [path.name for path in tmp_path.iterdir()] == ["zeus-demo"]


@pytest.mark.long
def test_the_example_of_grpo_tells_what_generation_takes(tmp_path):
    pytest.importorskip("trl", reason="TRL needs Python 3.11", exc_type=ImportError)
    program = [sys.executable, EXAMPLE.parent / "train_grpo.py", "--simulate", "H100", "--steps", "10"]
    program += ["--slowdown", "1.05"]
    finished = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=560)
    assert finished.returncode == 0, finished.stderr
    (generation,) = re.findall(r"^generation .* (\d+) W$", finished.stdout, re.MULTILINE)
    assert 250 < int(generation) < 330
    assert "per generated token" in finished.stdout + finished.stderr
    assert "during generation" in finished.stdout + finished.stderr
