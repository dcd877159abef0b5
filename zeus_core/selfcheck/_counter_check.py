"""The energy counter: how often it is updated, how regularly, and whether that is as the monitor assumes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from zeus_core.selfcheck._bench import Bench, Finding

_POLL_SECONDS = 0.001  # a twentieth of the shortest known period
_LATE_FRACTION = 0.15  # as far as the monitor takes a period for another (`device/nvml/_counter_period.py`)


def check_counter(bench: Bench) -> Iterator[Finding]:
    """Watch the counter and the power reading while the GPU works."""
    assumed = bench.gpu.energy_counter_period_seconds
    yield Finding("period the monitor assumes", 1000 * assumed, "ms")
    with bench.running():
        updates = _update_times(bench.gpu.read_energy_counter_joules, bench.seconds(20.0, 0.6))
        readings = _update_times(bench.gpu.read_power_watts, bench.seconds(8.0, 0.1))
    if len(updates) < 3:
        yield Finding("period of the counter", None, "ms", note="fewer than three updates were seen")
        return
    periods = np.diff(updates)
    low, high = np.quantile(periods, [0.05, 0.95])
    is_as_assumed = bool(np.median(periods) <= assumed * (1 + _LATE_FRACTION) + _POLL_SECONDS)
    yield Finding(
        "period of the counter, median",
        1000 * float(np.median(periods)),
        "ms",
        is_as_assumed,
        f"{len(updates)} updates; 5 to 95 %: {1000 * low:.1f} to {1000 * high:.1f} ms",
    )
    yield Finding("jitter of the period, standard deviation", 1000 * float(np.std(periods)), "ms")
    yield Finding("longest period", 1000 * float(np.max(periods)), "ms")
    if len(readings) >= 3:
        yield Finding(
            "time between changes of the power reading, median", 1000 * float(np.median(np.diff(readings))), "ms"
        )
    else:
        yield Finding("time between changes of the power reading", None, "ms", note="the reading did not change")


def _update_times(read: Callable[[], float], seconds: float) -> list[float]:
    """Return the moments at which a value was seen to have changed; that is up to 1 ms late."""
    begin, latest, times = time.monotonic(), read(), list[float]()
    while time.monotonic() - begin < seconds:
        time.sleep(_POLL_SECONDS)
        value = read()
        if value != latest:
            latest = value
            times.append(time.monotonic())
    return times
