"""Devices: one physical GPU or CPU package each."""

from zeus_core.device.cpu import Cpu, CpuEnergyCounters
from zeus_core.device.discover import SIMULATED_GPUS_VARIABLE, discover_gpus
from zeus_core.device.gpu import Gpu, PowerRange
from zeus_core.device.nvml import NvmlGpu, NvmlSession
from zeus_core.device.power_model import Work
from zeus_core.device.presets import PRESETS, GpuPreset, find_preset
from zeus_core.device.rapl import CpuDiscovery, RaplKeeper, discover_cpus
from zeus_core.device.simulated import SimulatedGpu, SimulatedNoise

__all__ = [
    "PRESETS",
    "SIMULATED_GPUS_VARIABLE",
    "Cpu",
    "CpuDiscovery",
    "CpuEnergyCounters",
    "Gpu",
    "GpuPreset",
    "NvmlGpu",
    "NvmlSession",
    "PowerRange",
    "RaplKeeper",
    "SimulatedGpu",
    "SimulatedNoise",
    "Work",
    "discover_cpus",
    "discover_gpus",
    "find_preset",
]
