"""Energy for training loops written with Hugging Face accelerate.

from zeus_huggingface.accelerate import ZeusAccelerate

model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
with ZeusAccelerate(accelerator) as energy:
    ...  # the loop, as it was

Importing it also makes `Accelerator(log_with="zeus")` known.
"""

from zeus_core.adapters import require

require("accelerate")

from zeus_huggingface.accelerate._accelerate_energy import ZeusAccelerate  # noqa: E402
from zeus_huggingface.accelerate._loop import PowerLimitOptimizer  # noqa: E402
from zeus_huggingface.accelerate._tracker import ZeusTracker  # noqa: E402

__all__ = ["PowerLimitOptimizer", "ZeusAccelerate", "ZeusTracker"]
