"""Steps of optimizers that accelerate has wrapped, in a loop that reports nothing."""

import pytest
import torch
from accelerate import Accelerator

from zeus_core.pytorch import follow_optimizers
from zeus_core.pytorch.followed.followed_optimizers import followed_energy, stop_following


@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_step_of_a_wrapped_optimizer_is_one(monkeypatch, accumulation):
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "A40:1")
    follow_optimizers()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
    module = torch.nn.Linear(4, 1)
    model, optimizer = accelerator.prepare(module, torch.optim.AdamW(module.parameters()))
    for _ in range(12):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(2, 4)).square().mean())
            optimizer.step()
            optimizer.zero_grad()
    energy = followed_energy()
    stop_following()
    assert energy.summary.steps == 12 // accumulation
