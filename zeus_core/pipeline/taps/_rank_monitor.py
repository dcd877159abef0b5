"""The monitor of the GPU that a rank trains on."""

from __future__ import annotations

import os

import torch

from zeus_core.device import discover_gpus
from zeus_core.errors import NoDeviceError
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor.selection import local_rank_of, warn_unless_measured
from zeus_core.ports.accelerator import INDEXED_TYPES, gpu_modules


def training_device() -> torch.device:
    """Return the device that this process trains on: the present GPU, or the CPU where there is none."""
    for kind, module in gpu_modules().items():
        return torch.device(kind, module.current_device())
    return torch.device("cpu")


def rank_monitor(device: torch.device) -> ZeusMonitor:
    """Return a monitor of one GPU: that of a device, or on a CPU the one that belongs to the local rank.

    CUDA counts the GPUs that it sees (`CUDA_VISIBLE_DEVICES`), and so does the monitor; the driver counts all.

    Raises:
        NoDeviceError: There is no GPU.
        ZeusError: It cannot be used.
    """
    index = device.index if device.type in INDEXED_TYPES else None
    if index is None:
        gpus = discover_gpus()
        if not gpus:
            raise NoDeviceError("there is no GPU to measure; ZEUS_SIMULATED_GPUS simulates some")
        index = local_rank_of(os.environ)[0] % len(gpus)
    monitor = ZeusMonitor(gpu_indices=[index], cpu_indices=[])
    warn_unless_measured(monitor.gpus, device)
    return monitor
