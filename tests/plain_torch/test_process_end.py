"""How processes end that have told each other what they measured."""

import os
import subprocess
import sys

import pytest

from tests.support.ranks import torchrun_environments

SCRIPT = """
import torch.distributed
from zeus_core.pytorch import torch_world

torch.distributed.init_process_group("gloo")
world = torch_world()
for _ in range(5):
    world.gather("joules")
"""


@pytest.mark.long
@pytest.mark.parametrize("repetition", range(2))
def test_a_process_whose_last_act_is_an_exchange_ends_well(repetition):
    processes = [
        subprocess.Popen([sys.executable, "-c", SCRIPT], env={**os.environ, **environment})
        for environment in torchrun_environments(2)
    ]
    assert [process.wait(240) for process in processes] == [0, 0]
