"""Running integrals over the samples of one GPU, for energy that two edges alone do not tell. Pure.

Between two samples the GPU is taken to hold the power of the first. The power may have changed to that of the second
right after the first: the uncertainty allows for that.
"""

from __future__ import annotations

from typing import Protocol

from zeus_core.measurement import DeviceEnergy
from zeus_core.monitor._reading import GpuEdge, RunningEnergy

__all__ = ["AnchoredIntegral", "HoldIntegral", "Integral", "PendingIntegral"]

# Five periods of precise sampling: a busy interpreter delays a thread by its switch interval, 5 ms, a few times over.
_MAX_GAP_SECONDS = 0.02
# Of the energy, for bursts shorter than a gap, which show in no sample. Trades a wider interval for one that holds the
# truth; tests/monitor/test_truth.py asks for at least 95 % of the windows.
_UNSEEN_FRACTION = 0.02


class Integral(Protocol):
    """Takes in samples in the order of time, each with a power, and tells the energy between any two of them."""

    def add(self, sample: GpuEdge) -> RunningEnergy:
        """Take in a sample; return the energy up to it."""
        ...

    def between(self, begin: RunningEnergy, end: RunningEnergy) -> DeviceEnergy:
        """Compute the energy from one sample to a later one."""
        ...


class HoldIntegral:
    """The integral of power alone, for GPUs without an energy counter.

    Args:
        average_seconds: How long each power looks back: a change of the power shows that much later at most.
    """

    def __init__(self, average_seconds: float = 0.0) -> None:
        self._average_seconds = average_seconds
        self._last: GpuEdge | None = None
        self._energy_joules = 0.0
        self._uncertainty_joules = 0.0

    def add(self, sample: GpuEdge) -> RunningEnergy:
        """Take in a sample; return the energy up to it."""
        assert sample.power_watts is not None
        if self._last is not None and self._last.power_watts is not None:
            seconds = sample.at - self._last.at
            self._energy_joules += self._last.power_watts * seconds
            change_watts = abs(sample.power_watts - self._last.power_watts)
            self._uncertainty_joules += change_watts * (seconds + self._average_seconds)
            self._uncertainty_joules += _UNSEEN_FRACTION * self._last.power_watts * seconds
        self._last = sample
        return RunningEnergy(self._energy_joules, self._uncertainty_joules)

    def between(self, begin: RunningEnergy, end: RunningEnergy) -> DeviceEnergy:
        """Compute the energy from one sample to a later one."""
        uncertainty_joules = end.uncertainty_joules - begin.uncertainty_joules  # both only grow
        return DeviceEnergy(end.energy_joules - begin.energy_joules, uncertainty_joules, "integrated")


class AnchoredIntegral:
    """The integral of power since the counter's latest update, on top of the counter.

    The update itself happened somewhere between two samples: in the middle, give or take half of the gap. In a gap of
    more than a few sampling periods, as where the interpreter was busy elsewhere, the GPU may have drawn anything.

    Args:
        period_seconds: The longest time the counter stands still.
        peak_watts: The most the GPU can draw.
    """

    def __init__(self, period_seconds: float, peak_watts: float) -> None:
        self._period_seconds = period_seconds
        self._peak_watts = peak_watts
        self._last: GpuEdge | None = None
        self._since_update_joules = 0.0
        self._uncertainty_joules = 0.0

    def add(self, sample: GpuEdge) -> RunningEnergy:
        """Take in a sample; return the energy up to it."""
        assert sample.power_watts is not None
        assert sample.counter_joules is not None
        if self._last is None:
            # Nothing is known of when the counter was updated: at most a period ago.
            self._start_anew(sample.power_watts * self._period_seconds)
        else:
            self._go_on(self._last, sample.at, sample.counter_joules, sample.power_watts)
        self._last = sample
        return RunningEnergy(sample.counter_joules + self._since_update_joules, self._uncertainty_joules)

    def between(self, begin: RunningEnergy, end: RunningEnergy) -> DeviceEnergy:
        """Compute the energy from one sample to a later one."""
        uncertainty_joules = begin.uncertainty_joules + end.uncertainty_joules
        return DeviceEnergy(end.energy_joules - begin.energy_joules, uncertainty_joules)

    def _go_on(self, last: GpuEdge, at: float, counter_joules: float, power_watts: float) -> None:
        assert last.power_watts is not None
        seconds = at - last.at
        is_long = seconds > _MAX_GAP_SECONDS
        if counter_joules != last.counter_joules:
            max_watts = self._peak_watts if is_long else max(power_watts, last.power_watts)
            self._start_anew(max_watts * min(seconds, self._period_seconds))
        else:
            self._since_update_joules += last.power_watts * seconds
            change_watts = self._peak_watts if is_long else abs(power_watts - last.power_watts)
            self._uncertainty_joules += change_watts * seconds

    def _start_anew(self, max_joules: float) -> None:
        self._since_update_joules = self._uncertainty_joules = max_joules / 2


class PendingIntegral:
    """The energy from an edge to the counter's next update, and so what the counter did not show at the edge.

    Args:
        edge: Holds a counter and a power.
    """

    def __init__(self, edge: GpuEdge) -> None:
        self._edge = self._last = edge
        self._energy_joules = 0.0
        self._uncertainty_joules = 0.0
        self.is_over = False
        """Whether the update was seen, or never will be."""

    def add(self, sample: GpuEdge) -> RunningEnergy | None:
        """Take in a later sample; return what the counter did not show at the edge once the sample shows an update."""
        last, self._last = self._last, sample
        seconds = sample.at - last.at
        if sample.counter_joules is None or sample.power_watts is None or seconds > _MAX_GAP_SECONDS:
            self.is_over = True
            return None
        assert last.power_watts is not None
        assert self._edge.counter_joules is not None
        max_watts = max(sample.power_watts, last.power_watts)
        if sample.counter_joules != self._edge.counter_joules:
            self.is_over = True
            half_gap_joules = max_watts * seconds / 2  # the update came somewhere between the two samples
            shown_joules = sample.counter_joules - self._edge.counter_joules
            pending_joules = shown_joules - self._energy_joules - half_gap_joules
            return RunningEnergy(max(pending_joules, 0.0), self._uncertainty_joules + half_gap_joules)
        self._energy_joules += last.power_watts * seconds
        self._uncertainty_joules += abs(sample.power_watts - last.power_watts) * seconds
        return None
