"""Everything that needs torch: the only package of the core that imports it."""

from zeus_core.pytorch._batch_allocation import BatchAllocation
from zeus_core.pytorch._device_events import device_events_for
from zeus_core.pytorch._micro_batches import MicroBatches
from zeus_core.pytorch._simulated_compute import SimulatedBatches, SimulatedCompute
from zeus_core.pytorch._uneven_batches import UnevenBatches, UnevenLoader
from zeus_core.pytorch._work_end import report_work_end
from zeus_core.pytorch._world import torch_world

__all__ = [
    "BatchAllocation",
    "MicroBatches",
    "SimulatedBatches",
    "SimulatedCompute",
    "UnevenBatches",
    "UnevenLoader",
    "device_events_for",
    "report_work_end",
    "torch_world",
]
