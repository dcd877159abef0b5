"""Levelling by one argument of the callback, in Trainers of two real ranks over gloo."""

import os

import pytest

from tests.huggingface.trainers import make_trainer
from tests.support.levelled_ranks import LevelledRank, check
from tests.support.ranks import run_ranks
from zeus_core.pytorch import SimulatedCompute
from zeus_huggingface import ZeusTrainerCallback


def train_rank(folder, accumulation):
    rank = LevelledRank(int(os.environ["RANK"]))
    trainer = make_trainer(
        folder,
        [ZeusTrainerCallback(optimizer=rank.levelling)],
        max_steps=24,
        gradient_accumulation_steps=accumulation,
        ddp_backend="gloo",
    )
    SimulatedCompute(trainer.model, rank.gpu, rank.work)
    trainer.train()
    return rank.answer()


@pytest.mark.long
def test_the_quick_rank_of_a_trainer_is_lowered(tmp_path):
    check(run_ranks(2, train_rank, tmp_path, 2))
