"""Levelling by one argument, in loops of two real ranks over gloo."""

import os

import pytest

from tests.accelerate.loop import Loop
from tests.accelerate.processes import run_processes
from tests.support.levelled_ranks import CountedWork, LevelledRank, check
from tests.support.ranks import torchrun_environments
from zeus_core.pytorch import SimulatedCompute
from zeus_huggingface.accelerate import ZeusAccelerate


def train_rank(results, environment, folder):
    os.environ.update(environment)
    rank = LevelledRank(int(environment["RANK"]))
    loop = Loop(folder, None, gradient_accumulation_steps=2)
    SimulatedCompute(loop.accelerator.unwrap_model(loop.model), rank.gpu, rank.work)
    with ZeusAccelerate(loop.accelerator, optimizer=rank.levelling):
        for _ in loop.train(24):
            pass
    results.put(rank.answer())


@pytest.mark.long
def test_the_quick_rank_of_a_loop_is_lowered(tmp_path):
    check(run_processes([(train_rank, environment, tmp_path) for environment in torchrun_environments(2)]))


def test_the_work_of_steps_is_reported_after_a_checkpoint_was_loaded_too(tmp_path):
    loop, levelling = Loop(tmp_path, None), CountedWork()
    with ZeusAccelerate(loop.accelerator, optimizer=levelling):
        loop.train_and_log(3)
        assert levelling.work_ends == 2, "how many gradients a step has is learned from the first one"
        loop.accelerator.save_state(tmp_path / "checkpoint")
        loop.accelerator.load_state(tmp_path / "checkpoint")
        loop.train_and_log(3)
        assert levelling.work_ends == 4
    loop.train_and_log(3)
    assert levelling.work_ends == 4
