"""The power-limit search for loops written with accelerate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from accelerate import Accelerator

from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import GlobalPowerLimitOptimizer, OptimumSelector
from zeus_core.optimizer.global_setting.search_options import KnobName, MakeSearch, Mode
from zeus_huggingface.accelerate._accelerator_checks import monitor_for
from zeus_huggingface.accelerate._loop import AcceleratorLoop

if TYPE_CHECKING:
    from zeus_core.optimizer.carbon_aware import CarbonAware


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

    Args:
        accelerator: The accelerator of the loop.
        monitor: Measures the GPUs whose limit is searched; a new one for the GPU this process trains on if None. See
            `GlobalPowerLimitOptimizer` for this and all other arguments.
        optimum_selector: Defines the best limit.
        wait_steps: Initial steps to skip before profiling.
        warmup_steps: Steps to skip after each change of the limit; as many as the GPU takes to settle if None.
        profile_steps: Steps to measure at each limit; as many as the search needs if None.
        pl_step: Distance between two limits, in watts.
        profile_path: JSON file in which trials are kept.
        knob: The setting to search: "power limit", "clock", or "auto" for the better one.
        search: Makes another search, such as `zeus_core.search.GridSearch`.
        max_steps: The steps of the whole training, if they are known.
        mode: "search", or "observe" to change nothing.
        carbon_aware: Has training run hard, softly or not at all by the intensity or the price of electricity.
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
        carbon_aware: CarbonAware | None = None,
        strict: bool = False,
        quiet: bool = False,
    ) -> None:
        monitor = monitor_for(accelerator, monitor, strict)
        self.optimizer = GlobalPowerLimitOptimizer(
            monitor,
            optimum_selector,
            wait_steps,
            warmup_steps,
            profile_steps,
            pl_step,
            profile_path,
            knob=knob,
            search=search,
            max_steps=max_steps,
            mode=mode,
            carbon_aware=carbon_aware,
            quiet=True,
        )
        super().__init__(accelerator, self.optimizer, monitor, quiet)
