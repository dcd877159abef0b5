"""A training of which nothing but the ends of its steps is seen: no code in the program reports to us."""

from __future__ import annotations

import atexit
import math
import os
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

from zeus_core.adapters.result import show_result
from zeus_core.environment import run_folder
from zeus_core.events import TrainingOptimizer
from zeus_core.monitor import ZeusMonitor
from zeus_core.ports import World
from zeus_core.process.restore_registry import at_end_of_worker
from zeus_core.training._training_energy import TrainingEnergy, under_way
from zeus_core.units import duration_text, energy_text

# Of the usual time of a step: the first one of a loop lasts as short as this where it was seen from its end on.
_PARTIAL = 0.5
_MANY_STEPS = 100  # so many say the same with their first one and without

_FIRST_KEPT_SECONDS, _KEPT_SECONDS = 1.0, 10.0  # how long the files of the run may be behind

MakeOptimizer = Callable[[ZeusMonitor], TrainingOptimizer | None]


def is_training_beside(steps: FollowedSteps | None) -> bool:
    """Whether a training of this process is under way that measures itself."""
    own = None if steps is None else steps.energy
    return any(energy is not own and process == os.getpid() for energy, process in list(under_way.items()))


def _own_folder() -> Path | None:
    """Return a folder for the files of a loop in that of the `zeus-core run` above; None without one."""
    folder = run_folder()
    return Path(folder, uuid.uuid4().hex) if folder and os.access(folder, os.W_OK) else None


class FollowedSteps:
    """Measures such a training from its first step on, and saves in it if variables ask for that.

    It ends at `end`, or with the process. After an uncaught exception it ends without the other ranks.

    Args:
        monitor: Measures the GPUs.
        world: The ranks; beginning is a collective call.
        make_optimizer: Makes the search, or None for none; if None, variables ask for it.

    Attributes:
        energy: The account.
        steps: The steps that have ended.
        notes: Lines of the result about the steps, without those that are None.
        has_ranks: Whether there are several ranks, which add up their energy at the end.
    """

    def __init__(self, monitor: ZeusMonitor, world: World, make_optimizer: MakeOptimizer | None = None) -> None:
        optimizer = None if make_optimizer is None else make_optimizer(monitor)
        folder = _own_folder()
        self.energy: TrainingEnergy = TrainingEnergy(monitor, optimizer, world=world, folder=folder, quiet=True)
        if make_optimizer is not None and optimizer is None:
            self.energy.leave_settings_alone()
        self.steps: int = 0
        self.notes: dict[str, str | None] = {}
        self.has_ranks: bool = world.size > 1
        self._shows_result = world.rank == 0
        self._process_id = os.getpid()
        self._time_source = monitor.time_source
        self._first_seconds = 0.0
        self.energy.on_train_begin()
        self._begun = self._time_source.now()
        self._keep_at = math.inf if folder is None else self._begun + _FIRST_KEPT_SECONDS
        self.energy.on_step_begin()
        atexit.register(self.end)
        self._finalizer = at_end_of_worker(self.end)

    def end_step(self) -> None:
        """Note that a step has ended, and that the next one has begun."""
        if self.steps == 0:
            self._first_seconds = self._time_source.now() - self._begun
        self.steps += 1
        self.energy.on_next_step()
        if self._time_source.now() >= self._keep_at:
            self._keep_at = self._time_source.now() + _KEPT_SECONDS
            self.energy.state_dict()  # brings the files up to date: nobody says when the program is killed

    def end(self) -> None:
        """End the training, and show its result, once. In a forked child it does nothing."""
        atexit.unregister(self.end)
        if self._process_id != os.getpid():
            return
        self._process_id = -1
        # An exception ends the program, or is about to: other ranks may not come here.
        if not hasattr(sys, "last_value") and sys.exc_info()[0] is None:
            self.energy.finish()
        self.energy.on_train_end()
        result = self.energy.result()
        if self.steps and (result or self.has_ranks) and self._shows_result:
            show_result({**result, **self._rows()})

    def _rows(self) -> dict[str, str]:
        notes = {label: text for label, text in self.notes.items() if text is not None}
        summary = self.energy.summary
        training, joules = summary.account.training, summary.account.training.energy_joules
        if summary.not_measured is not None:
            return {**summary.rows(), "steps": str(self.steps), **notes}
        if joules is None:
            return {"steps": str(self.steps), **notes}
        seconds, steps = training.seconds, self.steps
        first = min(self._first_seconds, seconds)
        if steps > 1 and first < _PARTIAL * (seconds - first) / (steps - 1):
            joules_of_first = joules * first / seconds
            joules, seconds, steps = joules - joules_of_first, seconds - first, steps - 1
            if self.steps < _MANY_STEPS:
                part = f"its end alone was seen: {energy_text(joules_of_first)} in {duration_text(first)}"
                notes["first step"] = part
        text = f"{self.steps}: {energy_text(joules / steps)} and {duration_text(seconds / steps)} each"
        return {"steps": text, **notes}
