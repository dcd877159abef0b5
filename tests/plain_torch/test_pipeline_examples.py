"""The pipelines in examples/pytorch, and the page that shows them."""

import re

import pytest

from tests.accelerate.processes import run_script
from tests.pages import ROOT, blocks, is_of

EXAMPLES = ROOT / "examples" / "pytorch"
PIPELINES = ("hand_written_1f1b.py", "pipelining_1f1b.py")
SIMULATED = ("--simulate", "A100-SXM4-80GB")


@pytest.mark.parametrize("block", blocks("pipeline.md")[1:])
def test_the_code_on_the_page_is_that_of_the_examples(block):
    assert any(is_of(block, EXAMPLES / name) for name in PIPELINES), block


def test_ten_lines_are_all_it_takes():
    source = (EXAMPLES / PIPELINES[0]).read_text().splitlines()
    assert [int(line.rsplit("# ", 1)[1]) for line in source if re.search(r"  # \d+$", line)] == list(range(1, 11))


@pytest.mark.parametrize("name", PIPELINES)
def test_it_trains(name):
    assert run_script(EXAMPLES / name, *SIMULATED, "--steps", 4, ranks=2).startswith("comparing; ")


@pytest.mark.long
@pytest.mark.parametrize("name", PIPELINES)
def test_a_plan_is_found_that_saves(name):
    printed = run_script(EXAMPLES / name, *SIMULATED, ranks=2)
    assert printed.startswith("replaying; ")
    costs = re.findall(r"^(?:before|after): +([\d.]+) s and ([\d.]+) J per iteration$", printed, re.MULTILINE)
    (seconds, joules), (seconds_after, joules_after) = (map(float, it) for it in costs)
    assert seconds_after < 1.03 * seconds
    assert joules_after < 0.97 * joules
