"""Devices: one physical GPU or CPU package each."""

from typing import TYPE_CHECKING

from zeus_core._lazy_names import imported_on_use as _imported_on_use
from zeus_core.device._discovery import discover_gpus
from zeus_core.device.gpu import Gpu
from zeus_core.device.rapl.rapl_discovery import discover_cpus

if TYPE_CHECKING:
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

_SIMULATED = {
    "SimulatedGpu": "zeus_core.device.simulated.simulated_gpu",
    "SimulatedNoise": "zeus_core.device.simulated.simulated_gpu",
    "Work": "zeus_core.device.simulated.power_model",
    "find_preset": "zeus_core.device.simulated.presets",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = _imported_on_use(__name__, _SIMULATED)
