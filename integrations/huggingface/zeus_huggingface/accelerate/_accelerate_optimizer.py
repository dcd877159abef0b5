"""The power-limit search for loops written with accelerate."""

from __future__ import annotations

from pathlib import Path

from accelerate import Accelerator

from zeus_core.kinds import KnobName
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import GlobalPowerLimitOptimizer, OptimumSelector
from zeus_core.optimizer.global_setting.director import Directive
from zeus_core.optimizer.global_setting.search_options import CHANGES_PER_HOUR, COMMON, MakeSearch, Mode
from zeus_huggingface.accelerate._accelerator_checks import monitor_for
from zeus_huggingface.accelerate._loop import AcceleratorLoop


class PowerLimitOptimizer(AcceleratorLoop):
    """Chooses a GPU power limit while a loop trains: make one after `accelerator.prepare`, on all processes.

        with PowerLimitOptimizer(accelerator) as search:
            for batch in batches:
                ...  # as before
            with search.evaluation():
                evaluate()

    A step is an optimizer step. Checkpoints and evaluations, announced or detected, are excluded from the measurements.
    The original limits are restored at `accelerator.end_training()` or the end of the `with` block, whichever comes
    first.

    All arguments that are not described here are those of `GlobalPowerLimitOptimizer`.

    Args:
        accelerator: The accelerator of the loop.
        monitor: Measures the GPUs whose limit is searched; a new one for the GPU this process trains on if None.
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
        warmup_steps: int | None = None,
        profile_steps: int | None = None,
        pl_step: int | None = None,
        profile_path: str | Path | None = None,
        *,
        knob: KnobName = "power limit",
        search: MakeSearch | None = None,
        max_steps: int | None = None,
        mode: Mode = "search",
        carbon_aware: Directive | None = None,
        activities: str = COMMON,
        changes_per_hour: int = CHANGES_PER_HOUR,
        strict: bool = False,
        quiet: bool = False,
    ) -> None:
        monitor = monitor_for(accelerator, monitor, strict)
        positional = optimum_selector, wait_steps, warmup_steps, profile_steps, pl_step, profile_path
        self.optimizer = GlobalPowerLimitOptimizer(
            monitor,
            *positional,
            knob=knob,
            search=search,
            max_steps=max_steps,
            mode=mode,
            carbon_aware=carbon_aware,
            activities=activities,
            changes_per_hour=changes_per_hour,
            quiet=True,
        )
        super().__init__(accelerator, self.optimizer, monitor, quiet)
