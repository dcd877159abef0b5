"""A training of which nothing but the ends of its steps is seen: no code in the program reports to us."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Mapping

from zeus_core.adapters.result import show_result
from zeus_core.events import TrainingOptimizer
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer.asked import asked_optimizer
from zeus_core.ports import World
from zeus_core.process.restore_registry import at_end_of_worker
from zeus_core.training._training_energy import TrainingEnergy, under_way
from zeus_core.units import duration_text, energy_text

MakeOptimizer = Callable[[ZeusMonitor], TrainingOptimizer | None]


def is_training_beside(steps: FollowedSteps | None) -> bool:
    """Whether a training of this process is under way that measures itself."""
    own = None if steps is None else steps.energy
    return any(energy is not own and process == os.getpid() for energy, process in list(under_way.items()))


class FollowedSteps:
    """Measures such a training from its first step on, and saves in it if variables ask for that.

    It ends at `end`, or with the process. After an uncaught exception it ends without the other ranks, whose energy is
    not in the result then.

    Args:
        monitor: Measures the GPUs.
        world: The ranks; beginning is a collective call.
        make_optimizer: Makes the search, if there is to be one.
        quiet: Show no result.

    Attributes:
        energy: The account.
        steps: The steps that have ended.
        rows: Lines of the result about the steps.
    """

    def __init__(
        self, monitor: ZeusMonitor, world: World, make_optimizer: MakeOptimizer = asked_optimizer, quiet: bool = False
    ) -> None:
        self.energy: TrainingEnergy = TrainingEnergy(monitor, make_optimizer(monitor), world=world, quiet=True)
        self.energy.use_announcement("by a TrainingEnergy in the loop, which has `during` (docs/pytorch.md)")
        self.steps: int = 0
        self.rows: Mapping[str, str] = {}
        self._shows_result = world.rank == 0 and not quiet
        self._process_id = os.getpid()
        self.energy.on_train_begin()
        self.energy.on_step_begin()
        atexit.register(self.end)
        self._finalizer = at_end_of_worker(self.end)

    def end_step(self, steps: int = 1) -> None:
        """Note that a step has ended, or so many that were reported as one, and that the next one has begun."""
        self.steps += steps
        self.energy.on_next_step()

    def end(self) -> None:
        """End the training, and show its result, once. In a forked child it does nothing."""
        atexit.unregister(self.end)
        if self._process_id != os.getpid():
            return
        self._process_id = -1
        if not hasattr(sys, "last_value"):  # set where an exception ends the program
            self.energy.finish()
        self.energy.on_train_end()
        result = self.energy.result()
        if self.steps and result and self._shows_result:
            show_result({**result, **self._rows()})

    def _rows(self) -> dict[str, str]:
        summary = self.energy.summary
        training, joules = summary.account.training, summary.account.training.energy_joules
        if summary.not_measured is not None or joules is None or not self.steps:
            return dict(self.rows)
        seconds = training.seconds / self.steps
        text = f"{self.steps}: {energy_text(joules / self.steps)} and {duration_text(seconds)} each"
        return {"steps": text, **self.rows}
