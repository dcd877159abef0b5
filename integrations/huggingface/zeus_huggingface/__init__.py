"""Energy for the Hugging Face `Trainer` and those derived from it, such as TRL's `SFTTrainer`.

from zeus_huggingface import ZeusTrainerCallback

trainer = Trainer(..., callbacks=[ZeusTrainerCallback()])
"""

from zeus_core.adapters import require as _require

_require("transformers")

from zeus_huggingface._trainer_energy import ZeusTrainerCallback  # noqa: E402
from zeus_huggingface._trainer_optimizer import HFGlobalPowerLimitOptimizer  # noqa: E402

__all__ = ["HFGlobalPowerLimitOptimizer", "ZeusTrainerCallback"]
