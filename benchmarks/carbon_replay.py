"""The gain of following the carbon intensity of electricity, beyond the best mixture of settings of the same time.

Replays trainings measured at several power limits (`--traces FOLDER`, which holds `power_limit/summary_power_a40.csv`
and `..._v100.csv` in the published format) on synthetic grids and on recorded ones (`--signals FILE.csv`, columns
`timestamp` and `value`, in UTC). For each grid and deadline it prints the change of emissions from full power to: the
best mixture of limits done by the same time, ours, the optimum with perfect foresight, the published rule (each half
hour the limit of the least weighed emissions, by the present intensity), and suspending above the mean of the last day.
Then the share of the gain of foresight beyond that mixture, pooled, with the 95 % interval of its mean over the seeds
(jackknife). Exits with 1 beyond the limits below.

Grids "wind" have days between their swings, of periods and sizes that differ from seed to seed. Regular ones repeat
themselves, beside noise; those that swing are oscillators that forget in two to five days; those that forget are random
(Ornstein-Uhlenbeck): there even the best of all policies, which knows the process, has a third to a half of foresight's
gain. "forecast 24 h": the source publishes one,
off by 10 %, with errors that last six hours. "14 h missing": so long nothing is known, from an hour of the first two
days; emissions are those of the signal as it was.
"""

from __future__ import annotations

import argparse
import csv
import math
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zeus_core.carbon._controller import WorkController
from zeus_core.carbon._signal_replay import best_mixture, replay
from zeus_core.carbon.operating_points import TrainingPoint
from zeus_core.carbon.outlook import foresight
from zeus_core.electricity import RecordedSignal, Signal
from zeus_core.electricity.signal import mean_value

LARGEST_LOSS = 0.005  # to the mixture, in a run on a grid that is flat or follows the day
LEAST_SHARE, LEAST_SHARE_WITH_GAP = 0.8, 0.65  # of the gain of foresight, on grids that can be foreseen
HOUR_SECONDS = 3600.0
BEGIN_SECONDS = 1_772_323_200.0  # 2026-03-01 00:00 UTC
TRAINING_HOURS = 48.0
DEADLINES = (1.1, 1.3, 2.0)
HISTORY_HOURS = 24 * 22
HOURS = HISTORY_HOURS + 24 * 9
MISSING_HOURS = 14
IDLE_WATTS = {"a40": 30.0, "v100": 40.0}  # of the simulated GPUs
GRAMS = 400.0


@dataclass
class Grid:
    """A grid as it was, and what a training knows of it.

    Attributes:
        truth: The intensity, or the price.
        known: The same as far as it is published.
        least_share: The share of the gain of foresight that is asked for; None for none.
        is_safe: Whether following it may not lose.
    """

    truth: RecordedSignal
    known: RecordedSignal
    least_share: float | None = None
    is_safe: bool = False


def weather(randomness: np.random.Generator, memory_hours: float, period_hours: float | None) -> np.ndarray:
    """Return a random course of variance 1: an Ornstein-Uhlenbeck process, or an oscillator with random forces."""
    skipped = 1000
    first, second = math.exp(-1 / memory_hours), 0.0
    if period_hours is not None:
        first, second = 2 * first * math.cos(math.tau / period_hours), -(first**2)
    course = np.zeros(HOURS + skipped)
    for hour, force in enumerate(randomness.normal(size=len(course))):
        course[hour] = first * course[hour - 1] + second * course[hour - 2] + force
    return course[skipped:] / course[skipped:].std()


def grids(seed: int) -> dict[str, Grid]:
    """Return the synthetic grids by name."""
    randomness = np.random.default_rng(seed)
    times = [BEGIN_SECONDS + HOUR_SECONDS * (hour - HISTORY_HOURS) for hour in range(HOURS)]
    day = np.sin(math.tau * np.arange(HOURS) / 24)
    drift = weather(randomness, 9.5, None)
    swing, forgetful = (
        weather(randomness, randomness.uniform(48, 120), randomness.uniform(50, 130)),
        weather(randomness, randomness.uniform(18, 48), None),
    )
    size, noise = randomness.uniform(0.25, 0.45), 0.03 * randomness.normal(size=HOURS)
    gap = HISTORY_HOURS + int(randomness.integers(0, 48))
    errors = weather(randomness, 6.0, None)
    turns = math.tau * (np.arange(HOURS) / randomness.uniform(50, 130) + randomness.random())

    def grid(
        course: np.ndarray, lost: float = 0.0, has_gap: bool = False, forecast_hours: int = 0, **how: object
    ) -> Grid:
        values = GRAMS * np.maximum(0.05, 1 + course)
        is_known = randomness.random(HOURS) >= lost
        is_known[0] = True
        is_known[gap : gap + MISSING_HOURS] &= not has_gap
        numbers = np.flatnonzero(is_known)
        forecast = RecordedSignal(times, list(values * np.maximum(0.1, 1 + 0.1 * errors)), "g/kWh")
        known = RecordedSignal(
            [times[number] for number in numbers],
            list(values[numbers]),
            "g/kWh",
            forecast=forecast if forecast_hours else None,
            forecast_hours=forecast_hours,
        )
        return Grid(RecordedSignal(times, list(values), "g/kWh"), known, **how)  # type: ignore[arg-type]

    prices = list(0.08 * (1.0 + 0.8 * day + 0.4 * forgetful))
    price = RecordedSignal(times, prices, "EUR/kWh")
    courses = {
        "wind, regular": size * np.sin(turns) + 0.1 * day + noise,
        "wind that swings": size * swing + 0.1 * day + noise,
        "wind that forgets": size * forgetful + 0.1 * day + noise,
    }
    result = {
        "flat": grid(0 * day, is_safe=True),
        "flat, noisy": grid(0.037 * drift, is_safe=True),
        "swing 30 %": grid(0.3 * day + 0.02 * drift, least_share=0.9, is_safe=True),
        "swing 80 %": grid(0.8 * day + 0.02 * drift, least_share=0.9, is_safe=True),
        "swing 50 %, noisy": grid(0.5 * day + 0.1 * drift),
        "swing 50 %, gaps": grid(0.5 * day + 0.02 * drift, lost=0.2, least_share=0.9, is_safe=True),
        "prices, negative": Grid(price, price),
    }
    for name, course in courses.items():
        asked = name == "wind, regular"
        result[name] = grid(course, least_share=LEAST_SHARE if asked else None)
        result[f"{name}, 14 h missing"] = grid(
            course, has_gap=True, least_share=LEAST_SHARE_WITH_GAP if asked else None
        )
        result[f"{name}, forecast 24 h"] = grid(course, forecast_hours=24)
        result[f"{name}, forecast 72 h"] = grid(course, forecast_hours=72, least_share=LEAST_SHARE)
        result[f"{name}, forecast 72 h, 14 h missing"] = grid(
            course, has_gap=True, forecast_hours=72, least_share=LEAST_SHARE_WITH_GAP
        )
    return result


def workloads(folder: Path, gpu: str) -> Iterator[tuple[str, list[TrainingPoint]]]:
    """Yield the points of a training of each network: one step is one epoch."""
    tables: dict[tuple[str, str], list[TrainingPoint]] = {}
    with (folder / "power_limit" / f"summary_power_{gpu}.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            work = ", ".join(row[name] for name in ("dataset", "network", "batch_size", "optimizer"))
            seconds, watts = float(row["time_per_epoch"]), float(row["average_power"])
            tables.setdefault((row["network"], work), []).append(
                TrainingPoint(int(row["power_limit"]), 1.0 / seconds, watts)
            )
    seen = set[str]()
    for (network, work), points in tables.items():
        if network not in seen and len(points) >= 4:
            seen.add(network)
            yield f"{gpu.upper()} {work}", points


def published_rule(points: list[TrainingPoint], signal: Signal) -> Callable[[float, float], TrainingPoint]:
    """Return the rule of Chase: the least [power x intensity + highest power x highest intensity] / speed."""
    highest_watts = max(point.power_watts for point in points)
    highest = max(part.value for part in signal.parts(BEGIN_SECONDS - 7 * 24 * HOUR_SECONDS, BEGIN_SECONDS))

    def policy(now: float, left: float) -> TrainingPoint:
        value = signal.parts(now, now)[0].value
        return min(
            points, key=lambda point: (point.power_watts * value + highest_watts * highest) / point.steps_per_second
        )

    return policy


def suspending(
    points: list[TrainingPoint], idle: TrainingPoint, signal: Signal, deadline: float
) -> Callable[[float, float], TrainingPoint]:
    """Return the rule: full power below the mean of the last day, else pause while the deadline allows it."""
    quickest = max(points, key=lambda point: point.steps_per_second)

    def policy(now: float, left: float) -> TrainingPoint:
        is_dirty = signal.parts(now, now)[0].value > mean_value(signal.parts(now - 24 * HOUR_SECONDS, now))
        has_time = now + HOUR_SECONDS + left / quickest.steps_per_second <= deadline
        return idle if is_dirty and has_time else quickest

    return policy


def changes(points: list[TrainingPoint], idle: TrainingPoint, grid: Grid, factor: float, seed: int) -> dict[str, float]:
    """Return the change of emissions against full power of each policy, and how late ours was, in seconds."""
    signal = grid.truth
    quickest = max(points, key=lambda point: point.steps_per_second)
    begin = BEGIN_SECONDS + HOUR_SECONDS * random.Random(seed).randrange(24)
    steps = TRAINING_HOURS * HOUR_SECONDS * quickest.steps_per_second
    deadline = begin + factor * TRAINING_HOURS * HOUR_SECONDS
    noise = random.Random(seed)

    def speed(now: float) -> float:
        return 1.0 + noise.gauss(0.0, 0.005)

    controller = WorkController([*points, idle], grid.known, deadline)
    ours = replay(controller.choose, signal, begin, steps, true_speed=speed)
    full = replay(lambda now, left: quickest, signal, begin, steps).amount
    results = {
        "mixture": best_mixture(points, signal, begin, steps, ours.end_seconds).replayed.amount,
        "ours": ours.amount,
        "foresight": foresight([*points, idle], signal, begin, steps, deadline).amount,
        "published": replay(published_rule(points, grid.known), signal, begin, steps, 1800.0).amount,
        "suspend": replay(suspending(points, idle, grid.known, deadline), signal, begin, steps).amount,
    }
    return {
        **{name: amount / full - 1 for name, amount in results.items()},
        "late": max(0.0, ours.end_seconds - deadline),
        "switches": ours.switches,
    }


def share(by_seed: list[list[dict[str, float]]]) -> tuple[float, float]:
    """Return the share of the gain of foresight, pooled, and half of the 95 % interval of its mean over the seeds."""
    gained = [sum(run["mixture"] - run["ours"] for run in runs) for runs in by_seed]
    possible = [sum(run["mixture"] - run["foresight"] for run in runs) for runs in by_seed]
    pooled, count = sum(gained) / sum(possible), len(by_seed)
    if count < 2:
        return pooled, math.inf
    others = [(sum(gained) - one) / (sum(possible) - part) for one, part in zip(gained, possible, strict=True)]
    mean = statistics.fmean(others)
    return pooled, 1.96 * math.sqrt((count - 1) / count * sum((other - mean) ** 2 for other in others))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, help="folder of measured power limits")
    parser.add_argument("--signals", type=Path, nargs="*", default=[], help="recorded carbon intensities")
    parser.add_argument("--seeds", type=int, default=12, help="seeds of each grid and deadline, each with one training")
    parser.add_argument("--first-seed", type=int, default=0, help="another one draws other grids")
    parser.add_argument("--grids", nargs="*", help="only those whose names begin so")
    arguments = parser.parse_args()
    if arguments.traces is None:
        print("SKIPPED: the replay of measured trainings; name a folder by --traces")
        return 0
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    courses: dict[str, list[Grid]] = {}
    for seed in seeds:
        for name, grid in grids(seed).items():
            courses.setdefault(name, []).append(grid)
    for path in arguments.signals:
        signal = RecordedSignal.from_csv(path, "g/kWh", "UTC")
        courses[path.name] = [Grid(signal, signal)] * len(seeds)
    trainings = [
        (points, TrainingPoint.pause(IDLE_WATTS[gpu]))
        for gpu in IDLE_WATTS
        for _, points in list(workloads(arguments.traces, gpu))[:3]
    ]
    names = ("mixture", "ours", "foresight", "published", "suspend")
    print(
        f"{'change of emissions, %':37} time  " + "".join(f"{name:>10}" for name in names) + "  of foresight  switches"
    )
    runs, is_within = [], True
    for course, signals in courses.items():
        if arguments.grids and not course.startswith(tuple(arguments.grids)):
            continue
        by_seed: list[list[dict[str, float]]] = [[] for _ in seeds]
        for factor in DEADLINES:
            for number, (seed, grid) in enumerate(zip(seeds, signals, strict=True)):
                by_seed[number].append(changes(*trainings[seed % len(trainings)], grid, factor, seed))
            show(course, f"{factor:5.3f}", [[of_seed[-1]] for of_seed in by_seed])
        show(course, "  all", by_seed)
        is_within = judge(signals[0], by_seed) and is_within
        runs += [run for of_seed in by_seed for run in of_seed]
    late = sum(run["late"] > 0 for run in runs)
    print(f"{len(runs)} runs, {late} later than their deadline")
    is_within = is_within and late == 0
    print("within the limits" if is_within else "beyond the limits")
    return 0 if is_within else 1


def judge(grid: Grid, by_seed: list[list[dict[str, float]]]) -> bool:
    """Return whether the runs on a grid are within its limits, and print in which they are not."""
    pooled, half = share(by_seed)
    worst = max(run["ours"] - run["mixture"] for of_seed in by_seed for run in of_seed)
    misses_share = grid.least_share is not None and not pooled - half >= grid.least_share
    if misses_share:
        print(
            f"  beyond the limit: {pooled:.0%} +-{half:.0%} of foresight's gain, and not surely {grid.least_share:.0%}"
        )
    loses = grid.is_safe and worst > LARGEST_LOSS
    if loses:
        print(f"  beyond the limit: {worst:+.2%} against the mixture in one run")
    return not misses_share and not loses


def show(course: str, factor: str, by_seed: list[list[dict[str, float]]]) -> None:
    """Print the means of some runs."""
    runs = [run for of_seed in by_seed for run in of_seed]
    names = ("mixture", "ours", "foresight", "published", "suspend", "switches")
    mean = {name: statistics.fmean(run[name] for run in runs) for name in names}
    pooled, half = share(by_seed) if mean["mixture"] - mean["foresight"] > 0.005 else (math.nan, math.nan)
    print(
        f"{course:37} {factor} " + "".join(f"{100 * mean[name]:10.1f}" for name in names[:-1]),
        f"{pooled:7.0%} +-{half:4.0%} {mean['switches']:8.1f}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
