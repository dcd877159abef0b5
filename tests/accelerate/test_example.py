"""The loop in examples/accelerate, and the page that shows it."""

import json

import pytest

from tests.accelerate.processes import run_script
from tests.support.pages import ROOT, blocks, is_of
from tests.support.result_boxes import check_search_of_example

EXAMPLE = ROOT / "examples" / "accelerate" / "train.py"
SIMULATED = ("--simulate", "A100-SXM4-80GB")


def logged(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("block", blocks("accelerate.md"))
def test_the_code_on_the_page_is_that_of_the_example(block):
    assert is_of(block, EXAMPLE), block


@pytest.mark.long
def test_it_measures_and_goes_on_where_it_was(tmp_path):
    run_script(EXAMPLE, *SIMULATED, "--steps", 60, "--output", tmp_path)
    before = logged(tmp_path)
    printed = run_script(EXAMPLE, *SIMULATED, "--steps", 75, "--output", tmp_path, "--resume")
    after = logged(tmp_path)[len(before) :]
    assert [line["step"] for line in after] == [75, 75]
    assert after[0]["energy_per_sample_j"] == pytest.approx(after[0]["energy_j"] / (25 * 8))
    assert after[-1]["train_energy_j"] > before[-1]["train_energy_j"]
    assert "done twice" in printed
    evaluations = [line for line in before if "eval_loss" in line]
    assert evaluations[0]["eval_energy_j"] > 0


@pytest.mark.real_time
def test_two_processes_have_one_total(tmp_path):
    run_script(EXAMPLE, *SIMULATED, "--steps", 30, "--output", tmp_path, ranks=2)
    first, last = logged(tmp_path)
    assert first["step"] == 25
    assert 110 < first["power_w"] < 900, "two GPUs: idle where the machine is busy, at most at their limit"
    assert last["train_energy_j"] > first["total_energy_j"]


@pytest.mark.long
def test_two_processes_search_one_limit(tmp_path, monkeypatch):
    """As torchrun starts them; with torchrun itself: in tests/plain_torch."""
    monkeypatch.chdir(tmp_path)
    printed = run_script(EXAMPLE, *SIMULATED, ranks=2)
    check_search_of_example(printed)
    assert [path.name for path in tmp_path.iterdir()] == ["zeus-accelerate"]
