"""Steps of engines, each of which steps one optimizer for each group of parameters."""

import os

import deepspeed
import pytest
import torch

from tests.deepspeed.engines import run_engines
from zeus_core.pytorch import follow_optimizers
from zeus_core.pytorch.followed.followed_optimizers import followed_energy, stop_following


def train(stage, accumulation, is_followed):
    os.environ["ZEUS_SIMULATED_GPUS"] = "A40:1"
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    groups = [{"params": list(part.parameters())} for part in network]
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": accumulation,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    if is_followed:
        follow_optimizers()
    engine, *_ = deepspeed.initialize(model=network, optimizer=torch.optim.AdamW(groups, 0.01), config=config)
    for _ in range(12):
        engine.backward(engine(torch.ones(4, 4)).square().mean())
        engine.step()
    energy = followed_energy()
    stop_following()
    return None if energy is None else energy.summary.steps, [parameter.tolist() for parameter in network.parameters()]


@pytest.mark.parametrize(("stage", "accumulation"), [(0, 1), (1, 3), (2, 1)])
def test_a_step_of_an_engine_is_one(stage, accumulation):
    ((_, weights),) = run_engines(1, train, stage, accumulation, False)
    ((steps, same_weights),) = run_engines(1, train, stage, accumulation, True)
    assert steps == 12 // accumulation
    assert same_weights == weights
