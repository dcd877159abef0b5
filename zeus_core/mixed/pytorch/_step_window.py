"""Measuring some steps of this rank: how long it computes in each, and what its GPU takes."""

from __future__ import annotations

import itertools
import statistics

import torch

from zeus_core.device import SimulatedGpu
from zeus_core.errors import DriverFaultError, UsageError
from zeus_core.mixed.allocation.trial_windows import MeasuredWindow
from zeus_core.mixed.pytorch._trial_limits import Trial
from zeus_core.monitor import ZeusMonitor
from zeus_core.ports import DeviceEvent, DeviceEvents
from zeus_core.ports.device_events import HostEvents
from zeus_core.pytorch.torch_events import device_events_for

_WINDOW = "zeus_core.batch_allocation"


class StepWindow:
    """Some steps of this rank that are being measured, from the beginning of the first.

    Args:
        monitor: Measures the GPU of this rank.
        events: The events of the device that computes.
        trial: The trial that the steps are of.
        batch: Samples of this rank in each.
    """

    def __init__(self, monitor: ZeusMonitor, events: DeviceEvents, trial: Trial, batch: int) -> None:
        self._monitor, self._events = monitor, events
        self.trial: Trial = trial
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
