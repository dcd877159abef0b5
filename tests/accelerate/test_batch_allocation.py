"""Batches chosen while a loop written with accelerate starts, on simulated GPUs of different models."""

import pytest
from accelerate.utils import DistributedType

from tests.accelerate.test_uneven_batches import prepared, train
from tests.support.ranks import run_ranks
from tests.support.simulated_ranks import SimulatedRank
from tests.support.uneven_training import Regression, check_followed, flat, samples
from zeus_core.batches.pytorch import BatchAllocation
from zeus_core.codec import encode
from zeus_core.errors import UsageError, WorldError
from zeus_core.optimizer.power_limit import Time
from zeus_huggingface.accelerate.batches import UnevenBatches

MODELS = ["A100-SXM4-80GB", "V100-SXM2-32GB"]
STEPS = 13 * 9  # epochs of 200 samples in global batches of 16; one for each trial, and some more


def train_alone(skip):
    network = Regression()
    train(*prepared(network, samples(200), 16), STEPS, 2 * skip)
    return flat(network)


def train_rank(skip):
    network = Regression()
    rank = SimulatedRank(MODELS, network)
    parts = prepared(network, samples(200), 8)
    original = rank.gpu.read_power_limit_watts()
    allocation = BatchAllocation(16, rank.monitor, Time(), limit_fractions=[1.0, 0.7], steps=2)
    uneven = UnevenBatches(parts[0], allocation)
    begun = uneven.batches
    train(*parts, STEPS, skip)
    limit = rank.gpu.read_power_limit_watts()
    uneven.close()
    result = flat(network), uneven.batches, encode(allocation.plan), original, rank.gpu.read_power_limit_watts()
    return result, begun, limit


@pytest.mark.long
def test_resuming_in_mid_epoch_under_a_plan_gives_one_processs_parameters():
    (alone,) = run_ranks(1, train_alone, 1)
    results, begun, limits = zip(*run_ranks(2, train_rank, 2), strict=True)
    check_followed(results, alone)
    assert begun == ((8, 8), (8, 8))
    assert list(limits) == [share["setting"] for share in results[0][2]["ranks"]]


def test_sharded_models_and_other_global_batches_are_refused():
    for texts in run_ranks(2, refusals):
        assert "global_batch is 12; the global batch of the dataloader has 16 samples" in texts[0]
        assert "with which it is not known when a rank has computed its gradients" in texts[1]


def refusals():
    network = Regression()
    rank = SimulatedRank(MODELS, network)
    accelerator, *_ = prepared(network, samples(61), 8)
    texts = [refusal(accelerator, BatchAllocation(12, rank.monitor))]
    accelerator.state.distributed_type = DistributedType.FSDP
    return [*texts, refusal(accelerator, BatchAllocation(16, rank.monitor))]


def refusal(accelerator, allocation):
    with pytest.raises((UsageError, WorldError)) as error:
        UnevenBatches(accelerator, allocation)
    return str(error.value)
