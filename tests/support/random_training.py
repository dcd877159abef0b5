"""Random trainings on a GPU of its own physics: what is told of their energy, and the truth."""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.driven_gpu import DrivenGpu, Fault, Physics
from zeus_core.device.cpu import CpuDiscovery
from zeus_core.errors import DriverFaultError
from zeus_core.events import Activity
from zeus_core.monitor import ZeusMonitor
from zeus_core.testing import FaultyGpu
from zeus_core.training import TrainingEnergy, TrainingSummary

__all__ = ["LAGS_SECONDS", "Case", "Outcome", "make_case", "make_erratic_case", "make_pass_case", "measure"]

LAGS_SECONDS = (0.0, 0.003, 0.008, 0.015, 0.03)
_JITTERS = (0.0, 0.002, 0.005, 0.01, 0.02)
_CALLS_SECONDS = (0.0, 0.0003, 0.001, 0.002)
_REFRESHES_SECONDS = (0.01, 0.02, 0.05, 0.1)
# Activities that interrupt the steps, how likely they do, and the highest share of the peak that an erratic one draws.
_ACTIVITIES = [
    *(Activity.STEPS, Activity.GENERATION, Activity.REFERENCE),
    *(Activity.EVALUATION, Activity.CHECKPOINT, Activity.IDLE),
]
_OTHERS = ((Activity.EVALUATION, 0.7, 0.9), (Activity.CHECKPOINT, 0.4, 0.9), (Activity.IDLE, 0.3, 0.2))


@dataclass
class Case:
    """A training: what it does, what that draws, and on which GPU."""

    physics: Physics
    parts: list[tuple[Activity, float]] = field(default_factory=list)
    script: list[tuple[float, float]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    passes: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    """By the number of a step: begin and seconds of the reference passes in it."""

    def run(self, activity: Activity, watts: list[float], seconds: float) -> None:
        self.parts.append((activity, seconds))
        self.script += [(power, seconds / len(watts)) for power in watts]

    def step(self, pieces: list[tuple[Activity, float, float]]) -> None:
        """Run a step of such activities, watts and seconds: steps and reference passes."""
        begin, passes = 0.0, []
        for activity, watts, seconds in pieces:
            if activity is Activity.REFERENCE:
                passes.append((begin, seconds))
            begin += seconds
            self.script.append((watts, seconds))
        self.passes[len(self.parts)] = passes
        self.parts.append((Activity.STEPS, begin))

    def lengths(self, activity: Activity) -> list[float]:
        """Return how long each part of an activity is, in order of that."""
        inside = [seconds for passes in self.passes.values() for _, seconds in passes]
        if activity is Activity.REFERENCE:
            return sorted(inside)
        return sorted(seconds for other, seconds in self.parts if other is activity)


@dataclass
class Outcome:
    """What was told of a training, and the truth."""

    summary: TrainingSummary
    truth: dict[Activity, float]
    totals: list[float]
    powers: list[float]
    logged: list[dict[str, float]]
    calls_per_second: float
    """In the background: without those of logs."""
    max_watts: float
    lengths: dict[Activity, str]  # what the parts of an activity are: short or long, few or many


def length(generator: random.Random) -> float:
    """5 ms to 5 s."""
    return math.exp(generator.uniform(math.log(0.005), math.log(5.0)))


def step_length(generator: random.Random, period_seconds: float) -> float:
    """5 ms to 2 s, in one of three cases near a multiple of the counter's period."""
    if generator.random() < 0.33:
        return generator.choice((0.5, 1, 2, 3)) * period_seconds * (1 + generator.choice((-1, 1)) * 0.01)
    return math.exp(generator.uniform(math.log(0.005), math.log(2.0)))


def make_case(seed: int, period_seconds: float | None, is_faulty: bool, seconds: float = 25.0) -> Case:
    """A random training."""
    generator = random.Random(seed)
    period = (period_seconds or 0.1) * generator.uniform(0.98, 1.02)
    physics = Physics(
        period_seconds and period,
        period_seconds or 0.1,
        generator.choice(_JITTERS),
        generator.choice(LAGS_SECONDS),
        generator.choice((0.0, 0.02, 0.05)),
        generator.choice(_CALLS_SECONDS),
        generator.choice(_REFRESHES_SECONDS),
        age_seconds=period * generator.choice((0.0, 0.0, 0.02, 0.05)),
        drift_fraction=generator.choice((0.0, 2e-4)),
        peaks_per_second=generator.choice((0.0, 3.0)),
        seed=seed,
    )
    peak = generator.uniform(250.0, 600.0)
    shape = [generator.uniform(0.45, 1.0) for _ in range(generator.choice((1, 3, 4, 6)))]
    step_seconds = step_length(generator, period)
    scatter, steps = generator.choice((0.0, 0.01, 0.05)), generator.choice((1, 2, 5, 10))
    trend, variation = generator.choice((0.0, 0.0, -0.3, 0.15)), generator.choice((0.0, 0.02, 0.1))
    watts = {
        Activity.EVALUATION: peak * generator.uniform(0.15, 0.9),
        Activity.CHECKPOINT: peak * generator.uniform(0.12, 0.3),
        Activity.IDLE: 0.15 * peak,
    }
    lengths = {activity: generator.choice((None, length(generator))) for activity in watts}
    case = Case(physics, script=[(0.15 * peak, generator.uniform(0.2, 0.4))])
    while (elapsed := sum(duration for _, duration in case.parts)) < seconds:
        for _ in range(max(1, round(steps * generator.uniform(0.6, 1.4)))):
            level = (1 + trend * (elapsed / seconds - 0.5)) * (1 + variation * generator.uniform(-1, 1))
            pieces = [min(peak * level * part, peak) for part in shape]
            case.run(Activity.STEPS, pieces, step_seconds * (1 + scatter * generator.uniform(-1, 1)))
        for activity, chance in ((Activity.EVALUATION, 0.7), (Activity.CHECKPOINT, 0.4), (Activity.IDLE, 0.2)):
            if generator.random() < chance:
                power = [watts[activity] * generator.uniform(0.93, 1.07) for _ in range(3)]
                case.run(activity, power, lengths[activity] or length(generator))
    case.script.append((0.15 * peak, 1.0))
    if is_faulty:
        begin = generator.uniform(3.0, 0.6 * seconds)
        kind = generator.choice(("fails", "sticks", "loses", "resets", "slips"))
        end = begin + (0.01 if kind == "slips" else generator.choice((0.3, 1.0, 3.0)))
        case.faults.append(Fault(kind, begin, end))
    return case


def make_erratic_case(seed: int, period_seconds: float, is_faulty: bool, seconds: float = 25.0) -> Case:
    """A random training whose parts have nothing in common: each draws a power of its own, or ramps, or wanders."""
    usual = make_case(seed, period_seconds, is_faulty, seconds)
    generator = random.Random(seed + 77)
    case = Case(usual.physics, script=usual.script[:1], faults=usual.faults)
    peak, kind = generator.uniform(250.0, 600.0), generator.choice(("even", "ramps", "wanders", "two powers"))
    longer = math.exp(generator.uniform(math.log(2 * period_seconds), math.log(2.0)))
    lengths = {activity: generator.choice((None, longer, length(generator))) for activity in _ACTIVITIES}
    steps, step_seconds = generator.choice((1, 2, 5, 10)), step_length(generator, usual.physics.nominal_period_seconds)
    level = generator.uniform(0.3, 1.0)

    def watts(low: float, high: float) -> list[float]:
        first, last = generator.uniform(low, high), generator.uniform(low, high)
        return [peak * (first + (last - first) * part / 9) for part in range(10)] if kind == "ramps" else [peak * first]

    while sum(duration for _, duration in case.parts) < seconds:
        of_run = watts(0.3, 1.0)
        for _ in range(max(1, round(steps * generator.uniform(0.5, 1.5)))):
            level = min(max(level + generator.gauss(0, 0.08), 0.2), 1.0)
            of_step = {
                "even": of_run,
                "ramps": watts(0.3, 1.0),
                "wanders": [peak * level],
                "two powers": [peak * generator.choice((0.35, 0.95))],
            }
            case.run(Activity.STEPS, of_step[kind], step_seconds * generator.uniform(0.95, 1.05))
        for activity, chance, highest in _OTHERS:
            if generator.random() < chance:
                case.run(activity, watts(0.12, highest), lengths[activity] or length(generator))
    case.script.append((0.15 * peak, 1.0))
    return case


def make_pass_case(seed: int, period_seconds: float, is_faulty: bool, seconds: float = 25.0) -> Case:
    """A random training with reference passes of up to two periods of the counter inside its steps."""
    usual = make_case(seed, period_seconds, is_faulty, seconds)
    generator = random.Random(seed + 154)
    case = Case(usual.physics, script=usual.script[:1], faults=usual.faults)
    peak, period = generator.uniform(250.0, 600.0), usual.physics.nominal_period_seconds
    pass_seconds = period * math.exp(generator.uniform(math.log(0.1), math.log(2.0)))
    rest_seconds = pass_seconds * math.exp(generator.uniform(math.log(0.5), math.log(20.0)))
    if generator.random() < 0.33:  # in step with the counter
        rest_seconds = generator.choice((1, 2, 3)) * usual.physics.period_seconds * generator.choice((0.99, 1.01))
        rest_seconds = max(rest_seconds - pass_seconds, 0.5 * pass_seconds)
    place, count = generator.choice((0.0, 0.1, 0.3, 0.5)), generator.choice((1, 1, 2))
    every, scatter = generator.choice((1, 1, 4)), generator.choice((0.0, 0.01, 0.05, 0.2))
    shape = [peak * generator.uniform(0.45, 1.0) for _ in range(generator.choice((1, 2, 4)))]
    pass_watts, variation = peak * generator.uniform(0.2, 1.0), generator.choice((0.0, 0.02, 0.1))
    number = 0

    def rest(begin: float, end: float, level: float) -> list[tuple[Activity, float, float]]:
        cuts = [begin, *(cut / len(shape) for cut in range(1, len(shape)) if begin < cut / len(shape) < end), end]
        return [
            (Activity.STEPS, min(level * shape[int(len(shape) * (low + high) / 2)], peak), (high - low) * rest_seconds)
            for low, high in itertools.pairwise(cuts)
            if high > low
        ]

    while (elapsed := sum(duration for _, duration in case.parts)) < seconds:
        level = 1 + variation * generator.uniform(-1, 1)
        pieces = rest(0.0, place, level)
        if number % every == 0:
            for _ in range(count):
                pieces.append((Activity.REFERENCE, min(level * pass_watts, peak), pass_seconds))
                pieces.append((Activity.STEPS, level * shape[0], 0.1 * pass_seconds))
        pieces += rest(place, 1.0, level)
        times = 1 + scatter * generator.uniform(-1, 1)
        case.step([(activity, watts, times * part_seconds) for activity, watts, part_seconds in pieces])
        if elapsed > 0 and generator.random() < 0.02:
            case.run(Activity.EVALUATION, [0.6 * peak], length(generator))
        number += 1
    case.script.append((0.15 * peak, 1.0))
    return case


def measure(case: Case, unanswered: int | None = 0, folder: Path | None = None) -> Outcome:
    """Train, while this many calls of the counter fail, None for all; write the file of the run to a folder."""
    gpu = DrivenGpu(case.script, case.physics, case.faults)
    try:
        return _measured(case, gpu, unanswered, folder)
    finally:
        gpu.close()


def _measured(case: Case, gpu: DrivenGpu, unanswered: int | None, folder: Path | None) -> Outcome:
    time_source = gpu.time_source
    faulty = FaultyGpu(gpu)
    if unanswered != 0:
        faulty.fail("read_energy_counter_joules", DriverFaultError("not ready"), unanswered)
    monitor = ZeusMonitor(
        gpus=[faulty], cpus=CpuDiscovery((), "none"), time_source=time_source, synchronize=lambda _: None
    )
    energy = TrainingEnergy(monitor, quiet=True, folder=folder)
    begin = case.script[0][1]
    time_source.advance(begin - 0.1 - gpu.seconds)
    first_call = len(gpu.calls)
    truth: dict[Activity, float] = defaultdict(float)
    logged: list[dict[str, float]] = []
    calls_of_logs = 0
    energy.on_train_begin()
    activity, since = Activity.IDLE, gpu.calls[first_call]

    def charge(following: Activity) -> None:
        nonlocal activity, since
        truth[activity] += gpu.energy_until(gpu.seconds) - gpu.energy_until(since)
        activity, since = following, gpu.seconds

    ends = begin
    time_source.advance(ends - gpu.seconds)
    for number, (following, seconds) in enumerate(case.parts):
        ends += seconds
        if following is Activity.STEPS:
            energy.on_step_begin()
            charge(following)
            for begin_seconds, pass_seconds in case.passes.get(number, ()):
                time_source.advance(ends - seconds + begin_seconds - gpu.seconds)
                energy.on_pass_begin(Activity.REFERENCE)
                charge(Activity.REFERENCE)
                time_source.advance(ends - seconds + begin_seconds + pass_seconds - gpu.seconds)
                energy.on_pass_end()
                charge(Activity.STEPS)
            time_source.advance(ends - gpu.seconds)
            energy.on_step_end()
        else:
            energy.on_pause(following)
            charge(following)
            time_source.advance(ends - gpu.seconds)
            energy.on_resume()
            charge(Activity.STEPS)
        if number % 7 == 3:
            calls_before = len(gpu.calls)
            logged.append(energy.log())
            calls_of_logs += len(gpu.calls) - calls_before
    energy.on_epoch_end()
    charge(Activity.IDLE)
    energy.finish()
    charge(Activity.IDLE)
    calls = gpu.calls[first_call:]
    energy.on_train_end()
    assert energy.summary.not_measured is None
    return Outcome(
        energy.summary,
        truth,
        [values["total_energy_j"] for values in logged if "total_energy_j" in values],
        [values["power_w"] for values in logged if "power_w" in values],
        logged,
        (len(calls) - calls_of_logs) / (calls[-1] - calls[0]),
        1.1 * gpu.highest_watts,
        {activity: kind_of(case, activity) for activity in truth},
    )


def kind_of(case: Case, activity: Activity) -> str:
    """Say to which class the parts of an activity belong, by their usual length and their time in all."""
    lengths = case.lengths(activity) or [0.0]
    is_long = lengths[len(lengths) // 2] >= 2 * case.physics.nominal_period_seconds
    return f"{'long' if is_long else 'short'}, {'5 s and more' if sum(lengths) >= 5 else 'under 5 s'}"
