"""Running integrals over the samples of one GPU, for energy that two edges alone do not tell. Pure.

Between two samples the GPU is taken to hold the power of the first; the power may have changed to that of the second
right after the first, which is what the doubt allows for.
"""

from __future__ import annotations

from typing import Protocol

from zeus_core.monitor._counted_energy import DeviceEnergy
from zeus_core.monitor._edge import Edge, RunningEnergy

__all__ = ["AnchoredIntegral", "EnergyAfter", "HoldIntegral", "Integral"]

_LONGEST_GAP_SECONDS = 0.02
_UNSEEN_FRACTION = 0.02  # of the energy: bursts shorter than a gap show in no sample


class Integral(Protocol):
    """Takes in samples in the order of time, which hold a power, and tells the energy between any two of them."""

    def add(self, sample: Edge) -> RunningEnergy:
        """The energy up to this sample."""
        ...

    def between(self, begin: RunningEnergy, end: RunningEnergy) -> DeviceEnergy:
        """The energy from one sample to a later one."""
        ...


class HoldIntegral:
    """The integral of power alone, for GPUs without an energy counter.

    Args:
        average_seconds: How long each power looks back: a change of the power shows that much later at most.
    """

    def __init__(self, average_seconds: float = 0.0) -> None:
        self._average_seconds = average_seconds
        self._last: Edge | None = None
        self._energy_joules = 0.0
        self._doubt_joules = 0.0

    def add(self, sample: Edge) -> RunningEnergy:
        """The energy up to this sample."""
        assert sample.power_watts is not None
        if self._last is not None and self._last.power_watts is not None:
            seconds = sample.at - self._last.at
            self._energy_joules += self._last.power_watts * seconds
            change_watts = abs(sample.power_watts - self._last.power_watts)
            self._doubt_joules += change_watts * (seconds + self._average_seconds)
            self._doubt_joules += _UNSEEN_FRACTION * self._last.power_watts * seconds
        self._last = sample
        return RunningEnergy(self._energy_joules, self._doubt_joules)

    def between(self, begin: RunningEnergy, end: RunningEnergy) -> DeviceEnergy:
        """The energy from one sample to a later one."""
        doubt_joules = end.doubt_joules - begin.doubt_joules
        return DeviceEnergy(end.energy_joules - begin.energy_joules, "integrated", doubt_joules)


class AnchoredIntegral:
    """The integral of power since the counter's latest step, on top of the counter.

    The step itself happened somewhere between two samples: in the middle, give or take half of the gap. In a gap of
    more than a few sampling periods, as where the interpreter was busy elsewhere, the GPU may have drawn anything.

    Args:
        period_seconds: How long the counter stands still, at most.
        peak_watts: The most the GPU can draw.
    """

    def __init__(self, period_seconds: float, peak_watts: float) -> None:
        self._period_seconds = period_seconds
        self._peak_watts = peak_watts
        self._last: Edge | None = None
        self._since_step_joules = 0.0
        self._doubt_joules = 0.0

    def add(self, sample: Edge) -> RunningEnergy:
        """The energy up to this sample."""
        assert sample.power_watts is not None
        assert sample.counter_joules is not None
        if self._last is None:
            # Nothing is known of when the counter stepped: at most a period ago.
            self._start_anew(sample.power_watts * self._period_seconds)
        else:
            self._go_on(self._last, sample.at, sample.counter_joules, sample.power_watts)
        self._last = sample
        return RunningEnergy(sample.counter_joules + self._since_step_joules, self._doubt_joules)

    def between(self, begin: RunningEnergy, end: RunningEnergy) -> DeviceEnergy:
        """The energy from one sample to a later one."""
        doubt_joules = begin.doubt_joules + end.doubt_joules
        return DeviceEnergy(end.energy_joules - begin.energy_joules, "counted", doubt_joules)

    def _go_on(self, last: Edge, at: float, counter_joules: float, power_watts: float) -> None:
        assert last.power_watts is not None
        seconds = at - last.at
        is_long = seconds > _LONGEST_GAP_SECONDS
        if counter_joules != last.counter_joules:
            most_watts = self._peak_watts if is_long else max(power_watts, last.power_watts)
            self._start_anew(most_watts * min(seconds, self._period_seconds))
        else:
            self._since_step_joules += last.power_watts * seconds
            change_watts = self._peak_watts if is_long else abs(power_watts - last.power_watts)
            self._doubt_joules += change_watts * seconds

    def _start_anew(self, longest_joules: float) -> None:
        self._since_step_joules = self._doubt_joules = longest_joules / 2


class EnergyAfter:
    """The energy drawn from an edge to the counter's next step, and so what the counter did not show at the edge.

    Args:
        edge: Holds a counter and a power.
    """

    def __init__(self, edge: Edge) -> None:
        self._edge = self._last = edge
        self._energy_joules = 0.0
        self._doubt_joules = 0.0
        self.is_over = False
        """Whether the step was seen, or never will be."""

    def add(self, sample: Edge) -> RunningEnergy | None:
        """Take in a later sample. What the counter did not show at the edge, if the sample shows its next step."""
        last, self._last = self._last, sample
        seconds = sample.at - last.at
        if sample.counter_joules is None or sample.power_watts is None or seconds > _LONGEST_GAP_SECONDS:
            self.is_over = True
            return None
        assert last.power_watts is not None
        assert self._edge.counter_joules is not None
        most_watts = max(sample.power_watts, last.power_watts)
        if sample.counter_joules != self._edge.counter_joules:
            self.is_over = True
            drawn_joules = self._energy_joules + most_watts * seconds / 2
            shown_joules = sample.counter_joules - self._edge.counter_joules
            return RunningEnergy(max(shown_joules - drawn_joules, 0.0), self._doubt_joules + most_watts * seconds / 2)
        self._energy_joules += last.power_watts * seconds
        self._doubt_joules += abs(sample.power_watts - last.power_watts) * seconds
        return None
