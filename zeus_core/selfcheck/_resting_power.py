"""The power of a GPU that rests, that waits and that works."""

from __future__ import annotations

import time
from collections.abc import Iterator

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
    return Finding(name, watts, "W", note=f"+- {uncertainty:.1f} W, {measurement.gpu_method[0]}")
