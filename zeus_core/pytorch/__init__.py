"""Everything that needs torch: the only package of the core that imports it."""

from zeus_core.pytorch._simulated_compute import SimulatedBatches, SimulatedCompute
from zeus_core.pytorch.followed.fabric_callback import FabricCallback
from zeus_core.pytorch.followed.followed_optimizers import follow_optimizers
from zeus_core.pytorch.followed.torchtune_logger import TorchtuneLogger
from zeus_core.pytorch.followed.ultralytics_callbacks import follow_ultralytics
from zeus_core.pytorch.torch_events import device_events_for
from zeus_core.pytorch.torch_world import torch_world  # last, as its module has the same name

__all__ = [
    "FabricCallback",
    "SimulatedBatches",
    "SimulatedCompute",
    "TorchtuneLogger",
    "device_events_for",
    "follow_optimizers",
    "follow_ultralytics",
    "torch_world",
]
