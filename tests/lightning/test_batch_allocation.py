"""Batches chosen while a Lightning training starts, on simulated GPUs of different models."""

import lightning.pytorch
import pytest
import torch
from torch.utils.data import DataLoader

from tests.lightning.test_uneven_batches import Module
from tests.lightning.trainers import make_trainer
from tests.support.ranks import run_ranks
from tests.support.simulated_ranks import SimulatedRank
from tests.support.uneven_training import Regression, check_followed, flat, samples
from zeus_core.batches.pytorch import BatchAllocation
from zeus_core.codec import encode
from zeus_core.errors import UsageError, WorldError
from zeus_core.optimizer.power_limit import Time
from zeus_lightning.batches import UnevenBatches

MODELS = ["A100-SXM4-80GB", "V100-SXM2-32GB"]
STEPS = 13 * 9  # epochs of 200 samples in global batches of 16; one for each trial, and some more


def fit(folder, ranks, callbacks, network):
    lightning.pytorch.seed_everything(6, verbose=False)
    module = Module(network, "SGD")
    settings = {"devices": ranks, "strategy": "ddp" if ranks > 1 else "auto", "max_steps": STEPS, "max_epochs": -1}
    make_trainer(folder, callbacks, **settings).fit(module, DataLoader(samples(200), 16 // ranks, shuffle=True))
    return flat(network)


def fit_alone(folder):
    return fit(folder, 1, [UnevenBatches([16])], Regression())


def fit_rank(folder):
    network = Regression()
    rank = SimulatedRank(MODELS, network)
    original = rank.gpu.read_power_limit_watts()
    allocation = BatchAllocation(16, rank.monitor, Time(), limit_fractions=[1.0, 0.7], steps=2)
    uneven = UnevenBatches(allocation)
    assert uneven.batches == ()
    parameters = fit(folder, 2, [uneven], network)
    return parameters, uneven.batches, encode(allocation.plan), original, rank.gpu.read_power_limit_watts()


@pytest.mark.long
def test_a_training_follows_a_plan_and_has_the_parameters_of_one_process(tmp_path):
    (alone,) = run_ranks(1, end_with_ranks, fit_alone, tmp_path)
    check_followed(run_ranks(2, fit_rank, tmp_path), alone)


def end_with_ranks(function, *arguments):
    result = function(*arguments)
    torch.distributed.init_process_group("gloo")  # which the ranks of the tests end with
    return result


def refusal(folder):
    network = Regression()
    rank = SimulatedRank(MODELS, network)
    with pytest.raises((UsageError, WorldError)) as error:
        fit(folder, 2, [UnevenBatches(BatchAllocation(12, rank.monitor))], network)
    return str(error.value)


def test_another_global_batch_is_refused(tmp_path):
    for text in run_ranks(2, refusal, tmp_path):
        assert "global_batch is 12; the global batch of the dataloader has 16 samples" in text
