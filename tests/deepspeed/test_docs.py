"""The page docs/deepspeed.md: its code runs, and its table of keys is complete."""

import importlib
import json
import re
import sys
from dataclasses import fields
from pathlib import Path

import deepspeed
import pytest

import zeus_deepspeed._config
from tests.deepspeed.engines import batches, config, make_engine, make_module, run_engines
from tests.support.pages import ROOT, blocks
from zeus_core.device import Work, discover_gpus
from zeus_core.device.gpu import SIMULATED_GPUS_VARIABLE
from zeus_core.pipeline.optimizer import PipelineFrequencySettings
from zeus_core.pipeline.planner.clock_plan import read_plan
from zeus_core.pytorch import SimulatedCompute
from zeus_deepspeed._config import KEYS, PerseusConfig

PAGE = "deepspeed.md"
QUICK = {"warmup_steps": 1, "max_clocks": 2, "check_steps": 2, "profile_instructions": 3, "tolerance_fraction": 1.0}
WORK = Work(seconds=0.02, active_power_watts=250.0)


@pytest.fixture(autouse=True)
def _simulated(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(SIMULATED_GPUS_VARIABLE, "V100-SXM2-32GB:2")


TYPES = {"bool": "boolean", "int": "integer", "float": "number", "str": "string"}


def in_json(value):
    return json.dumps(value) if type(value) in (int, float, bool, type(None)) else value


def test_the_table_of_keys_is_that_of_the_configuration():
    page = (ROOT / "docs" / PAGE).read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| `(.*?)` \| .+ \|$", page, re.MULTILINE)
    own = [setting for setting in fields(PerseusConfig) if setting.name != "settings"]
    documented = {key: (kind, default) for key, kind, default in rows}
    assert list(documented) == list(KEYS)
    assert documented == {
        setting.name: (
            TYPES[setting.type.removesuffix(" | None")],
            "auto" if setting.name == "gpu_index" else in_json(setting.default),
        )
        for setting in (*own, *fields(PipelineFrequencySettings))
    }


def test_the_block_of_the_page_is_one():
    (block,) = blocks(PAGE, "json")
    assert zeus_deepspeed._config.read_perseus_block(json.loads(block)).enabled


def page_rank():
    code = blocks(PAGE)
    automatic, initializing, *using = code
    (configuration,) = blocks(PAGE, "json")
    perseus = {**json.loads(configuration)["perseus"], **QUICK}
    sys.modules.pop("zeus_deepspeed.auto", None)  # another test may have imported and disabled it
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
    optimizer = engine.perseus.optimizer
    for _ in range(1000):  # planning takes as long as it takes on this machine
        engine.train_batch(batches())
        if optimizer.measured is not None or optimizer.phase.is_without_plan:
            break
    for block in using:
        exec(block, names)
    engine.destroy()


@pytest.mark.long
def test_the_code_of_the_page_runs(tmp_path):
    run_engines(2, page_rank)
    # Whether a plan of two clocks saves more than it loses depends on this machine's noise; a profile is there anyway.
    assert len(read_plan(tmp_path / "plan.json").schedule.ranks) == 2
