"""Devices: one physical GPU or CPU package each."""

from zeus_core.device._cpu import Cpu, CpuEnergyCounters
from zeus_core.device._discovery import SIMULATED_GPUS_VARIABLE, discover_gpus
from zeus_core.device._gpu import Gpu, PowerRange
from zeus_core.device.rapl._discovery import CpuDiscovery, discover_cpus
from zeus_core.device.simulated._gpu import SimulatedGpu, SimulatedNoise
from zeus_core.device.simulated._power_model import Work
from zeus_core.device.simulated._presets import find_preset

__all__ = [
    "SIMULATED_GPUS_VARIABLE",
    "Cpu",
    "CpuDiscovery",
    "CpuEnergyCounters",
    "Gpu",
    "PowerRange",
    "SimulatedGpu",
    "SimulatedNoise",
    "Work",
    "discover_cpus",
    "discover_gpus",
    "find_preset",
]
