"""Sums of many short windows: the true sum lies within the sum of their uncertainties, in at least 95 % of the runs.

Windows of one class, such as short evaluations between loaded steps, err in the same direction: the sum of their
uncertainties is needed, and the root of the sum of squares would be too narrow.
"""

import math
import random

import pytest

from tests.support.scripted_gpu import HIGHEST_LIMIT_WATTS, ScriptedGpu, Senses
from tests.support.variants import long_but_first
from zeus_core.device.cpu import CpuDiscovery
from zeus_core.monitor import ZeusMonitor
from zeus_core.testing import VirtualTime

NO_CPUS = CpuDiscovery(cpus=(), unavailable_because="not part of these tests")
RUNS = 24
WINDOWS = 30


def summed(seed, window_seconds, period_seconds, precise):
    """Sum 30 windows between steps; return the measurement, the truth, and the root of the sum of squares."""
    chance = random.Random(seed)
    step_seconds = chance.choice([0.05, 0.2, 0.2, 0.5])
    loaded, other = chance.uniform(250, HIGHEST_LIMIT_WATTS), chance.uniform(50, HIGHEST_LIMIT_WATTS)
    script = []
    for _ in range(WINDOWS + 1):
        script += [(step_seconds * chance.uniform(0.95, 1.05), loaded), (window_seconds, other)]
    senses = Senses(
        counter_period_seconds=period_seconds or 0.1,
        counter_jitter=chance.choice([0.0, 0.03]),
        sensor_period_seconds=chance.choice([0.0, 0.02, 0.05, 0.1]),
        lag_seconds=chance.choice([0.0, 0.01, 0.03]),
        has_counter=period_seconds is not None,
        seed=seed,
    )
    time_source = VirtualTime()
    gpu = ScriptedGpu(script, time_source, senses)
    monitor = ZeusMonitor(gpus=[gpu], cpus=NO_CPUS, time_source=time_source)
    every = 0.05 if period_seconds is None else 0.004 if precise else math.inf  # as it reads in the background
    ends, at = [], 0.0
    for seconds, _ in script:
        at += seconds
        ends.append(at)
    windows, truth, next_read = [], 0.0, every
    for number in range(WINDOWS):
        begin, end = ends[2 * number], ends[2 * number + 1]
        readings = []
        for moment in (begin, end):
            while next_read < moment:
                time_source.advance(gpu.start_seconds + next_read - time_source.now())
                monitor.read()
                next_read += every
            time_source.advance(gpu.start_seconds + moment - time_source.now())
            readings.append(monitor.read())
        windows.append(monitor.between(*readings))
        truth += gpu.energy_at(end) - gpu.energy_at(begin)
    squares = sum(window.total_uncertainty_joules**2 for window in windows)
    return sum(windows), truth, math.sqrt(squares)


@pytest.mark.parametrize(
    ("window_seconds", "period_seconds", "precise"),
    long_but_first(
        [
            (0.03, 0.1, True),
            *((seconds, period, False) for seconds in (0.01, 0.03) for period in (0.02, 0.1, None)),
            (0.01, 0.1, True),
            (0.01, 0.02, True),
            (0.03, 0.02, True),
        ],
        7,
    ),
)
def test_the_true_sum_lies_within_the_sum_of_the_uncertainties(window_seconds, period_seconds, precise):
    runs = [summed(seed, window_seconds, period_seconds, precise) for seed in range(RUNS)]
    hits = [
        abs(measurement.total_energy - truth) <= measurement.total_uncertainty_joules for measurement, truth, _ in runs
    ]
    assert sum(hits) >= 0.95 * RUNS


def test_the_errors_of_such_windows_are_not_independent():
    runs = [summed(seed, 0.03, 0.1, False) for seed in range(RUNS)]
    hits = [abs(measurement.total_energy - truth) <= root for measurement, truth, root in runs]
    assert sum(hits) < 0.95 * RUNS
