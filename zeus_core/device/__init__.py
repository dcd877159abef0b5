"""Devices: one physical GPU or CPU package each."""

from zeus_core.device._discovery import discover_cpus, discover_gpus
from zeus_core.device.gpu import Gpu
from zeus_core.device.simulated.power_model import Work
from zeus_core.device.simulated.presets import find_preset
from zeus_core.device.simulated.simulated_gpu import SimulatedGpu, SimulatedNoise

__all__ = [
    "Gpu",
    "SimulatedGpu",
    "SimulatedNoise",
    "Work",
    "discover_cpus",
    "discover_gpus",
    "find_preset",
]
