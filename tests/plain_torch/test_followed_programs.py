"""Whole programs below `zeus-core run --trainer`, which end as programs do: before our last word, or without it."""

import signal
import subprocess
import sys
import textwrap

import pytest

from tests.support.result_boxes import rows

LOOP = """
    import glob, os, signal, sys, time
    import torch, torch.distributed as dist
    model = torch.nn.Linear(8, 2)
    def train(model, until):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        while not until():
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a program on two simulated GPUs. Returns how it ended, and the rows of its box."""
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "A100:2")

    def run(code, *command):
        file = tmp_path / "train.py"
        file.write_text(textwrap.dedent(LOOP) + textwrap.dedent(code))
        words = [sys.executable, "-m", "zeus_core", "run", "--trainer", "--", *(command or [sys.executable]), str(file)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300)
        lines = [line for line in done.stderr.splitlines(keepends=True) if line.startswith(("|", "+-"))]
        return done, rows("".join(lines))

    return run


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")


@pytest.mark.parametrize(
    "destroy",
    [
        "dist.destroy_process_group()",
        pytest.param(
            "import accelerate; accelerate.state.PartialState().destroy_process_group()", marks=pytest.mark.long
        ),
    ],
    ids=["torch", "accelerate"],
)
def test_ranks_that_destroy_their_group_first_have_their_energy(run, destroy):
    code = f"""
        dist.init_process_group("gloo")
        steps = iter([False] * 60 + [True])
        train(torch.nn.parallel.DistributedDataParallel(model), lambda: next(steps))
        {destroy}
    """
    done, box = run(code, *TORCHRUN)
    assert done.returncode == 0
    assert box["steps"].startswith("60: ")
    assert " J (" in box["energy"]
    assert "Traceback" not in done.stderr
    assert "local rank" not in done.stderr


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        pytest.param("os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV, marks=pytest.mark.long),
        pytest.param("os._exit(3)", 3, marks=pytest.mark.long),
    ],
)
def test_a_loop_that_is_killed_leaves_what_was_known(run, end, code):
    program = f"""
        train(model, lambda: glob.glob(os.environ["ZEUS"] + "/*/*/run.json") or time.sleep(0.01))
        {end}
    """
    done, box = run(program)
    assert done.returncode == code
    assert int(box["steps"]) > 0
    assert "J" in box["energy"]
    assert box["ended"].startswith("without its last word")
