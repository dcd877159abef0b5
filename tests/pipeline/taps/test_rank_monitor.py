"""The GPU of a rank: as CUDA counts it, not the driver."""

import pytest
import torch

from tests.nvml_driver import DeviceSpec
from zeus_core.errors import NoDeviceError
from zeus_core.pipeline.taps._rank_monitor import rank_monitor, training_device

UUIDS = tuple(f"GPU-{number}-0000" for number in range(4))


@pytest.mark.parametrize(("visible", "index", "driver_index"), [("2,3", 0, 2), ("2,3", 1, 3), ("3,1", 0, 3)])
def test_an_index_of_cuda_is_not_one_of_the_driver(make_driver, monkeypatch, visible, index, driver_index):
    make_driver(*(DeviceSpec(uuid=uuid) for uuid in UUIDS))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monitor = rank_monitor(torch.device("cuda", index))
    assert {number: gpu.uuid for number, gpu in monitor.gpus.items()} == {index: UUIDS[driver_index]}


def test_on_a_cpu_it_is_that_of_the_local_rank(monkeypatch):
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "A40:2")
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert list(rank_monitor(training_device()).gpus) == [1]


def test_without_a_gpu_the_error_says_so(monkeypatch):
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "")
    monkeypatch.setattr("zeus_core.pipeline.taps._rank_monitor.discover_gpus", list)
    with pytest.raises(NoDeviceError, match="no GPU to measure"):
        rank_monitor(torch.device("cpu"))
