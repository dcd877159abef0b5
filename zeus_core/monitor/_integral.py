"""The energy of a GPU without an energy counter, from samples of its power. Pure.

A sensor shows the power of up to a while ago, and a sample holds until the next. So a change of the power shows later
than it happened, by a time between 0 and D, the sensor's delay and the time between two samples. Taken in the middle,
each change is wrong by at most half of D times its size. Over many changes these errors cancel, since a rise and a fall
show late alike. The latest part of a window may hold a change that no sample shows yet: there the GPU may have drawn
anything.
"""

from __future__ import annotations

from math import sqrt

from zeus_core.attribution.sensor import CANCELLING, SENSOR_DELAY_SECONDS
from zeus_core.measurement import DeviceEnergy
from zeus_core.monitor.reading import GpuEdge, PowerSums

# Of the energy, for bursts shorter than the time between two samples, which show in no sample.
_UNSEEN_FRACTION = 0.02
# Samples come every 0.05 s, give or take half of that. Beyond this the GPU may have drawn anything: nobody sampled it,
# or the interpreter was busy.
_MAX_GAP_SECONDS = 0.2

_MOST_UNSURE = 0.5  # of an energy that impossible readings left unknown in part; beyond, it counts as lost


def next_sums(last: GpuEdge | None, at: float, power_watts: float, peak_watts: float) -> PowerSums:
    """Add a sample to the sums of the one before.

    Args:
        last: The sample before; None at the first one.
        at: When the sample was taken.
        power_watts: The power.
        peak_watts: The most the GPU can draw.
    """
    if last is None or last.power_watts is None or last.sums is None:
        return PowerSums()
    seconds = at - last.at
    change_watts = abs(power_watts - last.power_watts)
    sums = last.sums
    late_joules = change_watts * (seconds + SENSOR_DELAY_SECONDS)
    mean_watts = (last.power_watts + power_watts) / 2
    unseen_joules = _UNSEEN_FRACTION * mean_watts * seconds
    if seconds > _MAX_GAP_SECONDS:
        unseen_joules += max(mean_watts, peak_watts - mean_watts) * (seconds - _MAX_GAP_SECONDS)
    return PowerSums(
        sums.energy_joules + mean_watts * seconds,
        sums.change_watts + change_watts,
        sums.delay_joules + change_watts * seconds,
        sums.squares + late_joules * late_joules,
        sums.unseen_joules + unseen_joules,
        sums.dropped,
    )


def bridging_sums(last: GpuEdge | None, at: float, good_at: float, peak_watts: float) -> tuple[float, PowerSums] | None:
    """Bridge a sample that was dropped: hold the one before, while the GPU may have drawn anything.

    Args:
        last: The sample before; None if there is none.
        at: When the sample was taken.
        good_at: When the latest good one was.
        peak_watts: The most the GPU can draw.

    Returns:
        The power and the sums; None if too many samples in a row were dropped.
    """
    if last is None or last.power_watts is None or last.sums is None:
        return peak_watts / 2, PowerSums(dropped=1)
    if at - good_at <= _MAX_GAP_SECONDS:
        watts, unseen_seconds = last.power_watts, at - last.at
    elif last.at == good_at:  # nobody has sampled since: the first bad one
        watts, unseen_seconds = peak_watts / 2, _MAX_GAP_SECONDS
    else:
        return None
    sums = next_sums(last, at, watts, peak_watts)
    unseen_joules = sums.unseen_joules + max(watts, peak_watts - watts) * unseen_seconds
    return watts, sums._replace(unseen_joules=unseen_joules, dropped=sums.dropped + 1)


def integrated_energy(
    begin: GpuEdge, end: GpuEdge, seconds: float, peak_watts: float, average_seconds: float
) -> DeviceEnergy:
    """Compute the energy between two edges that are samples of the power.

    Args:
        begin: The first edge.
        end: The second edge.
        seconds: The time between them.
        peak_watts: The most the GPU can draw.
        average_seconds: The time over which the sensor averages.
    """
    first, last, begin_watts, end_watts = begin.sums, end.sums, begin.power_watts, end.power_watts
    if first is None or last is None or begin_watts is None or end_watts is None:
        return DeviceEnergy.lost(begin.fault or end.fault or "the GPU has no power reading")
    late_seconds = (average_seconds + SENSOR_DELAY_SECONDS) / 2
    energy_joules = last.energy_joules - first.energy_joules + (end_watts - begin_watts) * late_seconds
    change_watts = last.change_watts - first.change_watts
    late_joules = (last.delay_joules - first.delay_joules + change_watts * SENSOR_DELAY_SECONDS) / 2
    seen_joules = min(late_joules, CANCELLING * sqrt(max(last.squares - first.squares, 0.0)))
    averaged_joules = average_seconds * (_spread(begin_watts, peak_watts) + _spread(end_watts, peak_watts))
    unseen_joules = last.unseen_joules - first.unseen_joules
    reach_joules = seen_joules + averaged_joules + unseen_joules
    recent_seconds = min(SENSOR_DELAY_SECONDS, seconds)
    min_joules = max(energy_joules - reach_joules - end_watts * recent_seconds, 0.0)
    max_joules = energy_joules + reach_joules + max(peak_watts - end_watts, 0.0) * recent_seconds
    max_joules = min(max_joules, peak_watts * seconds)
    likely_joules = min(max(energy_joules, 0.0), max_joules)
    # Samples beyond the bound contradict it, and one of the two is wrong.
    uncertainty_joules = max(max_joules - likely_joules, likely_joules - min_joules, energy_joules - likely_joules)
    if last.dropped > first.dropped and uncertainty_joules > _MOST_UNSURE * likely_joules:
        return DeviceEnergy.lost(f"{last.dropped - first.dropped} readings of the power were impossible")
    return DeviceEnergy(likely_joules, uncertainty_joules, "integrated")


def _spread(mean_watts: float, peak_watts: float) -> float:
    """Return how far, for each second of averaging, a mean leaves it open when its energy was used.

    With the mean m over a second and the peak P, the energy-weighted moment lies between m/2P from the end and m/2P
    from the beginning: half of m, give or take (m - m^2/P) / 2.
    """
    return max(mean_watts * (1 - mean_watts / peak_watts), 0.0) / 2
