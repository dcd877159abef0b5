"""Batches chosen while a Trainer starts, on simulated GPUs of different models."""

import pytest

from tests.huggingface.test_uneven_batches import make_trainer, rows
from tests.support.ranks import run_ranks
from tests.support.simulated_ranks import SimulatedRank
from tests.support.uneven_training import check_followed, flat, sentences
from zeus_core.batches.pytorch import BatchAllocation
from zeus_core.codec import encode
from zeus_core.errors import UsageError
from zeus_core.optimizer.power_limit import Time
from zeus_huggingface.batches import UnevenBatches

MODELS = ["A100-SXM4-80GB", "V100-SXM2-32GB"]
KINDS = ["means over samples", "summed up by the Trainer"]


def trainer_of(folder, kind, ranks, passes):
    """Epochs have 25 global batches; global batches are accumulated by two."""
    trainer = make_trainer(folder, kind, 16 // ranks, max_steps=passes // 2, gradient_accumulation_steps=2)
    trainer.train_dataset = samples_of(kind)
    return trainer


def samples_of(kind):
    return sentences(400) if kind == KINDS[1] else rows(400)


def train_alone(folder, kind, passes):
    trainer = trainer_of(folder, kind, 1, passes)
    trainer.train()
    return flat(trainer.model)


def train_rank(folder, kind, passes):
    trainer = trainer_of(folder, kind, 2, passes)
    rank = SimulatedRank(MODELS, trainer.model)
    original = rank.gpu.read_power_limit_watts()
    allocation = BatchAllocation(16, rank.monitor, Time(), limit_fractions=[1.0, 0.7], steps=2)
    uneven = UnevenBatches(trainer, allocation)
    trainer.train()
    plan = None if allocation.plan is None else encode(allocation.plan)
    return flat(trainer.model), uneven.batches, plan, original, rank.gpu.read_power_limit_watts()


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_trainer_follows_a_plan_and_has_the_parameters_of_one_process(tmp_path, kind):
    passes = 240
    (alone,) = run_ranks(1, train_alone, tmp_path, kind, passes)
    check_followed(run_ranks(2, train_rank, tmp_path, kind, passes), alone)


def refusal(folder):
    trainer = make_trainer(folder, KINDS[0], 8)
    rank = SimulatedRank(MODELS, trainer.model)
    UnevenBatches(trainer, BatchAllocation(12, rank.monitor))
    with pytest.raises(UsageError) as error:
        trainer.train()
    return str(error.value)


@pytest.mark.long
def test_another_global_batch_is_refused(tmp_path):
    for text in run_ranks(2, refusal, tmp_path):
        assert "which are 12 samples; the global batch has 16 samples" in text
