"""The energy of a loop written with Lightning's Fabric, which calls its callbacks by the names of methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from zeus_core.adapters import Patches, contained
from zeus_core.events import Activity
from zeus_core.pytorch.followed.followed_optimizers import end_loop, follow_optimizers, followed_energy

if TYPE_CHECKING:
    from zeus_core.events import TrainingOptimizer
    from zeus_core.monitor import ZeusMonitor

_EXCHANGE_STEPS = 10  # of all ranks: only some of them may log


class FabricCallback:
    """Measures a loop by the steps of its optimizers, and logs the energy where `fabric.log` logs.

        fabric = Fabric(callbacks=[FabricCallback()], loggers=logger)

    The logs have the metrics of `ZeusCallback`: `train/energy_j`, `train/power_w`, `train/total_energy_j` and
    others. In a job of several ranks they are those of the latest tenth step. Announce evaluations by
    `fabric.call("on_validation_start")` and `fabric.call("on_validation_end")`, and the end by
    `fabric.call("on_train_end")`; otherwise the program's end is that of the loop.

    Args:
        optimizer: See `follow_optimizers`.

    Raises:
        UsageError: `optimizer` is no function.
    """

    def __init__(self, optimizer: Callable[[ZeusMonitor], TrainingOptimizer | None] | None = None) -> None:
        follow_optimizers(optimizer)
        self._patched: Any = None  # the Fabric whose logs are extended
        self._values: dict[str, float] = {}
        self._steps = 0

    @contained
    def on_after_setup(self, fabric: Any, module: Any) -> None:
        """Extend the logs."""
        if self._patched is not fabric:
            self._patched = fabric
            Patches(fabric).wrap("log_dict", self._log)

    @contained
    def on_after_optimizer_step(self, strategy: Any, optimizer: Any) -> None:
        """Exchange values with the other ranks."""
        self._steps += 1
        if _is_parallel() and self._steps % _EXCHANGE_STEPS == 0:
            self._update()

    @contained
    def on_validation_start(self) -> None:
        """Begin an evaluation."""
        energy = followed_energy()
        if energy is not None:
            energy.on_interference()  # a trial cannot use half a step
            energy.on_pause(Activity.EVALUATION)

    @contained
    def on_validation_end(self) -> None:
        """End the evaluation."""
        energy = followed_energy()
        if energy is not None:
            energy.on_resume()

    @contained
    def on_train_end(self) -> None:
        """End the loop, and show its result."""
        end_loop()

    def _log(self, log: Callable[..., None], metrics: Mapping[str, Any], step: int | None = None) -> None:
        if not _is_parallel():
            self._update()
        values, self._values = self._values, {}
        log({**values, **metrics}, step)

    @contained
    def _update(self) -> None:
        energy = followed_energy()
        if energy is not None:
            self._values = {f"train/{name}": value for name, value in energy.log().items()}


def _is_parallel() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
