"""The trace of a Trainer of four real processes, over gloo."""

import os

import pytest

from tests.huggingface.trainers import BACKWARD, FORWARD, make_trainer
from tests.support.ranks import run_ranks
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.monitor import ZeusMonitor
from zeus_core.pytorch import SimulatedCompute
from zeus_core.tracing.merge import merge, traces_in
from zeus_huggingface import ZeusTrainerCallback

RANKS = 4


def train_rank(folder):
    gpu = SimulatedGpu(find_preset("A100"), int(os.environ["RANK"]))
    callback = ZeusTrainerCallback(ZeusMonitor(gpus=[gpu]), quiet=True, trace=True)
    evaluating = {"eval_strategy": "steps", "eval_steps": 10}
    trainer = make_trainer(folder, [callback], max_steps=20, logging_steps=5, ddp_backend="gloo", **evaluating)
    forward, backward = (Work(0.05 * work.seconds, work.active_power_watts) for work in (FORWARD, BACKWARD))
    SimulatedCompute(trainer.model, gpu, forward, backward)
    return trainer.train().metrics["train_energy_j"]


@pytest.mark.long
def test_four_ranks_of_a_trainer_are_traced_and_merged(tmp_path):
    energies = run_ranks(RANKS, train_rank, tmp_path)
    merged = merge(traces_in(tmp_path))
    assert merged.notes == []
    assert merged.trace.skew_seconds is not None
    ranks = merged.trace.ranks
    assert [rank.steps for rank in ranks] == [20] * RANKS
    assert sum(rank.total.measured.energy_joules for rank in ranks) == pytest.approx(energies[0], rel=1e-6)
    for rank in ranks:
        parts = sum(phase.measured.energy_joules for phase in rank.phases.values())
        assert abs(parts - rank.total.measured.energy_joules) <= rank.total.measured.uncertainty_joules
    names = [event["name"] for event in merged.trace.events if event["ph"] == "X"]
    assert names.count("step") == 20 * RANKS
    assert names.count("evaluation") == 2 * RANKS
