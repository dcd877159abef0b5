"""Everything that needs torch: the only package of the core that imports it."""

from zeus_core.pytorch._micro_batches import MicroBatches
from zeus_core.pytorch._simulated_compute import SimulatedBatches, SimulatedCompute
from zeus_core.pytorch.torch_events import device_events_for
from zeus_core.pytorch.torch_world import torch_world

__all__ = [
    "MicroBatches",
    "SimulatedBatches",
    "SimulatedCompute",
    "device_events_for",
    "torch_world",
]
