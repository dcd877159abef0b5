"""The energy of each step, logged to DeepSpeed's monitors like the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from zeus_core.adapters import contained
from zeus_core.codec import decode, encode
from zeus_core.measurement import Measurement
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor.reading import Reading
from zeus_core.ports import World
from zeus_core.ports.exchange import Exchange

_Step = tuple[int, Measurement]  # with the number of samples seen by its end


class MonitorEvents:
    """Writes `Train/Samples/energy_j` and `Train/Samples/power_w` to the monitors of an engine.

    They are the energy in joules and the mean power in watts of each `train_batch`, over the GPUs of all ranks, each
    counted once, logged against the number of samples so far. The ranks exchange several steps at once. Steps after the
    last exchange are not written, nor are steps whose energy was lost in part. No method raises.

    Args:
        engine: The engine.
        monitor: Measures this rank's GPUs.
        world: The ranks.
        exchange_steps: Number of steps exchanged at once.
    """

    def __init__(self, engine: Any, monitor: ZeusMonitor, world: World, exchange_steps: int) -> None:
        self._engine = engine
        self._monitor = monitor
        self._ranks = Exchange(world)
        self._exchange_steps = exchange_steps
        self._steps: list[_Step | None] = []  # None if measuring has failed

    def measure(self, train_batch: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Wraps `train_batch`; to be the outermost wrap that exchanges anything between the ranks."""
        if self._ranks.is_cut_off:
            return train_batch(*args, **kwargs)
        begin = self._read()
        loss = train_batch(*args, **kwargs)
        self._steps.append(None if begin is None else self._step_since(begin))
        if len(self._steps) == self._exchange_steps:
            self._exchange()
        return loss

    @contained
    def _read(self) -> Reading:
        return self._monitor.read(sync_execution=False)

    @contained
    def _step_since(self, begin: Reading) -> _Step:
        measurement = self._monitor.between(begin, self._monitor.read(sync_execution=False))
        return int(self._engine.global_samples), measurement

    @contained
    def _exchange(self) -> None:
        steps, self._steps = self._steps, []
        ranks = self._ranks.gather_first(lambda: encode(steps))
        if ranks is not None:
            self._write([decode(list[_Step | None], rank) for rank in ranks])

    @contained
    def _write(self, ranks: Sequence[Sequence[_Step | None]]) -> None:
        events: list[tuple[str, float, int]] = []
        for step in zip(*ranks, strict=True):
            known = [part for part in step if part is not None]
            whole = Measurement.from_ranks(measurement for _, measurement in known)
            joules, watts = whole.total_energy, whole.average_power_watts
            if len(known) == len(step) and joules is not None and watts is not None:
                samples = known[0][0]
                events.append(("Train/Samples/energy_j", joules, samples))
                events.append(("Train/Samples/power_w", watts, samples))
        self._engine.monitor.write_events(events)
