"""The power of a GPU that rests, waits and works; how often and how regularly its counter is updated."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from zeus_core.errors import NotSupportedError
from zeus_core.measurement import Measurement
from zeus_core.selfcheck._bench import Bench, Finding


def check_idle(bench: Bench) -> Iterator[Finding]:
    """Measure the GPU before this process uses it."""
    yield _power("idle, before this process has used it", bench.measure(bench.seconds(8.0, 0.3)))


def check_resting_power(bench: Bench) -> Iterator[Finding]:
    """Measure the GPU with a context and no work, while it waits as in a collective, and while it trains."""
    seconds = bench.seconds(8.0, 0.2)
    with bench.running():
        training = bench.measure(seconds)
    time.sleep(bench.seconds(10.0, 0.1))  # clocks fall some seconds after the last kernel
    yield _power("no work, after a rest of 10 s", bench.measure(seconds))
    try:
        bench.load.block(0.01)
        bench.monitor.begin_window("blocked", sync_execution=False, restart=True)
        bench.load.block(seconds)
        yield _power("waiting, as for other ranks", bench.monitor.end_window("blocked", sync_execution=False))
    except NotSupportedError as error:
        bench.monitor.cancel("blocked")
        yield Finding("waiting, as for other ranks", None, "W", note=str(error))
    yield _power("training", training)


def _power(name: str, measurement: Measurement) -> Finding:
    watts = measurement.average_power_watts
    if watts is None:
        return Finding(name, None, "W", note="; ".join(measurement.lost_because.values()))
    uncertainty = (measurement.total_uncertainty_joules or 0.0) / measurement.time
    method = measurement.of("gpu")[0].method
    return Finding(name, watts, "W", note=f"+- {uncertainty:.1f} W, {method}")


_POLL_SECONDS = 0.001  # a twentieth of the shortest known period
_LATE_FRACTION = 0.15  # as far as the monitor takes a period for another (`device/nvml/_energy_counter.py`)


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
