"""The interface of a trace to the training: an observer that also learns when a run begins, is logged and is kept.

`zeus_core.tracing.run_trace` has the one of this package, and registers it as the entry point `file` of the group
`zeus_core.traces` (see `zeus_core.installed`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from zeus_core.attribution.updates import Knot
from zeus_core.device import Gpu
from zeus_core.errors import UsageError
from zeus_core.events import Observer, TrainingOptimizer
from zeus_core.installed import TRACES, missing_registration, registered
from zeus_core.ports import TimeSource
from zeus_core.ports.exchange import Exchange
from zeus_core.training.account import Account


class Record(Protocol):
    """Records activities, steps and energy in time; moments are those of the time source."""

    def begin_activity(self, at: float, name: str | None) -> None:
        """Begin an activity; None ends the latest one."""
        ...

    def begin_step(self, at: float) -> None:
        """Begin a step."""
        ...

    def follow(self, index: int, gpu: Gpu) -> Callable[[Knot], None]:
        """Record a GPU from now on. Return a function that records a moment at which its energy is known."""
        ...


class RunTraced(Observer, Protocol):
    """Makes the trace of this rank, of one training after another."""

    @property
    def recorder(self) -> Record | None:
        """The record of the training under way."""
        ...

    def begin(self, ranks: Exchange, run_folder: Path | None, step: int, run: str, *, by_all: bool) -> Record:
        """Begin the trace of a training, or of a part of it; a collective call if all ranks are traced.

        Args:
            ranks: The ranks.
            run_folder: The folder of the run; None if it has none.
            step: Steps done before.
            run: The name of the run.
            by_all: Whether all ranks are traced, so that they can compare their clocks.
        """
        ...

    def compare_clocks(self) -> None:
        """Compare the clocks of all ranks; a collective call."""
        ...

    def log(self) -> None:
        """Note that values are logged; a collective call."""
        ...

    def keep(self, account: Account) -> None:
        """Keep what is known now, in the background."""
        ...

    def end(self, account: Account) -> None:
        """End the trace of a training."""
        ...


def make_trace(place: bool | str | Path, time_source: TimeSource, optimizer: TrainingOptimizer | None) -> RunTraced:
    """Make the trace that is registered.

    Args:
        place: The folder of its files; True for that of the run.
        time_source: Times what is recorded.
        optimizer: The optimizer whose settings are marked; none if None.

    Raises:
        UsageError: `place` is neither True nor a path, or no trace can be made here.
    """
    problems: list[str] = []
    for _, make in registered(TRACES, problems.append):
        made: RunTraced = make(place, time_source, optimizer)
        return made
    reason = "; ".join(problems) or missing_registration(TRACES)
    raise UsageError(f"trace is {place!r}, and no trace can be made: {reason}")
