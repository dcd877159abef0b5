"""A loop of several processes that has not been told of the others."""

import logging

import pytest
import torch

from tests.support.ranks import run_ranks
from zeus_core.monitor import ZeusMonitor
from zeus_core.pytorch import torch_world
from zeus_core.training import TrainingEnergy


def messages_of(has_world):
    torch.distributed.init_process_group("gloo")
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger("zeus_core.ports").addHandler(handler)
    energy = TrainingEnergy(ZeusMonitor(), world=torch_world() if has_world else None, quiet=True)
    for _ in range(2):
        with energy, energy.step():
            pass
    return messages


@pytest.mark.parametrize("has_world", [False, True])
def test_each_process_says_once_that_it_counts_itself_alone(monkeypatch, has_world):
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "A40:2")
    for messages in run_ranks(2, messages_of, has_world):
        assert len(messages) == (0 if has_world else 1), messages
        assert has_world or "one of 2 processes, and counts itself alone: pass world=" in messages[0]
