"""Perseus on a real engine in real time, clocks being set by the background thread that users have.

How exact all of it is, is tested in virtual time; here the bounds are such that a busy machine keeps them.
"""

import json
import time

import deepspeed
import pytest
import torch

import zeus_deepspeed
from tests.deepspeed.engines import config, make_engine, make_module, run_engines
from tests.deepspeed.virtual_engine import batches
from tests.support.fake_sysfs import FakeSysfs
from tests.support.sysfs_training import VENDORS, add
from tests.support.virtual_time import A100, Record, Run, best_saving, true_profile, work_of
from zeus_core.device import discover_gpus
from zeus_core.pipeline import schedules
from zeus_core.pytorch import SimulatedCompute


def train(stages, microbatches, replayed_steps, most_steps):
    module = make_module(stages, layers=2 * stages)
    blocks = {"gradient_accumulation_steps": microbatches, "perseus": {"enabled": True, "tolerance_fraction": 0.5}}
    engine = deepspeed.initialize(model=module, model_parameters=list(module.parameters()), config=config(**blocks))[0]
    gpu = discover_gpus()[engine.global_rank]
    forward, backward = (work_of(engine.stage_id, kind, A100) for kind in ("forward", "backward"))
    SimulatedCompute(engine.module, gpu, forward, backward)
    from zeus_deepspeed import attach

    optimizer = attach(engine).optimizer
    record, data = Record(), batches()
    while record.phases.count("replaying") < replayed_steps and len(record.phases) < most_steps:
        begin = time.monotonic(), gpu.exact_energy_joules()
        record.phases.append(optimizer.phase.value)
        engine.train_batch(data)
        record.seconds.append(time.monotonic() - begin[0])
        record.joules.append(gpu.exact_energy_joules() - begin[1])
        found = {"profile": optimizer.profile(), "predicted": optimizer.predicted, "measured": optimizer.measured}
        record.latest |= {name: value for name, value in found.items() if value is not None}
    engine.destroy()
    record.end_clock_mhz = gpu._locked_clock_mhz
    return record


@pytest.mark.real_time
@pytest.mark.long
@pytest.mark.timeout(280)
def test_a_plan_in_real_time(monkeypatch):
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", f"{A100}:2")
    run = Run(run_engines(2, train, 2, 4, 20, 120))
    best = best_saving(true_profile(2, A100), schedules.one_f_one_b(2, 4))
    assert run.saved_fraction() >= 0.5 * best
    replayed, latest = run.steps_of("replaying")[-20:], run.records[0].latest
    assert len(replayed) == 20
    assert latest["measured"].energy_joules == pytest.approx(run.joules(replayed), rel=0.1)
    assert latest["predicted"].energy_joules == pytest.approx(run.joules(replayed), rel=0.1)
    assert {record.end_clock_mhz for record in run.records} == {1410}


def train_on_tree(folder):
    """Train four ranks; the first returns the energy of all boards before, within and after the training."""
    perseus = {"enabled": True, "folder": folder, "warmup_steps": 3, "check_steps": 5, "quiet": True}
    engine = make_engine(make_module(2, 2), zeus_deepspeed.initialize, perseus=perseus)
    gpus, data, joules = discover_gpus({}), batches(), []

    def read():
        torch.distributed.barrier()
        joules.append(sum(gpu.read_energy_counter_joules() for gpu in gpus))
        torch.distributed.barrier()

    for read_after in (0, 1, 31, 32):
        while engine.global_steps < read_after:
            engine.train_batch(data)
        read()
    engine.destroy()
    read()
    return joules


@pytest.mark.real_time
@pytest.mark.long
@pytest.mark.timeout(280)
@pytest.mark.parametrize("vendor", VENDORS)
def test_boards_of_sysfs_are_measured_where_clocks_cannot_be_set(monkeypatch, tmp_path, vendor):
    tree = FakeSysfs(tmp_path)
    for _ in range(4):
        add(tree, vendor)
    monkeypatch.setenv("ZEUS_SYSFS", str(tree.root))
    with tree.run(270.0):
        before, begun, ending, _, after = run_engines(4, train_on_tree, str(tmp_path / "out"))[0]
    total = json.loads((tmp_path / "out" / "zeus-energy" / "run.json").read_text())["account"]["total"]["measured"]
    uncertainty = total["uncertainty_joules"]
    assert total["method"] == "counted"
    assert ending - begun - uncertainty <= total["energy_joules"] <= after - before + uncertainty
