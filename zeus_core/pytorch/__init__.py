"""Everything that needs torch: the only package of the core that imports it. Most names are imported on first use."""

from typing import TYPE_CHECKING

from zeus_core._lazy_names import imported_on_use as _imported_on_use
from zeus_core.pytorch.torch_world import torch_world  # now, as its module has the same name

if TYPE_CHECKING:
    from zeus_core.pytorch._micro_batches import MicroBatches
    from zeus_core.pytorch._simulated_compute import SimulatedBatches, SimulatedCompute
    from zeus_core.pytorch.followed.fabric_callback import FabricCallback
    from zeus_core.pytorch.followed.followed_optimizers import follow_optimizers
    from zeus_core.pytorch.followed.torchtune_logger import TorchtuneLogger
    from zeus_core.pytorch.followed.ultralytics_callbacks import follow_ultralytics
    from zeus_core.pytorch.torch_events import device_events_for

__all__ = [
    "FabricCallback",
    "MicroBatches",
    "SimulatedBatches",
    "SimulatedCompute",
    "TorchtuneLogger",
    "device_events_for",
    "follow_optimizers",
    "follow_ultralytics",
    "torch_world",
]

_HOMES = {
    "FabricCallback": "zeus_core.pytorch.followed.fabric_callback",
    "MicroBatches": "zeus_core.pytorch._micro_batches",
    "SimulatedBatches": "zeus_core.pytorch._simulated_compute",
    "SimulatedCompute": "zeus_core.pytorch._simulated_compute",
    "TorchtuneLogger": "zeus_core.pytorch.followed.torchtune_logger",
    "device_events_for": "zeus_core.pytorch.torch_events",
    "follow_optimizers": "zeus_core.pytorch.followed.followed_optimizers",
    "follow_ultralytics": "zeus_core.pytorch.followed.ultralytics_callbacks",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = _imported_on_use(__name__, _HOMES)
