"""The energy of one GPU between two edges, and the interval that holds the truth. Pure.

An energy counter stands still for a period p and then shows the energy up to that moment. With C and t the counter and
the time at the edges, and r the energy since the counter's latest step,

    E = (C1 + r1) - (C0 + r0),    0 <= r <= p * peak power

so the difference of the counters is off by at most one period of peak power. Three things narrow that. An edge that
was watched until the counter's next step tells its r. A GPU that drew the same power P all the time has stepped by P p
each time, n times, and the lags of the edges differ by T - n p: then E = C1 - C0 + P (T - n p), and that this was so
shows in C1 - C0 being n steps of P p. And the edges' power tells how r0 and r1 differ.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from zeus_core.measurement import Method
from zeus_core.monitor._edge import Edge, RunningEnergy

__all__ = ["DeviceEnergy", "counted_energy", "lost"]

_SAME_POWER = 0.03  # two readings of a constant power, relatively
_WHOLE_STEPS = 0.02  # how far a difference of counters may be from a whole number of steps
_STEADY_HALF_WIDTH = 0.45  # of a step: a load that only looks steady is off by less in most cases
_STUCK_PERIODS = 4  # without a step this long a counter is stuck
_IMPLAUSIBLE = 2.0  # times the peak power: the counter has jumped


class DeviceEnergy(NamedTuple):
    """The energy of one device in one window, how it was obtained and how far it can be off; see `Measurement`."""

    energy_joules: float | None
    method: Method
    uncertainty_joules: float | None
    lost_because: str | None = None


def lost(reason: str) -> DeviceEnergy:
    """An energy that could not be measured."""
    return DeviceEnergy(None, "lost", None, reason)


def counted_energy(
    begin: Edge, end: Edge, period_seconds: float, peak_watts: float, has_instant_power: bool = True
) -> DeviceEnergy:
    """The energy between two edges of a GPU that has a counter.

    Args:
        begin: The first edge.
        end: The second edge.
        period_seconds: How long the counter stands still, at most.
        peak_watts: The most the GPU can draw.
        has_instant_power: Whether the edges' power is that of the moment. An average over longer than the counter's
            period tells nothing of what the counter has not shown yet.
    """
    fault = begin.fault or end.fault
    if fault is not None:
        return lost(fault)
    assert begin.counter_joules is not None
    assert end.counter_joules is not None
    elapsed_seconds = end.at - begin.at
    difference_joules = end.counter_joules - begin.counter_joules
    period_joules = peak_watts * period_seconds
    is_stuck = difference_joules == 0 and elapsed_seconds > _STUCK_PERIODS * period_seconds
    has_jumped = difference_joules > _IMPLAUSIBLE * (peak_watts * elapsed_seconds + period_joules)
    if is_stuck or has_jumped or difference_joules < 0:
        return lost(_broken_counter(difference_joules, elapsed_seconds))
    if begin.pending is not None:
        return _aligned_energy(begin, end, difference_joules, period_seconds, peak_watts)
    first_watts = end.power_watts if begin.power_watts is None else begin.power_watts
    last_watts = first_watts if end.power_watts is None else end.power_watts
    if first_watts is None or last_watts is None:
        if difference_joules == 0:
            return lost("the energy counter did not step, and the power could not be read")
        return DeviceEnergy(difference_joules, "counted", period_joules)
    estimate_joules, half_width_joules = _estimate(
        difference_joules, elapsed_seconds, first_watts, last_watts, period_seconds
    )
    if not has_instant_power:
        half_width_joules = math.inf
        if elapsed_seconds >= period_seconds:
            estimate_joules = difference_joules
    lowest_joules = max(0.0, difference_joules - period_joules)
    highest_joules = min(difference_joules + period_joules, max(peak_watts, first_watts, last_watts) * elapsed_seconds)
    if estimate_joules > highest_joules:
        estimate_joules = highest_joules
    if estimate_joules < lowest_joules:
        estimate_joules = lowest_joules
    reach_joules = max(highest_joules - estimate_joules, estimate_joules - lowest_joules)
    method: Method = "counted" if difference_joules > 0 else "estimated"
    return DeviceEnergy(estimate_joules, method, min(reach_joules, half_width_joules))


def _aligned_energy(
    begin: Edge, end: Edge, difference_joules: float, period_seconds: float, peak_watts: float
) -> DeviceEnergy:
    """The energy where it is known what the counter did not show at the first edge, and maybe at the second.

    Where it is not known at the second, it is likely half a period of the mean power: the power at that moment tells
    less, as a window often ends with a wait for the GPU.
    """
    assert begin.pending is not None
    end_pending = end.pending
    if end_pending is None:
        elapsed_seconds = max(end.at - begin.at, period_seconds)
        mean_watts = min((difference_joules - begin.pending.energy_joules) / elapsed_seconds, peak_watts)
        likely_joules = period_seconds / 2 * max(mean_watts, 0.0)
        end_pending = RunningEnergy(likely_joules, period_seconds * peak_watts - likely_joules)
    energy_joules = difference_joules + end_pending.energy_joules - begin.pending.energy_joules
    doubt_joules = begin.pending.doubt_joules + end_pending.doubt_joules
    return DeviceEnergy(max(energy_joules, 0.0), "counted", doubt_joules)


def _broken_counter(difference_joules: float, elapsed_seconds: float) -> str:
    """What is wrong with a counter that moved so."""
    if difference_joules < 0:
        return f"the energy counter went back by {-difference_joules:g} J, as it does when the driver is loaded again"
    if difference_joules == 0:
        return f"the energy counter stood still for {elapsed_seconds:.3g} s"
    return f"the energy counter jumped by {difference_joules:g} J in {elapsed_seconds:.3g} s"


def _estimate(
    difference_joules: float, elapsed_seconds: float, first_watts: float, last_watts: float, period_seconds: float
) -> tuple[float, float]:
    """The likeliest energy, and how far it can be off beyond what the counter guarantees."""
    power_watts = (first_watts + last_watts) / 2
    step_joules = power_watts * period_seconds
    change_watts = last_watts - first_watts
    if step_joules > 0 and abs(change_watts) <= _SAME_POWER * power_watts:
        steps = difference_joules / step_joules
        whole_steps = round(steps)
        lag_seconds = elapsed_seconds - whole_steps * period_seconds
        if abs(steps - whole_steps) <= _WHOLE_STEPS and abs(lag_seconds) < period_seconds:
            return difference_joules + power_watts * lag_seconds, _STEADY_HALF_WIDTH * step_joules
    if elapsed_seconds < period_seconds:
        return power_watts * elapsed_seconds, math.inf
    return difference_joules + period_seconds / 2 * change_watts, math.inf
