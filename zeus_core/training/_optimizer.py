"""The optimizer that takes part in a training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from zeus_core._validate import shown
from zeus_core.errors import UsageError
from zeus_core.events import TrainingObserver
from zeus_core.monitor import ZeusMonitor

__all__ = ["KeepsSearch", "PausesTraining", "TrainingOptimizer", "check_optimizer"]


@runtime_checkable
class TrainingOptimizer(TrainingObserver, Protocol):
    """An observer that measures training and chooses a setting, such as `GlobalPowerLimitOptimizer`."""

    monitor: ZeusMonitor
    quiet: bool
    """Whether it shows no result of its own: `TrainingEnergy` shows it with that of the training."""

    @property
    def saving_uncertainty(self) -> float | None:
        """How far `saving_fraction` can be off; None if that is."""
        ...

    @property
    def power_limit_watts(self) -> int | None:
        """The power limit it has set; None if it has set none."""
        ...


@runtime_checkable
class KeepsSearch(Protocol):
    """An optimizer whose search can be continued from a checkpoint."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Any) -> None: ...


@runtime_checkable
class PausesTraining(Protocol):
    """An optimizer that pauses training before some steps: at `pause`, or else within its `on_step_begin`."""

    while_paused: Callable[[], object]
    """Called each minute of a pause."""

    @property
    def is_pause_due(self) -> bool:
        """Whether training pauses before its next step."""
        ...

    def pause(self) -> None:
        """Pause, or end the process, if that is due."""
        ...


def check_optimizer(optimizer: TrainingOptimizer | None, monitor: ZeusMonitor | None) -> None:
    """Check that an optimizer can take part in what a monitor measures.

    Raises:
        UsageError: It is something else, or has another monitor.
    """
    if optimizer is None:
        return
    if not isinstance(optimizer, TrainingOptimizer):
        raise UsageError(f"optimizer is {shown(optimizer)}; it must be one such as GlobalPowerLimitOptimizer(monitor)")
    if monitor is not None and monitor is not optimizer.monitor:
        raise UsageError("optimizer has another monitor than the one given; give both the same, or only the optimizer")
