"""The energy of each step, logged to DeepSpeed's monitors like the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from zeus_core.adapters import contained
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor._reading import Reading
from zeus_core.ports import World
from zeus_core.training._ranks import Ranks

__all__ = ["MonitorEvents"]


class _Step(NamedTuple):
    samples: int  # seen by the end of the step
    seconds: float
    joules: float | None  # of the GPUs this rank counts; None if lost


_LOST = _Step(0, 0.0, None)


class MonitorEvents:
    """Writes `Train/Samples/energy_j` and `Train/Samples/power_w` to the monitors of an engine.

    They are the energy in joules and the mean power in watts of each `train_batch`, over the GPUs of all ranks, each
    counted once, logged against the number of samples so far. The ranks exchange several steps at once. Steps after the
    last exchange are not written, nor are steps whose energy was lost in part. The constructor is a collective call; no
    method raises.

    Args:
        engine: The engine.
        monitor: Measures this rank's GPUs.
        world: The ranks.
        exchange_steps: Number of steps exchanged at once.

    Raises:
        WorldError: A rank did not answer in time.
    """

    def __init__(self, engine: Any, monitor: ZeusMonitor, world: World, exchange_steps: int) -> None:
        self._engine = engine
        self._monitor = monitor
        self._ranks = Ranks(world)
        self._counted = self._ranks.share(monitor)
        self._exchange_steps = exchange_steps
        self._steps: list[_Step] = []

    def measure(self, train_batch: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Wraps `train_batch`; to be the outermost wrap that exchanges anything between the ranks."""
        if self._ranks.is_cut_off:
            return train_batch(*args, **kwargs)
        begin = self._read()
        loss = train_batch(*args, **kwargs)
        self._steps.append(self._step_since(begin))
        if len(self._steps) == self._exchange_steps:
            self._exchange()
        return loss

    @contained
    def _read(self) -> Reading:
        return self._monitor.read(sync_execution=False)

    @contained(default=lambda: _LOST)
    def _step_since(self, begin: Reading | None) -> _Step:
        if begin is None:
            return _LOST
        measurement = self._monitor.between(begin, self._monitor.read(sync_execution=False))
        energies = [measurement.gpu_energy[index] for index in self._counted]
        return _Step(int(self._engine.global_samples), measurement.time, _sum(energies))

    @contained
    def _exchange(self) -> None:
        steps, self._steps = self._steps, []
        of_ranks = self._ranks.gather(lambda: steps)
        if self._ranks.rank == 0:
            self._write([[_Step(*of_rank) for of_rank in step] for step in zip(*of_ranks, strict=True)])

    @contained
    def _write(self, steps: Sequence[Sequence[_Step]]) -> None:
        events: list[tuple[str, float, int]] = []
        for of_ranks in steps:
            joules, seconds = _sum([step.joules for step in of_ranks]), max(step.seconds for step in of_ranks)
            samples = of_ranks[0].samples
            if joules is not None and seconds > 0:
                events.append(("Train/Samples/energy_j", joules, samples))
                events.append(("Train/Samples/power_w", joules / seconds, samples))
        self._engine.monitor.write_events(events)


def _sum(values: Sequence[float | None]) -> float | None:
    return None if any(value is None for value in values) else sum(value for value in values if value is not None)
