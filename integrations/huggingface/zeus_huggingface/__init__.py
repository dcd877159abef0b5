"""Energy for the Hugging Face `Trainer` and those derived from it, such as TRL's `SFTTrainer`.

from zeus_core.monitor import ZeusMonitor
from zeus_huggingface import HFGlobalPowerLimitOptimizer

trainer = Trainer(..., callbacks=[HFGlobalPowerLimitOptimizer(ZeusMonitor())])
"""

try:
    import transformers  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("zeus_huggingface needs transformers: pip install 'zeus-core[huggingface]'") from error

from zeus_huggingface.power_limit import HFGlobalPowerLimitOptimizer

__all__ = ["HFGlobalPowerLimitOptimizer"]
