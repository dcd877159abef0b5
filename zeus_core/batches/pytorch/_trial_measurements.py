"""Measuring the trials of one rank: its limit, the steps of each trial, and when its gradients are computed."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from zeus_core.batches.pytorch._trial_limits import LimitTrial, TrialSchedule, TriedLimits
from zeus_core.device import SimulatedGpu
from zeus_core.errors import DriverFaultError, UsageError
from zeus_core.mixed.allocation.trial_windows import MeasuredWindow
from zeus_core.monitor import ZeusMonitor
from zeus_core.ports import DeviceEvent, DeviceEvents
from zeus_core.ports.accelerator import INDEXED_TYPES
from zeus_core.ports.device_events import HostEvents
from zeus_core.pytorch.torch_events import device_events_for

# How long every other rank is kept waiting, to learn what its GPU takes meanwhile: 20 times the updates of a counter.
_BLOCKED_SECONDS = 2.0
_USED_FRACTION = 0.95  # of the memory; the rest is lost between blocks, and in workspaces of kernels


class TrialMeasurements:
    """The measured trials of one rank.

    Args:
        monitor: Measures the GPU of this rank.
        limits: The limits of that GPU.
        rank: This rank.
    """

    def __init__(self, monitor: ZeusMonitor, limits: TriedLimits, rank: int) -> None:
        self._monitor, self._limits, self._rank = monitor, limits, rank
        self._events: DeviceEvents | None = None
        self.memory: _BatchMemory = _BatchMemory(None)
        """The memory of this rank's GPU."""
        self._hooks: list[Any] = []
        self._now: MeasuredSteps | None = None
        self._done: dict[int, MeasuredWindow] = {}  # by the number of the trial

    @property
    def is_watching(self) -> bool:
        """Whether it sees when gradients are computed."""
        return bool(self._hooks)

    @property
    def windows(self) -> list[MeasuredWindow]:
        """All that was measured, in the order of trials."""
        return [self._done[number] for number in sorted(self._done)]

    def watch(self, model: torch.nn.Module) -> None:
        """See when the gradients of a model are computed, on the device that it trains on."""
        self._events = events_of(model, self._monitor)
        self.memory = _memory_of(model, self._monitor)
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call]
            for parameter in model.parameters()
            if parameter.requires_grad
        ]

    def on_batch(self, schedule: TrialSchedule, number: int, sizes: Sequence[int], has_ended: bool) -> None:
        """Begin a global batch, which may end a trial, and begin another.

        Raises:
            UsageError: No gradients were seen.
            DeviceError: A limit could not be set, or the energy is not known.
        """
        if self._now is not None and has_ended:
            self._done[self._now.trial.number] = self._now.close()
            self._now = None
        elif self._now is not None:
            self._now.begin_step()
        begun, measured = schedule.begins(number), schedule.measures(number)
        if begun is not None:
            self._limits.apply(begun.setting)
        elif measured is not None and measured.late == self._rank % 2:
            # The GPU of this rank is idle meanwhile, and so nothing is measured.
            self._monitor.time_source.sleep(_BLOCKED_SECONDS)
        elif measured is not None:
            if self._events is None:
                raise UsageError("it is not known when a rank has computed its gradients")
            self._now = MeasuredSteps(self._monitor, self._events, measured, sizes[self._rank])

    def disturbed(self, trials: Sequence[LimitTrial]) -> list[int]:
        """Return the numbers of the trials that something else than steps got into."""
        # Ranks that are late disturb the others by intent.
        return [trial.number for trial in trials if trial.late is None and self._done[trial.number].is_disturbed]

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        if self._now is not None:
            self._now.note_gradient()

    def cancel(self) -> None:
        """Forget the steps of the trial that is being measured."""
        if self._now is not None:
            self._now.cancel()
            self._now = None

    def stop(self) -> None:
        """Measure nothing more."""
        self.cancel()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


class _MemoryReading(NamedTuple):
    """How a process uses the memory of its GPU, in any unit.

    Attributes:
        allocated: Held now.
        peak: The most that was held.
        available: The most that could be held.
    """

    allocated: float
    peak: float
    available: float


class _BatchMemory:
    """Foresees which batches fit into memory.

    Between two steps, weights and states of the optimizer are held; the rest of the peak is taken to grow with the
    batch. That is more than it can grow, as gradients and workspaces do not.

    Args:
        read: Reads the memory; None where nobody can.
    """

    def __init__(self, read: Callable[[], _MemoryReading] | None) -> None:
        self._read = read
        self._held = math.inf

    def begin_step(self) -> None:
        """Note what is held between two steps: from the second one on, the states of the optimizer too."""
        if self._read is not None:
            self._held = self._read().allocated

    def largest_batch(self, batch: int) -> int | None:
        """Return the largest batch that fits, after steps with one that does, and not below it; None for any."""
        if self._read is None or math.isinf(self._held):
            return None
        reading = self._read()
        growing = reading.peak - self._held
        if growing <= 0 or batch == 0:
            return None
        return max(batch, int(batch * (_USED_FRACTION * reading.available - self._held) / growing))


def _memory_of(model: torch.nn.Module, monitor: ZeusMonitor) -> _BatchMemory:
    """Return the memory that a model is trained in: that of a simulated GPU, if it computes."""
    (gpu,) = monitor.gpus.values()
    if isinstance(gpu, SimulatedGpu):
        simulated = gpu
        return _BatchMemory(lambda: _MemoryReading(*simulated.held_gib, simulated.preset.memory_gib))
    device = next(model.parameters()).device
    if device.type not in INDEXED_TYPES:
        return _BatchMemory(None)
    module = getattr(torch, device.type)

    def read() -> _MemoryReading:
        free, _ = module.mem_get_info(device)
        available = free + module.memory_reserved(device)
        return _MemoryReading(module.memory_allocated(device), module.max_memory_allocated(device), available)

    return _BatchMemory(read)


_WINDOW = "zeus_core.batch_allocation"


class MeasuredSteps:
    """Some steps of this rank that are being measured, from the beginning of the first.

    Args:
        monitor: Measures the GPU of this rank.
        events: The events of the device that computes.
        trial: The trial that the steps are of.
        batch: Samples of this rank in each.
    """

    def __init__(self, monitor: ZeusMonitor, events: DeviceEvents, trial: LimitTrial, batch: int) -> None:
        self._monitor, self._events = monitor, events
        self.trial: LimitTrial = trial
        self._batch = batch
        self._ready: DeviceEvent | None = None
        self._spans: list[tuple[DeviceEvent, DeviceEvent]] = []
        monitor.begin_window(_WINDOW)
        self._begun = events()

    def note_gradient(self) -> None:
        """Note that a gradient is computed; the last of a step ends the rank's own work."""
        self._ready = self._events()

    def begin_step(self) -> None:
        """End a step, and begin the next.

        Raises:
            UsageError: No gradient was computed in it.
        """
        self._end_step()
        self._begun = self._events()

    def _end_step(self) -> None:
        if self._ready is None:
            raise UsageError("no gradient was computed in a step: batches cannot be measured")
        self._spans.append((self._begun, self._ready))
        self._ready = None

    def close(self) -> MeasuredWindow:
        """End the last step, and return what was measured.

        Raises:
            UsageError: No gradient was computed in it.
            DriverFaultError: The energy is not known.
        """
        self._end_step()
        measurement = self._monitor.end_window(_WINDOW)
        if measurement.total_energy is None:
            raise DriverFaultError("the energy of some steps could not be measured")
        end = self._events()
        end.wait()
        seconds = [(begun.seconds() or 0.0, ready.seconds() or 0.0) for begun, ready in self._spans]
        busy = [ready - begun for begun, ready in seconds]
        begins = [*(begun for begun, _ in seconds), end.seconds() or 0.0]
        return MeasuredWindow(
            self.trial.setting,
            self._batch,
            len(busy),
            statistics.median(busy),
            statistics.median(after - before for before, after in itertools.pairwise(begins)),
            sum(busy),
            measurement.time,
            measurement.total_energy,
            self.trial.late is not None,
        )

    def cancel(self) -> None:
        """Forget the steps."""
        self._monitor.end_window(_WINDOW, cancel=True)


def events_of(model: torch.nn.Module, monitor: ZeusMonitor) -> DeviceEvents:
    """Return the events of the device that computes: of a simulated GPU, if that determines the time."""
    (gpu,) = monitor.gpus.values()
    if isinstance(gpu, SimulatedGpu):
        simulated, host = gpu, HostEvents(monitor.time_source)

        def reached() -> DeviceEvent:
            simulated.synchronize()
            return host()

        return reached
    return device_events_for(next(model.parameters()).device, monitor.time_source)
