"""The energy of one device between two readings of its counter, and the interval that holds the truth. Pure.

The energy up to an update of a counter is known exactly; when the update happened is not. With E(t) the true energy, C
the counter at an edge, updated to it after a moment a, and P the most the GPU can draw,

    C <= E(edge) <= C + P (edge - a)

and once the next update to D has been seen by a moment b, also D - P (b - edge) <= E(edge) <= D. The energy of a window
is the difference of two such edges, and neither below zero nor above P times its length. No power reading is part of
this: a sensor shows the power of up to 0.1 s ago, which at the edge of a window is that of another part of the program.
The readings only choose the likeliest energy among the possible ones.

One case is surer. A GPU that drew the same power p all the time updated its counter by p T each time, n times, and the
lags of the edges differ by d - n T. Then E = C1 - C0 + p (d - n T). C1 - C0 being n times p T shows that the power was
the same.
"""

from __future__ import annotations

import math

from zeus_core.measurement import DeviceEnergy
from zeus_core.monitor._integral import integrated_energy
from zeus_core.monitor.reading import CounterUpdate, GpuEdge, PowerSums, RaplReading

# Times its power limit, what a board may draw for milliseconds. Over a whole period of the counter it keeps the limit.
TRANSIENTS = 1.1

# Each of the first three trades surer energies under steady loads for wrong ones under loads that only look steady.
# tests/monitor/test_truth.py holds them: over its loads the truth lies in the interval of at least 95 % of the windows.
_SAME_POWER = 0.03  # relative difference between two readings of a constant power
_WHOLE_UPDATES = 0.02  # how far a difference of counters may be from a whole number of updates
_STEADY_UNCERTAINTY = 0.45  # of one update
_QUICK_CALL = 0.1  # periods; a call that takes longer moves its edge by more than a steady energy's uncertainty allows
_MAX_RELATIVE_UNCERTAINTY = 0.5  # of an energy that a failed counter left unknown in part; beyond, it counts as lost
_RAPL_MAX_WATTS = 2000.0  # more than any zone draws: four times the power of the largest processors (500 W)
_RAPL_MOVES_SECONDS = 0.01  # by steps of 61 microjoules; even memory at rest draws some tenths of a watt
_RAPL_PERIOD_SECONDS = 0.001  # RAPL counters are updated about every millisecond (Intel SDM, volume 3B, 15.10)


def counted_energy(
    begin: GpuEdge,
    end: GpuEdge,
    seconds: float,
    period_seconds: float,
    peak_watts: float,
    average_seconds: float = 0.0,
) -> DeviceEnergy:
    """Compute the energy of a GPU that has a counter, between two edges.

    Args:
        begin: The first edge.
        end: The second edge.
        seconds: The time between them.
        period_seconds: The time between two updates of the counter.
        peak_watts: The most the GPU can draw: its highest limit, and transients above it.
        average_seconds: The time over which the power readings are averaged.
    """
    first, last = begin.update, end.update
    if first is None or last is None:
        return DeviceEnergy.lost(begin.fault or end.fault or "the energy counter could not be read")
    fault = end.fault or begin.fault if last.breaks is first.breaks else last.breaks.because
    if first.has_stopped or last.has_stopped:
        fault = fault or "the energy counter has stopped, and nothing shows when"
    if begin.still_from is end.still_from is not None and begin.sums is not None and end.sums is not None:
        energy = integrated_energy(begin, end, seconds, peak_watts, average_seconds)
        if energy.energy_joules is None or energy.uncertainty_joules is None:
            return energy
        return _estimated(energy.energy_joules, energy.uncertainty_joules, fault)
    is_counted = last.joules != first.joules and fault is None and begin.still_from is end.still_from is None
    longest_call = max(first.until - begin.at, last.until - end.at) if is_counted else math.inf
    may_be_steady = average_seconds <= period_seconds and longest_call <= _QUICK_CALL * period_seconds
    likely_joules, uncertainty_joules = _likely(begin, end, seconds, period_seconds, may_be_steady)
    if likely_joules is None:
        return DeviceEnergy.lost(fault or "the energy counter was not updated, and the power could not be read")
    min_joules, max_joules = _possible(begin, end, seconds, period_seconds, peak_watts, average_seconds)
    if likely_joules < min_joules:
        likely_joules = min_joules
    elif likely_joules > max_joules:
        likely_joules = max_joules
    lower_joules, higher_joules = likely_joules - min_joules, max_joules - likely_joules
    reach_joules = lower_joules if lower_joules > higher_joules else higher_joules
    if reach_joules < uncertainty_joules:
        uncertainty_joules = reach_joules
    if is_counted:
        return DeviceEnergy(likely_joules, uncertainty_joules)
    return _estimated(likely_joules, uncertainty_joules, fault)


def _estimated(energy_joules: float, uncertainty_joules: float, fault: str | None) -> DeviceEnergy:
    """Return an energy as estimated; as lost if a fault has made it that unsure."""
    if fault is not None and uncertainty_joules > _MAX_RELATIVE_UNCERTAINTY * energy_joules:
        return DeviceEnergy.lost(fault)
    return DeviceEnergy(energy_joules, uncertainty_joules, "estimated")


def rapl_energy(
    begin: RaplReading | None,
    end: RaplReading | None,
    fault: str | None,
    elapsed_seconds: float,
    period_seconds: float = _RAPL_PERIOD_SECONDS,
) -> DeviceEnergy:
    """Compute the energy of a CPU package, or of its memory, between two readings; `fault` says why one is missing."""
    moves_seconds = max(_RAPL_MOVES_SECONDS, period_seconds)
    if begin is None or end is None:
        return DeviceEnergy.lost(fault or "the counter could not be read")
    energy_joules = end.joules - begin.joules
    if energy_joules == 0 and elapsed_seconds > moves_seconds:
        return DeviceEnergy.lost("the RAPL counter stood still" if moves_seconds < 1 else "its counter stood still")
    if energy_joules == 0:
        return DeviceEnergy(0.0, _RAPL_MAX_WATTS * elapsed_seconds, "estimated")
    # At each edge, up to one period at the mean power, or the time since the counter moved, if that is longer.
    mean_watts = energy_joules / max(elapsed_seconds - end.late_seconds, period_seconds)
    edges_joules = mean_watts * (begin.late_seconds + end.late_seconds + 2 * period_seconds)
    still_seconds = end.still_seconds - begin.still_seconds
    if still_seconds > 0:
        off_joules = edges_joules + _RAPL_MAX_WATTS * still_seconds
        return _estimated(energy_joules, off_joules, "the RAPL counter stood still for a while")
    if max(begin.late_seconds, end.late_seconds) <= moves_seconds:
        return DeviceEnergy(energy_joules, edges_joules)
    likely_joules = max(energy_joules + mean_watts * (end.late_seconds - begin.late_seconds), 0.0)
    return _estimated(likely_joules, edges_joules, "the RAPL counter stood still for a while")


def _possible(
    begin: GpuEdge, end: GpuEdge, seconds: float, period_seconds: float, peak_watts: float, average_seconds: float
) -> tuple[float, float]:
    """Compute the least and the most energy between two edges."""
    first, last = begin.update, end.update
    assert first is not None
    assert last is not None
    begin_min, begin_max = _bounds(begin, first, peak_watts, period_seconds, average_seconds)
    end_min, end_max = _bounds(end, last, peak_watts, period_seconds, average_seconds)
    min_joules, max_joules = end_min - begin_max, end_max - begin_min
    if last.breaks is not first.breaks:
        min_joules -= last.breaks.excess_joules - first.breaks.excess_joules
        max_joules += last.breaks.missing_joules - first.breaks.missing_joules
    if max_joules > peak_watts * seconds:
        max_joules = peak_watts * seconds
    if min_joules < 0:
        min_joules = 0.0
    # A counter beyond what the board can draw contradicts that, and one of the two is wrong.
    return (min_joules, max_joules) if min_joules < max_joules else (max_joules, min_joules)


def _bounds(
    edge: GpuEdge, update: CounterUpdate, peak_watts: float, period_seconds: float, average_seconds: float
) -> tuple[float, float]:
    """Compute the least and the most energy up to an edge; see the beginning of this module."""
    at, after, joules, start = edge.at, update.after, update.joules, edge.still_from
    if start is None and not update.has_stopped and at - period_seconds / TRANSIENTS > after:
        after = at - period_seconds / TRANSIENTS
    # The call that showed the update may have ended after the edge.
    min_joules = joules if update.until <= at else joules - peak_watts * (update.until - at)
    max_joules = joules + peak_watts * (at - after)
    if start is not None and edge.sums is not None:  # the power is a closer bound than the peak
        since = integrated_energy(start._replace(sums=PowerSums()), edge, at - start.at, peak_watts, average_seconds)
        start_min, start_max = _bounds(start, update, peak_watts, period_seconds, average_seconds)
        joules, off_joules = since.energy_joules or 0.0, since.uncertainty_joules or 0.0
        min_joules = max(min_joules, start_min + joules - off_joules)
        max_joules = min(max_joules, start_max + joules + off_joules)
    next_joules = update.next_joules
    if next_joules is not None:
        if next_joules < max_joules:
            max_joules = next_joules
        next_joules -= peak_watts * (update.next_until - at)
        if next_joules > min_joules:
            min_joules = next_joules
    return min_joules, max_joules


def _likely(
    begin: GpuEdge, end: GpuEdge, seconds: float, period_seconds: float, may_be_steady: bool
) -> tuple[float | None, float]:
    """Compute the likeliest energy, None without a reading, and its uncertainty, infinite with the counter alone.

    The likeliest energy is what the counter shows, and the power readings since its updates.
    """
    first, last, begin_watts, end_watts = begin.update, end.update, begin.power_watts, end.power_watts
    assert first is not None
    assert last is not None
    if begin_watts is None:
        begin_watts = end_watts
    if end_watts is None:
        end_watts = begin_watts
    difference_joules = last.joules - first.joules
    if begin_watts is None or end_watts is None:
        return (difference_joules or None), math.inf
    watts = (begin_watts + end_watts) / 2
    change_watts = end_watts - begin_watts
    if may_be_steady and difference_joules > 0 and -_SAME_POWER * watts <= change_watts <= _SAME_POWER * watts:
        update_joules = watts * period_seconds
        updates = difference_joules / update_joules if update_joules > 0 else 0.5
        whole_updates = round(updates)
        lag_seconds = seconds - whole_updates * period_seconds
        if abs(updates - whole_updates) <= _WHOLE_UPDATES and whole_updates > 0 and abs(lag_seconds) < period_seconds:
            return difference_joules + watts * lag_seconds, _STEADY_UNCERTAINTY * update_joules
    if seconds < period_seconds and last.after <= begin.at:
        return watts * seconds, math.inf  # it is not known when the counter was updated within the window, if it was
    held_joules = end.held_joules - begin.held_joules
    unseen_seconds = _unseen_seconds(end, last, period_seconds) - _unseen_seconds(begin, first, period_seconds)
    return difference_joules + held_joules + watts * unseen_seconds, math.inf


def _unseen_seconds(edge: GpuEdge, update: CounterUpdate, period_seconds: float) -> float:
    """Return the likely time between an update and the reading that showed it."""
    after, until = update.after, update.until
    if edge.at - period_seconds > after:
        after = edge.at - period_seconds
    return (until - after) / 2 if until > after else 0.0
