"""The trace and the run file of real engines: the keys "trace" and "folder" of the block."""

from pathlib import Path

import pytest

from tests.deepspeed.engines import RecordingOptimizer, batches, make_engine, make_module, run_engines
from zeus_core.device.gpu import SIMULATED_GPUS_VARIABLE
from zeus_core.pipeline.iteration_timeline import pipeline_section, read_iteration
from zeus_core.report.run_page import run_page
from zeus_core.tracing.merge import merge, traces_in
from zeus_core.training.record.run_file import read_run
from zeus_deepspeed._perseus import attach


class Optimizer(RecordingOptimizer):
    clocks_mhz = (1200, 900)


def traced_rank(folder):
    engine = make_engine(make_module(4), perseus={"enabled": True, "folder": folder, "trace": folder})
    attach(engine, Optimizer)
    data = batches()
    for _ in range(5):
        engine.train_batch(data)
    engine.save_checkpoint(folder + "/checkpoint")
    engine.destroy()
    return engine.stage_id if hasattr(engine, "stage_id") else None


def test_four_ranks_of_deepspeed_are_traced_and_merged(monkeypatch, tmp_path):
    monkeypatch.setenv(SIMULATED_GPUS_VARIABLE, "A40:4")
    run_engines(4, traced_rank, str(tmp_path))
    merged = merge(traces_in(tmp_path))
    assert merged.notes == []
    assert merged.trace.skew_seconds is not None
    assert [rank.steps for rank in merged.trace.ranks] == [5, 5, 5, 5]
    for rank in merged.trace.ranks:
        parts = sum(phase.measured.energy_joules for phase in rank.phases.values())
        assert parts == pytest.approx(rank.total.measured.energy_joules)
        assert "checkpoint" in rank.phases
    run = read_run(tmp_path)
    iteration = read_iteration(tmp_path, run)
    assert iteration.step == 5
    assert sorted(bar.rank for bar in iteration.bars if bar.kind == "forward") == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert {bar.clock_mhz for bar in iteration.bars} == {1200, 900, None}
    page = run_page([("run", run)], further={"run": [pipeline_section(tmp_path, run)]})
    assert page.count("<rect") >= len(iteration.bars)
    assert "rank 3" in page
    events = list(merged.trace.events)
    for rank in range(4):
        own = [event for event in events if event["pid"] == rank and event["ph"] == "X"]
        forwards = [event for event in own if event["name"] == "forward"]
        assert len(forwards) == 15  # five steps of three microbatches
        assert forwards[0]["args"]["clock_mhz"] == 1200
        assert {event["name"] for event in own} >= {"step", "checkpoint", "backward", "optimizer-step"}
        assert {event["name"] for event in events if event["ph"] == "C" and event["pid"] == rank} >= {
            f"GPU {rank} power limit",
            f"GPU {rank} SM clock",
        }


class OptimizerWithResult(Optimizer):
    def result(self):
        return {"plan": "in force"}


def recorded_rank(folder, steps, resume):
    engine = make_engine(make_module(2), perseus={"enabled": True, "folder": folder})
    attach(engine, OptimizerWithResult)
    if resume:
        engine.load_checkpoint(folder + "/checkpoint")
    data = batches()
    for _ in range(steps):
        engine.train_batch(data)
    engine.save_checkpoint(folder + "/checkpoint")
    kept = read_run(Path(folder)) if engine.global_rank == 0 else None
    if not resume:
        for _ in range(2):
            engine.train_batch(data)
    engine.destroy()
    return kept


@pytest.mark.long
def test_a_deepspeed_run_has_its_folder_and_resumes_from_its_checkpoint(monkeypatch, tmp_path):
    monkeypatch.setenv(SIMULATED_GPUS_VARIABLE, "A40:2")
    at_checkpoint, _ = run_engines(2, recorded_rank, str(tmp_path), 6, False)
    assert (at_checkpoint.latest.state, at_checkpoint.latest.step) == ("running", 6)
    first = read_run(tmp_path)
    assert [part.step for part in first.parts] == [8]
    assert set(first.latest.results) == {"plan", "simulated"}
    assert first.latest.results["plan"] == "in force"
    assert len(first.latest.ranks) == 2
    assert first.account.interruptions == 1  # DeepSpeed tells no end of training at which all ranks meet
    assert first.account.unrecorded_joules > 0
    assert first.account.total.measured_joules > at_checkpoint.account.total.measured_joules
    run_engines(2, recorded_rank, str(tmp_path), 3, True)
    resumed = read_run(tmp_path)
    assert [(part.begin_step, part.step) for part in resumed.parts] == [(0, 8), (6, 9)]
    assert resumed.run == first.run
    assert resumed.account.redone.measured_joules > 0  # two steps after the checkpoint
    assert resumed.account.total.measured_joules > first.account.total.measured_joules
