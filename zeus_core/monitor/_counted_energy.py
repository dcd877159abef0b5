"""The energy of one device between two readings of its counter, and the interval that holds the truth. Pure.

An energy counter of a GPU stands still for a period p and then shows the energy up to that moment. With C and t the
counter and the time at the edges, and r the energy since the counter's latest update,

    E = (C1 + r1) - (C0 + r0),    0 <= r <= p * peak power

so the difference of the counters is off by at most one period of peak power. Three things narrow that:

- An edge that was watched until the counter's next update tells its r.
- A GPU that drew the same power P all the time updated its counter by P p each time, n times, and the lags of the edges
  differ by T - n p. Then E = C1 - C0 + P (T - n p). That the power was the same shows in C1 - C0 being n times P p.
- The power at the edges tells how r0 and r1 differ.
"""

from __future__ import annotations

import math

from zeus_core.measurement import DeviceEnergy, Method
from zeus_core.monitor._reading import CpuEdge, GpuEdge, RunningEnergy

__all__ = ["counted_energy", "dram_energy", "package_energy"]

# Each of the first three trades surer energies under steady loads for wrong ones under loads that only look steady.
# tests/monitor/test_truth.py holds them: over its loads the truth lies in the interval of at least 95 % of the windows.
_SAME_POWER = 0.03  # relative difference between two readings of a constant power
_WHOLE_UPDATES = 0.02  # how far a difference of counters may be from a whole number of updates
_STEADY_UNCERTAINTY = 0.45  # of one update
_STUCK_PERIODS = 4  # a counter without an update for longer is stuck; a driver may skip one update, not three
_MAX_PLAUSIBLE = 2.0  # times the peak power: boards exceed their limit for milliseconds only, so the counter has jumped
_RAPL_PERIOD_SECONDS = 0.001  # RAPL counters are updated about every millisecond (Intel SDM, volume 3B, 15.10)


def counted_energy(
    begin: GpuEdge, end: GpuEdge, period_seconds: float, peak_watts: float, has_instant_power: bool = True
) -> DeviceEnergy:
    """Compute the energy of a GPU that has a counter, between two edges.

    Args:
        begin: The first edge.
        end: The second edge.
        period_seconds: The longest time the counter stands still.
        peak_watts: The most the GPU can draw.
        has_instant_power: Whether the edges' power is that of the moment. An average over longer than the counter's
            period tells nothing of what the counter has not shown yet.
    """
    fault = begin.fault or end.fault
    if fault is not None or begin.counter_joules is None or end.counter_joules is None:
        return DeviceEnergy.lost(fault or "the energy counter could not be read")
    elapsed_seconds = end.at - begin.at
    difference_joules = end.counter_joules - begin.counter_joules
    period_joules = peak_watts * period_seconds
    is_stuck = difference_joules == 0 and elapsed_seconds > _STUCK_PERIODS * period_seconds
    has_jumped = difference_joules > _MAX_PLAUSIBLE * (peak_watts * elapsed_seconds + period_joules)
    if is_stuck or has_jumped or difference_joules < 0:
        return DeviceEnergy.lost(_broken_counter(difference_joules, elapsed_seconds))
    if begin.pending is not None:
        return _aligned_energy(begin.pending, begin, end, difference_joules, period_seconds, peak_watts)
    first_watts = end.power_watts if begin.power_watts is None else begin.power_watts
    last_watts = first_watts if end.power_watts is None else end.power_watts
    if first_watts is None or last_watts is None:
        if difference_joules == 0:
            return DeviceEnergy.lost("the energy counter was not updated, and the power could not be read")
        return DeviceEnergy(difference_joules, period_joules)
    estimate_joules, uncertainty_joules = _estimate(
        difference_joules, elapsed_seconds, first_watts, last_watts, period_seconds
    )
    if not has_instant_power:
        uncertainty_joules = math.inf
        if elapsed_seconds >= period_seconds:
            estimate_joules = difference_joules
    # The counter guarantees these bounds; the estimate may be outside of them where the power changed in between.
    min_joules = max(0.0, difference_joules - period_joules)
    max_joules = min(difference_joules + period_joules, max(peak_watts, first_watts, last_watts) * elapsed_seconds)
    if estimate_joules > max_joules:
        estimate_joules = max_joules
    if estimate_joules < min_joules:
        estimate_joules = min_joules
    reach_joules = max(max_joules - estimate_joules, estimate_joules - min_joules)
    method: Method = "counted" if difference_joules > 0 else "estimated"
    return DeviceEnergy(estimate_joules, min(reach_joules, uncertainty_joules), method)


def package_energy(begin: CpuEdge, end: CpuEdge, elapsed_seconds: float) -> DeviceEnergy:
    """Compute the energy of a CPU package between two edges."""
    return _rapl_energy(begin.package_joules, end.package_joules, begin.fault or end.fault, elapsed_seconds)


def dram_energy(begin: CpuEdge, end: CpuEdge, elapsed_seconds: float) -> DeviceEnergy:
    """Compute the energy of the DRAM of a CPU package between two edges."""
    return _rapl_energy(begin.dram_joules, end.dram_joules, begin.fault or end.fault, elapsed_seconds)


def _rapl_energy(begin: float | None, end: float | None, fault: str | None, elapsed_seconds: float) -> DeviceEnergy:
    if begin is None or end is None:
        return DeviceEnergy.lost(fault or "the counter could not be read")
    energy_joules = end - begin
    # At each edge, up to one period at the mean power.
    edges_joules = 2 * energy_joules * _RAPL_PERIOD_SECONDS / max(elapsed_seconds, _RAPL_PERIOD_SECONDS)
    return DeviceEnergy(energy_joules, edges_joules)


def _aligned_energy(
    begin_pending: RunningEnergy,
    begin: GpuEdge,
    end: GpuEdge,
    difference_joules: float,
    period_seconds: float,
    peak_watts: float,
) -> DeviceEnergy:
    """Compute the energy where it is known what the counter did not show at the first edge, and maybe at the second.

    Where it is not known at the second, it is likely half a period of the mean power. The power at that moment tells
    less, because a window often ends with a wait for the GPU.
    """
    end_pending = end.pending
    if end_pending is None:
        elapsed_seconds = max(end.at - begin.at, period_seconds)
        mean_watts = min((difference_joules - begin_pending.energy_joules) / elapsed_seconds, peak_watts)
        likely_joules = period_seconds / 2 * max(mean_watts, 0.0)
        end_pending = RunningEnergy(likely_joules, period_seconds * peak_watts - likely_joules)
    energy_joules = difference_joules + end_pending.energy_joules - begin_pending.energy_joules
    uncertainty_joules = begin_pending.uncertainty_joules + end_pending.uncertainty_joules
    return DeviceEnergy(max(energy_joules, 0.0), uncertainty_joules)


def _broken_counter(difference_joules: float, elapsed_seconds: float) -> str:
    if difference_joules < 0:
        return f"the energy counter went back by {-difference_joules:g} J, as it does when the driver is loaded again"
    if difference_joules == 0:
        return f"the energy counter stood still for {elapsed_seconds:.3g} s"
    return f"the energy counter jumped by {difference_joules:g} J in {elapsed_seconds:.3g} s"


def _estimate(
    difference_joules: float, elapsed_seconds: float, first_watts: float, last_watts: float, period_seconds: float
) -> tuple[float, float]:
    """Compute the likeliest energy, and how far it can be off, which is infinity if only the counter bounds it."""
    power_watts = (first_watts + last_watts) / 2
    update_joules = power_watts * period_seconds
    change_watts = last_watts - first_watts
    if update_joules > 0 and abs(change_watts) <= _SAME_POWER * power_watts:
        updates = difference_joules / update_joules
        whole_updates = round(updates)
        lag_seconds = elapsed_seconds - whole_updates * period_seconds
        if abs(updates - whole_updates) <= _WHOLE_UPDATES and abs(lag_seconds) < period_seconds:
            return difference_joules + power_watts * lag_seconds, _STEADY_UNCERTAINTY * update_joules
    if elapsed_seconds < period_seconds:
        return power_watts * elapsed_seconds, math.inf
    return difference_joules + period_seconds / 2 * change_watts, math.inf
