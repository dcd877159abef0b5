"""Levelling by one argument of the callback, in Trainers of two real ranks over gloo."""

import os

import lightning.pytorch
import pytest

from tests.lightning.trainers import loader, make_trainer, module_class
from tests.support.levelled_ranks import CountedWork, LevelledRank, check
from tests.support.ranks import run_ranks
from zeus_core.pytorch import SimulatedCompute
from zeus_lightning import ZeusCallback


def train_rank(folder):
    rank = LevelledRank(int(os.environ["RANK"]))
    module = module_class(lightning.pytorch)()
    SimulatedCompute(module.layer, rank.gpu, rank.work)
    callback = ZeusCallback(rank.monitor, rank.levelling)
    arguments = {"max_steps": 24, "accumulate_grad_batches": 2, "devices": 2, "strategy": "ddp"}
    make_trainer(folder, [callback], **arguments).fit(module, loader(200))
    return rank.answer()


@pytest.mark.long
def test_the_quick_rank_of_a_trainer_is_lowered(tmp_path):
    check(run_ranks(2, train_rank, tmp_path))


def test_the_work_of_steps_is_reported_after_a_sanity_check_too(tmp_path):
    """Before it the trainer has no data, and after it the optimizer begins anew."""
    levelling = CountedWork()
    callback = ZeusCallback(optimizer=levelling)
    trainer = make_trainer(tmp_path, [callback], max_steps=5, num_sanity_val_steps=2)
    trainer.fit(module_class(lightning.pytorch)(), loader(10), loader(3))
    assert levelling.work_ends == 4, "how many gradients a step has is learned from the first one"
