"""Making the `TrainingEnergy` that suits a trainer, once there is one."""

from __future__ import annotations

from collections.abc import Callable

from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor._selection import warn_unless_measured
from zeus_core.optimizer import GlobalPowerLimitOptimizer
from zeus_core.pytorch import torch_world
from zeus_core.training import TrainingEnergy
from zeus_lightning._namespaces import Trainer

__all__ = ["EnergySource"]


class EnergySource:
    """Knows what to measure and optimise with; which GPU that is for, and who the ranks are, a trainer tells late.

    Args:
        monitor: What measures, if that is known already.
        optimizer: An optimizer, or what makes one for a monitor.

    Raises:
        UsageError: An argument is wrong; the message names it.
    """

    def __init__(
        self,
        monitor: ZeusMonitor | None,
        optimizer: Callable[[ZeusMonitor], GlobalPowerLimitOptimizer] | GlobalPowerLimitOptimizer | None,
    ) -> None:
        self._make_optimizer = optimizer if callable(optimizer) else None
        self._optimizer = None if callable(optimizer) else optimizer
        self._monitor = monitor
        if monitor is not None or self._optimizer is not None:
            self._monitor = TrainingEnergy(monitor, self._optimizer).monitor  # which checks both

    def energy_of(self, trainer: Trainer) -> TrainingEnergy:
        """What a trainer spends: a collective call, to be made once its processes have found each other.

        Raises:
            UsageError: What made the optimizer has made something else.
            NoDeviceError: There is no GPU to measure.
        """
        world = torch_world()  # first of all, as all ranks must come this far
        device = trainer.strategy.root_device
        if self._monitor is None:
            self._monitor = ZeusMonitor(gpu_indices=[device.index]) if device.type == "cuda" else ZeusMonitor()
        warn_unless_measured(self._monitor.gpu_indices, device)
        if self._optimizer is None and self._make_optimizer is not None:
            self._optimizer = self._make_optimizer(self._monitor)
        energy = TrainingEnergy(self._monitor, self._optimizer)
        energy.use_world(world)
        folder = trainer.default_root_dir
        if not trainer.fast_dev_run and ":/" not in folder:  # which may be in a bucket, where no journal can be kept
            energy.use_folder(folder)
        return energy
