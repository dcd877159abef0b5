"""The pauses of one training, on all ranks, and what they gain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeus_core.measurement import DeviceEnergy
from zeus_core.optimizer._global_setting._measuring import RunSteps
from zeus_core.optimizer._global_setting._orders import Orders
from zeus_core.optimizer._global_setting._pause import Pause
from zeus_core.optimizer._trial_store import RunSpent

if TYPE_CHECKING:
    from zeus_core.optimizer.carbon_aware._credit import Credit

__all__ = ["RunPauses"]


class RunPauses:
    """The pause that is due before the next step, and the account of those that are over.

    Args:
        run: Counts the steps of the training.
    """

    def __init__(self, run: RunSteps) -> None:
        self.due: Pause | None = None
        """The pause before the next step, the same on all ranks; None for none."""
        self.orders: Orders | None = None
        """Keeps the account, on rank 0."""
        self._run = run

    def take(self) -> Pause | None:
        """Return the pause before the next step, once."""
        pause, self.due = self.due, None
        return pause

    def tell(self, seconds: float, energy: DeviceEnergy) -> None:
        """Take in a pause that is over."""
        if self.orders is not None:
            self.orders.tell_pause(seconds, energy)

    @property
    def spent(self) -> RunSpent | None:
        """The energy and time that the run took so far; None on other ranks than 0, and without a signal."""
        return None if self.orders is None else self.orders.spent(self._run.steps)

    @property
    def credit(self) -> Credit | None:
        """The gain of following the signal; None on other ranks than 0, and if it is not known."""
        return None if self.orders is None else self.orders.credit(self._run.steps)
