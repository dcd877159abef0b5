"""Whether stated uncertainties are true: windows in windows, and windows of work that repeats.

And marks in the stream of the device, which time instructions by the host's clock, beside CUDA's own events.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import numpy as np

from zeus_core.errors import NotSupportedError
from zeus_core.measurement import Measurement
from zeus_core.selfcheck._bench import Bench, Finding

# By seconds of a window: how many of them. Longer ones say less often what shorter ones have not.
_WINDOWS = {0.05: 40, 0.1: 40, 0.3: 30, 1.0: 12, 3.0: 5}
_QUICK_WINDOWS = {0.05: 3, 0.15: 3}
_PROMISED_SHARE = 0.95
_POLL_SECONDS = 0.02
_MAX_DISAGREEMENT_FRACTION = 0.05  # of counter and power sensor: as much as vendors state for the sensor


def check_truth(bench: Bench) -> Iterator[Finding]:
    """Compare windows with the windows around them.

    Under a constant load the energy of a window is the power of a long window around it times its time: its error is
    known almost exactly. Under any load, parts must add up to the whole within all stated uncertainties.
    """
    windows = _QUICK_WINDOWS if bench.is_quick else _WINDOWS
    with bench.running():
        for seconds, count in windows.items():
            yield from _constant(bench, seconds, count)
    agree = [_parts_add_up(bench) for _ in range(bench.count(8, 2))]
    yield Finding(
        "windows of a changing load whose three parts add up to them",
        100 * sum(agree) / len(agree),
        "%",
        all(agree),
        f"{len(agree)} windows, each read apart from its parts",
    )


def _constant(bench: Bench, seconds: float, count: int) -> Iterator[Finding]:
    monitor = bench.monitor
    monitor.begin_window("around", sync_execution=False, restart=True)
    parts = [bench.measure(seconds) for _ in range(count)]
    around = monitor.end_window("around", sync_execution=False)
    whole, known = around.total_energy, [part for part in parts if part.total_energy is not None]
    if whole is None or not known:
        yield Finding(f"windows of {seconds:g} s", None, "%", note=str(around.lost_because or "energies were lost"))
        return
    power_watts, power_uncertainty = whole / around.time, (around.total_uncertainty_joules or 0.0) / around.time
    errors = [abs((part.total_energy or 0.0) - power_watts * part.time) for part in known]
    stated = [part.total_uncertainty_joules or 0.0 for part in known]
    inside = [
        error <= uncertainty + power_uncertainty * part.time
        for error, uncertainty, part in zip(errors, stated, known, strict=True)
    ]
    share = sum(inside) / len(inside)
    true = [power_watts * part.time for part in known]
    error, width = (100 * float(np.median(np.divide(joules, true))) for joules in (errors, stated))
    yield Finding(
        f"windows of {seconds:g} s whose energy is within the stated uncertainty",
        100 * share,
        "%",
        len(inside) - sum(inside) <= math.ceil((1 - _PROMISED_SHARE) * len(inside)),
        f"{len(known)} windows; median error {error:.2f} %, median stated {width:.2f} %",
    )


def _parts_add_up(bench: Bench) -> bool:
    """Measure rest, work and rest, in one window and in three."""
    monitor, parts = bench.monitor, list[Measurement]()
    monitor.begin_window("around", sync_execution=False, restart=True)
    for is_working in (False, True, False):
        monitor.begin_window("part", sync_execution=False, restart=True)
        end = time.monotonic() + bench.seconds(0.4, 0.1)
        while time.monotonic() < end:
            if is_working:
                bench.load.step()
                bench.load.synchronize()
            else:
                time.sleep(0.01)
        parts.append(monitor.end_window("part", sync_execution=False))
    whole = monitor.end_window("around", sync_execution=False)
    together = sum(parts[1:], parts[0])
    if whole.total_energy is None or together.total_energy is None:
        return False
    bound = (whole.total_uncertainty_joules or 0.0) + (together.total_uncertainty_joules or 0.0)
    # Between two parts, the GPU draws energy that belongs to the whole alone.
    between = (whole.time - together.time) * bench.gpu.read_power_limit_range_watts().highest_watts
    return bool(abs(whole.total_energy - together.total_energy) <= bound + between)


def check_agreement(bench: Bench) -> Iterator[Finding]:
    """Compare the energy counter with the integral of the power readings."""
    with bench.running():
        yield from _compare(bench, "constant load", bench.seconds(10.0, 0.4), None)
    time.sleep(bench.seconds(2.0, 0.1))
    yield from _compare(bench, "load of 1 s in 2 s", bench.seconds(12.0, 0.5), bench.seconds(1.0, 0.2))


def _compare(bench: Bench, name: str, seconds: float, half_period_seconds: float | None) -> Iterator[Finding]:
    """Poll counter and power together; compare them between the first and the last update that were seen."""
    gpu, begin = bench.gpu, time.monotonic()
    latest_joules, integral = gpu.read_energy_counter_joules(), 0.0
    latest_seconds, latest_watts = begin, gpu.read_power_watts()
    updates: list[tuple[float, float]] = []
    while (now := time.monotonic()) - begin < seconds:
        integral += latest_watts * (now - latest_seconds)
        latest_seconds, latest_watts = now, gpu.read_power_watts()
        joules = gpu.read_energy_counter_joules()
        if joules != latest_joules:
            latest_joules = joules
            updates.append((joules, integral))
        if half_period_seconds is not None and int((now - begin) / half_period_seconds) % 2:
            bench.load.step()
            bench.load.synchronize()
        else:
            time.sleep(_POLL_SECONDS)
    if len(updates) < 2 or updates[-1][1] <= updates[0][1]:
        yield Finding(f"counter over integrated power, {name}", None, "", note="the counter was not updated twice")
        return
    (first_joules, first_integral), (last_joules, last_integral) = updates[0], updates[-1]
    ratio = (last_joules - first_joules) / (last_integral - first_integral)
    # A load that changes within the time that the sensor averages, or that a step takes, is integrated less well.
    holds = abs(ratio - 1) <= _MAX_DISAGREEMENT_FRACTION if half_period_seconds is None else None
    yield Finding(f"counter over integrated power, {name}", ratio, "", holds, f"{last_joules - first_joules:.0f} J")


_MAX_DIFFERENCE_SECONDS = 50e-6  # of a step: two marks and two events are four kernels of some microseconds


def check_marks(bench: Bench) -> Iterator[Finding]:
    """Time steps both ways, for longer than one anchor of the marks (4 s) serves."""
    compare = getattr(bench.load, "mark_errors_seconds", None)
    if compare is None:
        raise NotSupportedError("the load has no CUDA device")
    found = list(compare(bench.monitor.time_source, bench.seconds(12.0, 0.5)))
    if not found:
        raise NotSupportedError("no step was timed by marks")
    differences, lags, inside = (
        np.array([row[0] for row in found]),
        [row[1] for row in found],
        [row[2] for row in found],
    )
    low, median, high = 1e6 * np.quantile(differences, [0.05, 0.5, 0.95])
    yield Finding(
        "a step by marks, less that by events; median",
        float(median),
        "us",
        bool(np.median(np.abs(differences)) <= _MAX_DIFFERENCE_SECONDS),
        f"{len(found)} steps; 5 to 95 %: {low:.1f} to {high:.1f} us",
    )
    yield Finding(
        "marks whose time is after the host submitted them and before it saw them",
        100 * sum(inside) / len(inside),
        "%",
        all(inside),
        f"the host saw them {1e6 * float(np.median(lags)):.0f} us later, in the median",
    )
