"""What docs/deepspeed.md tells people to copy, and what it says of the block."""

import importlib
import json
import re
from pathlib import Path

import deepspeed
import pytest

import zeus_deepspeed._config
from tests.deepspeed.engines import batches, config, make_engine, make_module, run_engines
from tests.pages import ROOT, blocks
from zeus_core.device import SIMULATED_GPUS_VARIABLE, Work, discover_gpus
from zeus_core.pipeline import read_plan
from zeus_core.pytorch import SimulatedCompute
from zeus_deepspeed._config import KEYS

PAGE = "deepspeed.md"
QUICK = {"warmup_steps": 1, "max_clocks": 2, "check_steps": 2, "profile_instructions": 3, "tolerance_fraction": 1.0}
WORK = Work(seconds=0.02, active_power_watts=250.0)


@pytest.fixture(autouse=True)
def _simulated(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(SIMULATED_GPUS_VARIABLE, "V100-SXM2-32GB:2")


def rows(text):
    """Key, type, default and meaning of each row of the table of keys, on the page."""
    return [
        tuple(it.strip() for it in row) for row in re.findall(r"^\| (`\w+`) \| (\w+) \| (.*?) \| (.*) \|$", text, re.M)
    ]


def rows_of_the_docstring():
    lines = zeus_deepspeed._config.__doc__.splitlines()
    first, second, last = (number for number, line in enumerate(lines) if line.startswith("==="))
    assert second == first + 2
    widths = [len(it) for it in lines[first].split()]
    found = []
    for line in lines[second + 1 : last]:
        rest, cells = line, []
        for width in widths[:-1]:
            cells.append(rest[:width].strip())
            rest = rest[width + 2 :]
        cells.append(rest.strip())
        if cells[0]:
            found.append(cells)
        else:
            found[-1][-1] += " " + cells[-1]
    return [tuple(it) for it in found]


def test_the_table_of_keys_is_that_of_the_module():
    found = rows((ROOT / "docs" / PAGE).read_text())
    assert found == rows_of_the_docstring()
    assert [key.strip("`") for key, *_ in found] == list(KEYS)


def test_the_block_of_the_page_is_one():
    (block,) = blocks(PAGE, "json")
    assert zeus_deepspeed._config.read_perseus_block(json.loads(block)).enabled


def page_rank():
    code = blocks(PAGE)
    automatic, initializing, *using = code
    (block,) = blocks(PAGE, "json")
    perseus = {**json.loads(block)["perseus"], **QUICK}
    exec(automatic, {})
    module = make_module(2)
    engine = make_engine(module, perseus=perseus)
    assert engine.perseus
    engine.destroy()
    importlib.import_module("zeus_deepspeed.auto").disable()
    Path("ds_config.json").write_text(json.dumps(config(perseus=perseus)))
    deepspeed.comm.barrier()
    module = make_module(2)
    names = {"module": module, "parameters": list(module.parameters())}
    exec(initializing, names)
    engine = names["engine"]
    SimulatedCompute(module, discover_gpus()[engine.local_rank], WORK)
    for _ in range(40):
        engine.train_batch(batches())
        if engine.perseus.optimizer.measured is not None:
            break
    for it in using:
        exec(it, names)
    phase = engine.perseus.optimizer.phase.value
    engine.destroy()
    return phase


def test_the_code_of_the_page_runs(tmp_path):
    assert run_engines(2, page_rank) == ["replaying", "replaying"]
    assert len(read_plan(tmp_path / "plan.json").schedule.ranks) == 2
