"""Whole programs below `zeus-core run --trainer`, whose ranks may destroy their group before our last word."""

import subprocess
import sys
import textwrap

import pytest

from tests.support.result_boxes import rows

LOOP = """
    import os, sys
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
