"""Ranks with batches of different sizes, with ZeRO, compute what one process does with the whole batch."""

import deepspeed
import pytest
import torch

from tests.deepspeed.engines import run_engines
from tests.support.uneven_training import SEED, STEPS, Regression, difference, flat, loss_of, samples, train_alone
from zeus_core.batches.pytorch import UnevenBatches


def train(stage):
    network = Regression()
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,  # by default, gradients are clipped
    }
    updates = torch.optim.AdamW(network.parameters(), 0.01)
    engine, *_ = deepspeed.initialize(model=network, optimizer=updates, config=config)
    uneven = UnevenBatches(engine, [6, 2])
    loader, step = uneven.loader(samples(61), seed=SEED), 0
    while step < STEPS:
        for batch in loader:
            engine.backward(uneven.weighted(loss_of(engine, batch)))
            engine.step()
            step += 1
            if step == STEPS:
                break
    return flat(network)


@pytest.mark.long
@pytest.mark.parametrize("stage", [1, 2])
def test_20_steps_give_the_parameters_of_one_process(stage):
    alone = train_alone(Regression, samples(61), 8, "AdamW")
    for parameters in run_engines(2, train, stage):
        assert difference(parameters, alone) < 1e-6  # DeepSpeed keeps its weights in single precision
