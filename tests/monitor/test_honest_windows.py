"""Whatever a GPU does and however badly it is seen, the true energy of a window lies in the stated interval.

Random loads, counters, sensors and faults, in virtual time. The truth lies in the interval of at least 95 % of the
windows of each class: a kind of load or a length, with edges where the load changes or anywhere.
"""

import collections
import itertools
import random
import statistics

import pytest

from tests.support.scripted_gpu import HIGHEST_LIMIT_WATTS, CounterFault, ScriptedGpu, Senses
from tests.support.variants import long_but_first
from zeus_core.device.cpu import CpuDiscovery
from zeus_core.monitor import ZeusMonitor
from zeus_core.testing import VirtualTime

NO_CPUS = CpuDiscovery(cpus=(), unavailable_because="not part of these tests")
SCRIPT_SECONDS = 14.0
LENGTHS_SECONDS = (0.03, 0.1, 0.3, 1.0, 3.0, 60.0)
FEWEST_OF_A_CLASS = 20
# Seconds between two readings in the background, and the number of scripts.
WAYS = {
    "plain": (None, 48),
    "read now and then": (0.2, 32),
    "watched": (0.08, 32),
    "precise": (0.004, 16),
    "without a counter": (0.05, 40),
    "without a counter, mean over a second": (0.05, 40),
}


def between(chance, low, high):
    return low * (high / low) ** chance.random()


def random_script(chance):
    kind = chance.choice(["random", "training", "bursty", "bursts", "steady"])
    loaded, idle = chance.uniform(250, HIGHEST_LIMIT_WATTS), chance.uniform(50, 120)
    evaluation = [(chance.choice([0.03, 0.1, 0.26, 1.0]), idle + 60)]
    script, seconds = [], 0.0
    while seconds < SCRIPT_SECONDS:
        parts = {
            "random": [(between(chance, 0.005, 5), chance.uniform(50, HIGHEST_LIMIT_WATTS))],
            "training": [(between(chance, 0.05, 0.3), loaded), (between(chance, 0.005, 0.05), idle)]
            * chance.randint(1, 8)
            + evaluation * chance.randint(0, 1),
            "bursty": [(0.2, loaded), (0.1, idle)],
            "bursts": [(chance.uniform(0.3, 2), idle), (chance.uniform(0.01, 0.08), loaded)],
            "steady": [(chance.uniform(3, 9), chance.choice([loaded, idle]))],
        }[kind]
        script += parts
        seconds += sum(duration for duration, _ in parts)
    return kind, script


def random_senses(chance, way, seed):
    return Senses(
        counter_period_seconds=chance.choice([0.02, 0.1]),
        counter_jitter=chance.choice([0.0, 0.03, 0.1]),
        sensor_period_seconds=chance.choice([0.0, 0.02, 0.05, 0.1]),
        sensor_jitter=chance.choice([0.0, 0.1]),
        sensor_average_seconds=1.0 if "mean" in way else 0.0,
        lag_seconds=chance.choice([0.0, 0.01, 0.03]),
        has_counter="without" not in way,
        seed=seed,
    )


def random_faults(chance):
    moment = chance.uniform(1, 4)
    while moment < SCRIPT_SECONDS - 3:
        seconds = between(chance, 0.5, 3)
        yield chance.choice(
            [
                CounterFault(moment, moment + seconds),
                CounterFault(moment, moment + seconds, drop_joules=None),
                CounterFault(moment, moment + seconds, fails=True),
                CounterFault(moment, moment, drop_joules=chance.uniform(500, 5000)),
                CounterFault(moment, moment + seconds, fails=True, drop_joules=1e5),
                CounterFault(moment, 1e9),
            ]
        )
        moment += seconds + chance.uniform(2, 8)


def random_windows(chance, script):
    """The begin and the end of windows, and whether these are where the load changes."""
    changes = list(itertools.accumulate((duration for duration, _ in script), initial=0.0))
    for _ in range(24):
        first = chance.randrange(len(changes) - 1)
        last = min(first + chance.choice([1, 1, 1, 2, 3, 8, 30]), len(changes) - 1)
        yield changes[first], changes[last], "at changes"
        begin = chance.uniform(0, SCRIPT_SECONDS - 5)
        yield begin, begin + between(chance, 0.005, 5), "anywhere"


def measured_windows(way, seed, with_faults=False):
    """Measure windows of a random script; yields class, seconds, energy, true energy and period of the counter."""
    chance = random.Random(f"{way} {seed}")
    kind, script = random_script(chance)
    faults = list(random_faults(chance)) if with_faults else []
    time_source = VirtualTime()
    gpu = ScriptedGpu(script, time_source, random_senses(chance, way, seed), faults)
    monitor = ZeusMonitor(gpus=[gpu], cpus=NO_CPUS, time_source=time_source)
    windows = list(random_windows(chance, script))
    moments = {moment for begin, end, _ in windows for moment in (begin, end)}
    if (every := WAYS[way][0]) is not None:
        gaps = itertools.accumulate(every * chance.uniform(1.0, 1.3) for _ in range(int(SCRIPT_SECONDS / every)))
        moments.update(gaps)
    ending = collections.defaultdict(list)
    for begin, end, edges in windows:
        ending[end].append((begin, edges))
    readings = {}
    for moment in sorted(moments):
        time_source.advance(gpu.start_seconds + moment - time_source.now())
        readings[moment] = monitor.read()
        for begin, edges in ending[moment]:  # at once, as a window does: later readings know more
            (energy,) = monitor.between(readings[begin], readings[moment]).devices.values()
            truth = gpu.energy_at(moment) - gpu.energy_at(begin)
            yield (kind, edges), moment - begin, energy, truth, gpu.energy_counter_period_seconds


def by_class(way, with_faults=False):
    """Hits and half-widths of the measured windows, by class."""
    classes = collections.defaultdict(list)
    for seed in range(WAYS[way][1]):
        for kind, seconds, energy, truth, period in measured_windows(way, seed, with_faults):
            if energy.energy_joules is None:
                continue
            assert energy.energy_joules <= 1.1 * HIGHEST_LIMIT_WATTS * seconds + 1e-6
            length = next(length for length in LENGTHS_SECONDS if seconds <= length)
            hit = abs(energy.energy_joules - truth) <= energy.uncertainty_joules + 1e-3
            for name in (kind, (length, period, kind[1])):
                classes[name].append(
                    (hit, energy.uncertainty_joules / truth, abs(energy.energy_joules - truth) / truth)
                )
    return {name: rows for name, rows in classes.items() if len(rows) >= FEWEST_OF_A_CLASS}


@pytest.mark.parametrize(
    ("way", "with_faults"),
    long_but_first(
        [
            *((way, False) for way in WAYS if way != "precise"),
            ("read now and then", True),
            ("watched", True),
            ("precise", True),
            ("precise", False),
        ],
        len(WAYS) + 2,
    ),
)
def test_the_truth_lies_in_the_interval_of_every_class_of_window(way, with_faults):
    classes = by_class(way, with_faults)
    assert len(classes) >= 20
    for name, rows in sorted(classes.items(), key=str):
        hits = sum(hit for hit, _, _ in rows) / len(rows)
        half_width, error = (statistics.median(row[column] for row in rows) for column in (1, 2))
        print(f"{way} {name!s:36} {len(rows):4} windows: {hits:.3f}, half-width {half_width:.3f}, error {error:.3f}")
        assert hits >= 0.95, name


def test_a_gpu_without_a_counter_that_nobody_sampled_may_have_drawn_anything():
    time_source = VirtualTime()
    gpu = ScriptedGpu([(0.5, 60.0), (4.0, 390.0), (60.0, 60.0)], time_source, Senses(has_counter=False))
    monitor = ZeusMonitor(gpus=[gpu], cpus=NO_CPUS, time_source=time_source)
    begin = monitor.read()
    time_source.advance(5.0)
    (energy,) = monitor.between(begin, monitor.read()).devices.values()
    assert abs(energy.energy_joules - gpu.energy_at(5.0)) <= energy.uncertainty_joules


def test_sums_and_differences_of_windows_hold_the_truth():
    for seed in range(20):
        chance = random.Random(seed)
        _, script = random_script(chance)
        time_source = VirtualTime()
        gpu = ScriptedGpu(script, time_source, random_senses(chance, "plain", seed))
        monitor = ZeusMonitor(gpus=[gpu], cpus=NO_CPUS, time_source=time_source)
        moments = list(itertools.accumulate(duration for duration, _ in script))[:60]
        readings = []
        for moment in moments:
            time_source.advance(gpu.start_seconds + moment - time_source.now())
            readings.append(monitor.read())
        windows = [monitor.between(first, second) for first, second in itertools.pairwise(readings)]
        whole, odd = monitor.between(readings[0], readings[-1]), sum(windows[::2])
        powers = [gpu.energy_at(second) - gpu.energy_at(first) for first, second in itertools.pairwise(moments)]
        for measurement, truth in [
            (sum(windows), sum(powers)),
            (odd, sum(powers[::2])),
            (whole - odd, sum(powers[1::2])),
        ]:
            assert abs(measurement.total_energy - truth) <= measurement.total_uncertainty_joules + 1e-3
