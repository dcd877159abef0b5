"""Which world `torch_world` finds. What several ranks do in it is in the tests of those who use it."""

import torch.distributed

from zeus_core.ports.world import SoloWorld
from zeus_core.pytorch import torch_world


def test_without_a_process_group_there_is_one_rank():
    assert isinstance(torch_world(), SoloWorld)


def test_a_process_group_of_one_is_one_rank(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert isinstance(torch_world(), SoloWorld)
    finally:
        torch.distributed.destroy_process_group()
