"""Makes the `TrainingEnergy` that suits a trainer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeus_core.device import discover_gpus
from zeus_core.events import TrainingOptimizer
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor.no_monitor import training_monitor
from zeus_core.monitor.selection import warn_unless_measured
from zeus_core.optimizer.asked import automatic_optimizer
from zeus_core.ports.accelerator import INDEXED_TYPES
from zeus_core.pytorch import torch_world
from zeus_core.tracing.run_trace import checked_trace
from zeus_core.training import TrainingEnergy
from zeus_core.training.charges.charged_electricity import checked_electricity
from zeus_lightning._namespaces import Trainer

if TYPE_CHECKING:
    from zeus_core.electricity import Electricity
    from zeus_core.jobs.recurring_run import RecurringRun

_logger = logging.getLogger(__name__)


class EnergySource:
    """Monitor and optimizer of a callback. The GPU and the ranks are known only once there is a trainer.

    Args:
        monitor: A monitor; made for the GPU of the trainer if None.
        optimizer: An optimizer, a function that makes one for a monitor, or "auto" or a slowdown for the usual one. If
            None, the one that variables ask for.
        strict: Raise where no GPU can be measured.
        electricity: Intensity and price of the electricity; none if None.
        trace: Whether to write traces of trainings, or the folder to write them to.

    Attributes:
        strict: As passed.

    Raises:
        UsageError: An argument is wrong; the message names it.
        DeviceError: No GPU can be measured, and `strict` is true.
    """

    def __init__(
        self,
        monitor: ZeusMonitor | None,
        optimizer: Callable[[ZeusMonitor], TrainingOptimizer] | TrainingOptimizer | str | None,
        strict: bool = False,
        electricity: Electricity | None = None,
        trace: bool | str | Path = False,
    ) -> None:
        checked_trace(trace)
        self._trace = trace
        self.strict: bool = strict
        if isinstance(optimizer, str):
            optimizer = automatic_optimizer(optimizer)
        self._make_optimizer = optimizer if callable(optimizer) else None
        self._optimizer = None if callable(optimizer) else optimizer
        self._monitor = monitor
        self._electricity = checked_electricity(electricity)
        if monitor is not None or self._optimizer is not None:
            self._monitor = TrainingEnergy(monitor, self._optimizer, strict=strict).monitor  # checks both
        elif strict:
            discover_gpus()  # raises where there is none; which one to measure, the trainer will say

    def __getstate__(self) -> dict[str, Any]:
        """Copy the settings alone: a copy measures the GPU that its own trainer uses."""
        if self._optimizer is not None and self._make_optimizer is None:
            _logger.warning(
                "a copy of a ZeusCallback sets no power limit, as its optimizer cannot be sent to another process; "
                "pass a function that makes one, such as optimizer=GlobalPowerLimitOptimizer"
            )
        return {**vars(self), "_monitor": None, "_optimizer": None}

    def make_monitor(self, trainer: Trainer) -> ZeusMonitor:
        """Return the monitor, made for the GPU of the trainer if there is none yet.

        Raises:
            DeviceError: No GPU can be measured, and `strict` is true.
        """
        device = trainer.strategy.root_device
        indices = [device.index] if device.type in INDEXED_TYPES else None
        self._monitor = training_monitor(self._monitor, self.strict, lambda: ZeusMonitor(gpu_indices=indices))
        return self._monitor

    def energy_of(self, trainer: Trainer, recurring_run: RecurringRun | None = None) -> TrainingEnergy:
        """Make the `TrainingEnergy` of a trainer: a collective call, once its processes have found each other.

        Args:
            trainer: The trainer.
            recurring_run: The run of a recurring job that it trains, if it does.

        Raises:
            UsageError: The function that makes the optimizer made something else.
            DeviceError: No GPU can be measured, and `strict` is true.
        """
        world = torch_world()  # first, as all ranks must reach it
        monitor = self.make_monitor(trainer)
        warn_unless_measured(monitor.gpus, trainer.strategy.root_device)
        if self._optimizer is None and self._make_optimizer is not None:
            self._optimizer = self._make_optimizer(monitor)
        energy = TrainingEnergy(
            monitor,
            self._optimizer,
            world=world,
            quiet=True,  # the callback shows the result once the progress bars have ended
            electricity=self._electricity,
            recurring_run=recurring_run,
            trace=self._trace,
        )
        folder = trainer.default_root_dir
        if not trainer.fast_dev_run and ":/" not in folder:  # a journal cannot be kept in a bucket
            energy.use_folder(folder)
        return energy
