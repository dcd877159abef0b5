"""The power-limit search as a callback of the Hugging Face Trainer."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from zeus_core.kinds import KnobName
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor.no_monitor import NoMonitor, training_monitor
from zeus_core.optimizer import GlobalPowerLimitOptimizer, OptimumSelector
from zeus_core.optimizer.global_setting.director import Directive
from zeus_core.optimizer.global_setting.search_options import CHANGES_PER_HOUR, COMMON, MakeSearch, Mode
from zeus_huggingface._listener import Reporter, TrainerListener, listening
from zeus_huggingface._trainer_patches import patch_trainer

_logger = logging.getLogger(__name__)


@listening
class HFGlobalPowerLimitOptimizer(TrainerCallback):
    """Chooses a GPU power limit while a `Trainer` trains: pass it in `callbacks=[...]`.

    A step is an optimizer step. Evaluations and checkpoints are excluded from the measurements. In a multi-process job
    all processes agree on one limit. The original limits are restored when `trainer.train` returns, or is left by an
    exception or Ctrl-C.

    All arguments that are not described here are those of `GlobalPowerLimitOptimizer`.

    Args:
        monitor: Measures the GPUs whose limit is searched; a new one if None.
        strict: Where there is no GPU, raise; otherwise one warning says so, and nothing is searched.
        quiet: Show no result at the end of training.

    Attributes:
        optimizer: The `GlobalPowerLimitOptimizer` behind the callback, with its trials and its choice.

    Raises:
        UsageError: An argument is wrong; the message names it.
        DeviceError: No GPU can be measured, and `strict` is true.
    """

    def __init__(
        self,
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
        mode: Mode = "search",
        carbon_aware: Directive | None = None,
        activities: str = COMMON,
        changes_per_hour: int = CHANGES_PER_HOUR,
        strict: bool = False,
        quiet: bool = False,
    ) -> None:
        monitor = training_monitor(monitor, strict)
        positional = optimum_selector, wait_steps, warmup_steps, profile_steps, pl_step, profile_path
        self.optimizer = GlobalPowerLimitOptimizer(
            monitor,
            *positional,
            knob=knob,
            search=search,
            mode=mode,
            carbon_aware=carbon_aware,
            activities=activities,
            changes_per_hour=changes_per_hour,
            quiet=True,
        )
        reporter = Reporter(self.optimizer, splits_passes=self.optimizer.searches_each_activity)
        self.listener = TrainerListener(type(self).__name__, reporter, monitor, frozenset({"power limit"}), quiet)
        patch_trainer(self)

    def __reduce__(self) -> Any:
        """Copy nothing: a copy sets no power limit, see `ZeusTrainerCallback`."""
        return _copied_search, (type(self),)


def _copied_search(kind: type[HFGlobalPowerLimitOptimizer]) -> HFGlobalPowerLimitOptimizer:
    warn_of_copied_search(kind)
    return kind(NoMonitor("this is a copy, which sets no power limit"))


def warn_of_copied_search(kind: type[TrainerCallback]) -> None:
    """Warn that the copy of a callback does not search for a power limit."""
    _logger.warning(
        "a copy of a %s sets no power limit, as other processes may train on the same GPUs; to search, make one where "
        "training runs",
        kind.__name__,
    )
