"""Energy for training loops written with Hugging Face accelerate.

from zeus_huggingface.accelerate import EnergyMonitor

model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
with EnergyMonitor(accelerator) as energy:
    ...  # the loop, as it was

Importing it also makes `Accelerator(log_with="zeus")` known.
"""

from zeus_core.extras import require

require("accelerate", floor="1.3", extra="huggingface")

from zeus_core.events import Activity  # noqa: E402
from zeus_huggingface.accelerate.energy import EnergyMonitor  # noqa: E402
from zeus_huggingface.accelerate.power_limit import PowerLimitOptimizer  # noqa: E402
from zeus_huggingface.accelerate.tracker import ZeusTracker  # noqa: E402

__all__ = ["Activity", "EnergyMonitor", "PowerLimitOptimizer", "ZeusTracker"]
