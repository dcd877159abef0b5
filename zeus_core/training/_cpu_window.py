"""The energy of the processors over a whole training, on a machine without a GPU to measure."""

from __future__ import annotations

import math

from zeus_core.adapters import contained
from zeus_core.measurement import Measurement
from zeus_core.monitor import ZeusMonitor
from zeus_core.units import duration_text, energy_text


class CpuWindow:
    """A window of the CPUs and their memory, from the beginning of a training to its end. Nothing is divided.

    Args:
        monitor: Measures this machine. Where it measures GPUs, or no CPU, there is no window.
    """

    def __init__(self, monitor: ZeusMonitor) -> None:
        self._monitor = monitor
        self._window = f"__zeus_core_cpus_{id(self)}"
        self._is_open = False
        self._measurement: Measurement | None = None

    @contained
    def begin(self) -> None:
        """Begin the window; one that is open goes on, as the training does."""
        if not self._is_open and self._monitor.cpus and not self._monitor.gpus:
            self._measurement = None
            self._monitor.begin_window(self._window, sync_execution=False)
            self._is_open = True

    @contained
    def end(self) -> None:
        """End the window, if it is open."""
        if self._is_open:
            self._is_open = False
            self._measurement = self._monitor.end_window(self._window, sync_execution=False)

    def rows(self) -> dict[str, str]:
        """Return the energy in words, as a labelled line; nothing without a window that has ended."""
        measured = self._measurement
        if measured is None:
            return {}
        labels = ", ".join(device.label for device in measured.devices)
        if lost := [energy.lost_because for energy in measured.devices.values() if energy.energy_joules is None]:
            text = f"lost: {lost[0]}"
        else:
            joules = math.fsum(energy.energy_joules or 0.0 for energy in measured.devices.values())
            off = math.fsum(energy.uncertainty_joules or 0.0 for energy in measured.devices.values())
            text = f"{energy_text(joules, off)} in {duration_text(measured.time)}, all that {labels} drew"
        return {"energy without GPUs": text}
