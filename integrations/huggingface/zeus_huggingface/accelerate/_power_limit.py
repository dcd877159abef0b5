"""The power-limit search for loops written with accelerate."""

from __future__ import annotations

from pathlib import Path

from accelerate import Accelerator

from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import GlobalPowerLimitOptimizer, OptimumSelector
from zeus_huggingface.accelerate._accelerator import monitor_for
from zeus_huggingface.accelerate._loop import AcceleratorLoop

__all__ = ["PowerLimitOptimizer"]


class PowerLimitOptimizer(AcceleratorLoop):
    """Chooses a GPU power limit while a loop trains: make one after `accelerator.prepare`, on all processes.

        with PowerLimitOptimizer(accelerator) as search:
            for batch in batches:
                ...  # as before
            with search.evaluation():
                evaluate()

    A step is an optimizer step. Checkpoints and announced evaluations are excluded from the measurements; after an
    evaluation that was not announced, some steps are measured again. The original limits are restored at
    `accelerator.end_training()` or the end of the `with` block, whichever comes first.

    Args:
        accelerator: The accelerator of the loop.
        monitor: Measures the GPUs whose limit is searched; a new one for the GPU this process trains on if None. See
            `GlobalPowerLimitOptimizer` for this and all other arguments.
        optimum_selector: Defines the best limit.
        wait_steps: Initial steps to skip before profiling.
        warmup_steps: Steps to skip after each change of the limit.
        profile_steps: Steps to measure at each limit.
        pl_step: Distance between two limits, in watts.
        profile_path: JSON file in which trials are kept.
        strict: Where no GPU can be measured, raise; otherwise one warning says so, and nothing is searched.
        quiet: Show no result at the end.

    Attributes:
        optimizer: The `GlobalPowerLimitOptimizer` behind it, with its trials and its choice.

    Raises:
        UsageError: An argument is wrong; the message names it.
        DeviceError: No GPU can be measured, and `strict` is true.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        monitor: ZeusMonitor | None = None,
        optimum_selector: OptimumSelector | None = None,
        wait_steps: int = 1,
        warmup_steps: int = 10,
        profile_steps: int = 40,
        pl_step: int = 25,
        profile_path: str | Path | None = None,
        *,
        strict: bool = False,
        quiet: bool = False,
    ) -> None:
        monitor = monitor_for(accelerator, monitor, strict)
        self.optimizer = GlobalPowerLimitOptimizer(
            monitor, optimum_selector, wait_steps, warmup_steps, profile_steps, pl_step, profile_path, quiet=True
        )
        super().__init__(accelerator, self.optimizer, monitor, quiet)
