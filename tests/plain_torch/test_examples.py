"""The loops written by hand in examples/pytorch, and the page that shows them."""

import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.accelerate.processes import run_script
from tests.support.pages import ROOT, blocks, is_of
from tests.support.result_boxes import check_search_of_example

EXAMPLES = ROOT / "examples" / "pytorch"
SIMULATED = ("--simulate", "A100-SXM4-80GB")


def printed_joules(printed):
    """The table of activities at the end of what was printed."""
    line = r"^ *([a-z ]+?) +(?:\d+ min )?[\d.]+ s +([\d.]+)(?: ±[\d.]+)? (k?)J"
    return {name: float(value) * (1000 if kilo else 1) for name, value, kilo in re.findall(line, printed, re.M)}


BUSY = {"between steps"}  # on a machine so busy that the program got no turn for a while


def journal_entries(folder, rank=0):
    return [json.loads(line) for line in (folder / "zeus-energy" / f"rank-{rank}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("block", blocks("pytorch.md"))
def test_the_code_on_the_page_is_that_of_the_examples(block):
    assert any(is_of(block, script) for script in EXAMPLES.glob("*.py")), block


@pytest.mark.long
def test_five_lines_measure(tmp_path):
    printed = run_script(EXAMPLES / "measure.py", *SIMULATED, "--steps", 30, "--output", tmp_path)
    joules = printed_joules(printed)
    assert joules.keys() - BUSY == {"steps", "evaluation", "idle", "total"}
    assert joules["total"] == pytest.approx(sum(joules.values()) - joules["total"], rel=0.2)
    assert "'energy_per_sample_j'" in printed
    assert sum(line.rstrip().endswith(f"# {i}") for i in range(9) for line in source("measure.py")) == 5


@pytest.mark.long
def test_events_measure_the_same_as_blocks(tmp_path):
    printed = run_script(EXAMPLES / "measure_by_events.py", *SIMULATED, "--steps", 30, "--output", tmp_path)
    assert printed_joules(printed).keys() - BUSY == {"steps", "evaluation", "idle", "total"}


def source(name):
    return (EXAMPLES / name).read_text().splitlines()


@pytest.mark.long
def test_an_interrupted_training_goes_on_and_so_does_its_total(tmp_path):
    first = printed_joules(run_script(EXAMPLES / "train.py", *SIMULATED, "--steps", 60, "--output", tmp_path))
    resumed = run_script(EXAMPLES / "train.py", *SIMULATED, "--steps", 75, "--output", tmp_path)
    second = printed_joules(resumed)
    parts = {
        entry["part"]: entry["account"]["total"]["measured"]["energy_joules"] for entry in journal_entries(tmp_path)
    }
    assert next(iter(parts.values())) == pytest.approx(first["total"], rel=0.005)  # as far as it is printed
    assert sum(parts.values()) == pytest.approx(second["total"], rel=0.005)
    assert 0 < second.get("done twice", 0) < first["steps"], resumed


@pytest.mark.real_time
@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_several_processes_have_one_total(tmp_path, how):
    printed = run_script(
        EXAMPLES / "train_parallel.py", *SIMULATED, "--parallel", how, "--steps", 50, "--output", tmp_path, ranks=2
    )
    own = [journal_entries(tmp_path, rank)[-1]["account"]["total"]["measured"]["energy_joules"] for rank in range(2)]
    assert min(own) > 100
    assert printed_joules(printed)["total"] == pytest.approx(sum(own), rel=0.02)
    assert "step 50: loss" in printed


@pytest.mark.long
def test_torchrun_searches_one_limit_for_all(tmp_path):
    torchrun = Path(sysconfig.get_path("scripts")) / "torchrun"
    command = [torchrun, "--nproc-per-node", "2", EXAMPLES / "train_parallel.py", *SIMULATED]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    finished = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=560)
    assert finished.returncode == 0, finished.stderr
    check_search_of_example(finished.stderr)
    assert [path.name for path in tmp_path.iterdir()] == ["zeus-pytorch"]


@pytest.mark.long
def test_the_loop_by_hand_searches_a_limit(tmp_path):
    printed = run_script(EXAMPLES / "train.py", *SIMULATED, "--output", tmp_path / "output")
    check_search_of_example(printed)


def test_without_a_gpu_a_sentence_says_what_to_do(tmp_path):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    finished = subprocess.run(
        [sys.executable, EXAMPLES / "measure.py"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert finished.returncode == 1
    assert finished.stderr.splitlines()[-1] == "torch sees no GPU here; simulate one: --simulate A100-SXM4-80GB"
