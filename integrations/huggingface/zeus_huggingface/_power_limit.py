"""The power-limit search as a callback of the Hugging Face Trainer."""

from __future__ import annotations

from pathlib import Path

from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import GlobalPowerLimitOptimizer, OptimumSelector
from zeus_huggingface._observing import ObservingCallback

__all__ = ["HFGlobalPowerLimitOptimizer"]


class HFGlobalPowerLimitOptimizer(ObservingCallback):
    """Finds a GPU power limit while a `Trainer` trains: pass it in `callbacks=[...]`.

    A step is an optimizer step. Evaluation and saving are kept out of what is measured. Of several processes all train
    at the same limit, found together. The limits found are put back when `trainer.train` returns or is left by an
    exception or Ctrl-C.

    Args:
        monitor: See `GlobalPowerLimitOptimizer` for this and all other arguments.
        optimum_selector: What "best" means.
        wait_steps: Steps at the beginning that nothing is done in.
        warmup_steps: Steps after each change of the limit that are not measured.
        profile_steps: Steps measured at each limit.
        pl_step: Distance between two limits, in watts.
        profile_path: JSON file in which trials are kept.

    Attributes:
        optimizer: The `GlobalPowerLimitOptimizer` behind the callback, with its trials and its choice.

    Raises:
        UsageError: An argument is wrong; the message names it.
    """

    def __init__(
        self,
        monitor: ZeusMonitor,
        optimum_selector: OptimumSelector | None = None,
        wait_steps: int = 1,
        warmup_steps: int = 10,
        profile_steps: int = 40,
        pl_step: int = 25,
        profile_path: str | Path | None = None,
    ) -> None:
        optimizer = GlobalPowerLimitOptimizer(
            monitor, optimum_selector, wait_steps, warmup_steps, profile_steps, pl_step, profile_path
        )
        super().__init__(optimizer, monitor, optimizer, frozenset({"power limit"}))
