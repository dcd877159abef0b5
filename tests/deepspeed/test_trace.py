"""The trace of real engines: the key "trace" of the block."""

import pytest

from tests.deepspeed.engines import RecordingOptimizer, batches, make_engine, make_module, run_engines
from zeus_core.device import SIMULATED_GPUS_VARIABLE
from zeus_core.tracing._merge import merge, traces_in
from zeus_deepspeed._perseus import attach


class Optimizer(RecordingOptimizer):
    clocks_mhz = (1200, 900)


def traced_rank(folder):
    engine = make_engine(make_module(4), perseus={"enabled": True, "trace": folder})
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
