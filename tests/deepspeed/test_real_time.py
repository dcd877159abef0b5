"""Perseus on a real engine in real time, clocks being set by the background thread that users have."""

import os
import time
from itertools import groupby

import deepspeed
import pytest

from tests.deepspeed.engines import config, make_module, run_engines
from tests.deepspeed.virtual_engine import batches
from tests.virtual_time import A100, Record, Run, check_profile, true_profile, work_of
from zeus_core.device import discover_gpus
from zeus_core.pipeline import Frontier, make_plan, schedules
from zeus_core.pytorch.simulated_compute import SimulatedCompute


def train(stages, microbatches, steps):
    module = make_module(stages, layers=2 * stages)
    blocks = {"gradient_accumulation_steps": microbatches, "perseus": {"enabled": True}}
    engine = deepspeed.initialize(model=module, model_parameters=list(module.parameters()), config=config(**blocks))[0]
    gpu = discover_gpus()[engine.global_rank]
    forward, backward = (work_of(engine.stage_id, kind, A100) for kind in ("forward", "backward"))
    SimulatedCompute(engine.module, gpu, forward, backward)
    from zeus_deepspeed import attach

    optimizer = attach(engine).optimizer
    record, data = Record(), batches()
    for _ in range(steps):
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


@pytest.mark.long
@pytest.mark.timeout(280)
def test_a_plan_in_real_time(monkeypatch):
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", f"{A100}:2")
    run = Run(run_engines(2, train, 2, 8, 50))
    truth = true_profile(2, A100)
    check_profile(run.records[0].latest["profile"], truth)
    frontier = Frontier.of(truth, schedules.one_f_one_b(2, 8))
    best = 1 - make_plan(frontier, slowdown_factor=1.0).energy_joules / frontier.highest_clock_point[1]
    run.check_plan(least_saved_fraction=0.85 * best)


if __name__ == "__main__":
    os.environ["ZEUS_SIMULATED_GPUS"] = f"{A100}:2"
    run = Run(run_engines(2, train, 2, 8, 50))
    print([(name, len(list(steps))) for name, steps in groupby(run.records[0].phases)])
    replayed, found = run.steps_of("replaying")[-20:], run.steps_of("comparing")
    print(run.seconds(found), run.seconds(replayed), run.joules(found), run.joules(replayed), run.records[0].latest)
