"""The pipelines in examples/pytorch, and the page that shows them."""

import contextlib
import io
import re

import pytest
import torch
import torch.distributed

from tests.accelerate.processes import run_script
from tests.support.pages import ROOT, blocks, is_of
from tests.support.ranks import run_ranks
from tests.support.virtual_time import A100, Run, SharedTimes, computing_optimizer, true_profile

EXAMPLES = ROOT / "examples" / "pytorch"
PIPELINES = ("hand_written_1f1b.py", "pipelining_1f1b.py")
SIMULATED = ("--simulate", A100)


@pytest.mark.parametrize("block", blocks("pipeline.md")[1:2] + blocks("pipeline.md")[4:])
def test_the_code_on_the_page_is_that_of_the_examples(block):
    assert any(is_of(block, EXAMPLES / name) for name in PIPELINES), block


def test_ten_lines_are_all_it_takes():
    source = (EXAMPLES / PIPELINES[0]).read_text().splitlines()
    assert [int(line.rsplit("# ", 1)[1]) for line in source if re.search(r"  # \d+$", line)] == list(range(1, 11))


@pytest.mark.parametrize("name", PIPELINES)
def test_it_trains(name):
    assert "baseline; " in run_script(EXAMPLES / name, *SIMULATED, "--steps", 4, ranks=2)


def train(times, steps):
    """The pipeline written by hand, in virtual time."""
    import hand_written_1f1b
    import pipeline_toy

    torch.distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with computing_optimizer(times) as clocks:
        stage = pipeline_toy.Stage(torch.distributed.get_rank(), torch.distributed.get_world_size())
        pipeline = hand_written_1f1b.Pipeline(stage, torch.device("cpu"), clocks)
        for _ in range(steps):
            pipeline.step(*pipeline_toy.make_batch(pipeline.device))
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            pipeline_toy.report(clocks)
    return clocks.record, printed.getvalue()


def test_a_handwritten_pipeline_gets_a_plan_that_keeps_its_promise(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import pipeline_toy

    records, printed = zip(*run_ranks(2, train, SharedTimes(2, pipeline_toy.MICROBATCHES), 60), strict=True)
    run = Run(records)
    run.check_against(true_profile(2, A100), run.records[0].latest["schedule"])
    assert min(map(int, re.findall(r"\d+", re.match("replaying; .*", printed[0])[0]))) < 1410
    joules = re.findall(r"^(?:before|after): +[\d.]+ s and ([\d.]+) J per iteration$", printed[0], re.MULTILINE)
    assert float(joules[1]) < float(joules[0])
    assert printed[1] == ""
