"""The gain of following the carbon intensity of electricity, beyond a static power limit of the same completion time.

Replays trainings measured at several power limits (`--traces FOLDER`, which holds `power_limit/summary_power_a40.csv`
and `..._v100.csv` in the published format) on synthetic grids and on recorded ones (`--signals FILE.csv`, columns
`timestamp` and `value`, in UTC). For each grid and deadline it prints the change of emissions from full power to: the
best static limit done by the same time, ours, ours with perfect foresight, the published rule (each half hour the limit
of the least weighed emissions, by the present intensity), and suspending above the mean of the last day. Exits with 1
beyond the limits below.
"""

from __future__ import annotations

import argparse
import csv
import math
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from zeus_core.electricity import RecordedSignal, Signal
from zeus_core.electricity.signal import mean_value
from zeus_core.optimizer.carbon_aware import OperatingPoint, WorkController
from zeus_core.optimizer.carbon_aware._signal_replay import best_mixture, replay
from zeus_core.optimizer.carbon_aware.outlook import foreseen

LARGEST_LOSS_TO_STATIC = 0.005
LEAST_SHARE_OF_FORESIGHT = 0.9  # on daily grids
HOUR_SECONDS = 3600.0
BEGIN_SECONDS = 1_772_323_200.0  # 2026-03-01 00:00 UTC
TRAINING_HOURS = 48.0
DEADLINES = (1.025, 1.1, 1.3, 2.0)
HISTORY_DAYS = 15
IDLE_WATTS = {"a40": 30.0, "v100": 40.0}  # of the simulated GPUs
GRAMS = 400.0


def grids(seed: int) -> dict[str, tuple[RecordedSignal, bool]]:
    """Return the synthetic grids by name, each with whether it follows the day."""
    randomness = random.Random(seed)
    hours = 24 * (HISTORY_DAYS + 9)

    def grid(swing: float, noise: float, lost: float = 0.0) -> RecordedSignal:
        times, values, drift = [], [], 0.0
        for hour in range(hours):
            drift = 0.9 * drift + math.sqrt(1 - 0.81) * randomness.gauss(0.0, noise)
            if hour == 0 or randomness.random() >= lost:
                times.append(BEGIN_SECONDS + HOUR_SECONDS * (hour - 24 * HISTORY_DAYS))
                values.append(GRAMS * max(0.05, 1 + swing * math.sin(math.tau * hour / 24) + drift))
        return RecordedSignal(times, values, "g/kWh")

    return {
        "flat": (grid(0.0, 0.0), False),
        "flat, noisy": (grid(0.0, 0.037), False),
        "swing 30 %": (grid(0.3, 0.02), True),
        "swing 50 %": (grid(0.5, 0.02), True),
        "swing 80 %": (grid(0.8, 0.02), True),
        "swing 50 %, noisy": (grid(0.5, 0.1), False),  # nobody foresees such noise
        "swing 50 %, gaps": (grid(0.5, 0.02, lost=0.2), True),
    }


def workloads(folder: Path, gpu: str) -> Iterator[tuple[str, list[OperatingPoint]]]:
    """Yield the points of a training of each network: one step is one epoch."""
    tables: dict[tuple[str, str], list[OperatingPoint]] = {}
    with (folder / "power_limit" / f"summary_power_{gpu}.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            work = ", ".join(row[name] for name in ("dataset", "network", "batch_size", "optimizer"))
            seconds, watts = float(row["time_per_epoch"]), float(row["average_power"])
            tables.setdefault((row["network"], work), []).append(
                OperatingPoint(int(row["power_limit"]), 1.0 / seconds, watts)
            )
    seen = set[str]()
    for (network, work), points in tables.items():
        if network not in seen and len(points) >= 4:
            seen.add(network)
            yield f"{gpu.upper()} {work}", points


def published_rule(points: list[OperatingPoint], signal: Signal) -> Callable[[float, float], OperatingPoint]:
    """Return the rule of Chase: the least [power x intensity + highest power x highest intensity] / speed."""
    highest_watts = max(point.power_watts for point in points)
    highest = max(part.value for part in signal.parts(BEGIN_SECONDS - 7 * 24 * HOUR_SECONDS, BEGIN_SECONDS))

    def policy(now: float, left: float) -> OperatingPoint:
        value = signal.parts(now, now)[0].value
        return min(
            points, key=lambda point: (point.power_watts * value + highest_watts * highest) / point.steps_per_second
        )

    return policy


def suspending(
    points: list[OperatingPoint], idle: OperatingPoint, signal: Signal, deadline: float
) -> Callable[[float, float], OperatingPoint]:
    """Return the rule: full power below the mean of the last day, else pause while the deadline allows it."""
    quickest = max(points, key=lambda point: point.steps_per_second)

    def policy(now: float, left: float) -> OperatingPoint:
        is_dirty = signal.parts(now, now)[0].value > mean_value(signal.parts(now - 24 * HOUR_SECONDS, now))
        has_time = now + HOUR_SECONDS + left / quickest.steps_per_second <= deadline
        return idle if is_dirty and has_time else quickest

    return policy


def changes(
    points: list[OperatingPoint], idle: OperatingPoint, signal: RecordedSignal, factor: float, seed: int
) -> dict[str, float]:
    """Return the change of emissions against full power of each policy, and how late ours was, in seconds."""
    quickest = max(points, key=lambda point: point.steps_per_second)
    begin = BEGIN_SECONDS + HOUR_SECONDS * random.Random(seed).randrange(24)
    steps = TRAINING_HOURS * HOUR_SECONDS * quickest.steps_per_second
    deadline = begin + factor * TRAINING_HOURS * HOUR_SECONDS
    noise = random.Random(seed)

    def speed(now: float) -> float:
        return 1.0 + noise.gauss(0.0, 0.005)

    ours = replay(WorkController([*points, idle], signal, deadline).choose, signal, begin, steps, true_speed=speed)
    prophet = WorkController([*points, idle], foreseen(signal), deadline)
    full = replay(lambda now, left: quickest, signal, begin, steps).amount
    results = {
        "static": best_mixture(points, signal, begin, steps, ours.end_seconds).replayed.amount,
        "ours": ours.amount,
        "foresight": replay(prophet.choose, signal, begin, steps).amount,
        "published": replay(published_rule(points, signal), signal, begin, steps, 1800.0).amount,
        "suspend": replay(suspending(points, idle, signal, deadline), signal, begin, steps).amount,
    }
    return {
        **{name: amount / full - 1 for name, amount in results.items()},
        "late": max(0.0, ours.end_seconds - deadline),
        "switches": ours.switches,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, help="folder of measured power limits")
    parser.add_argument("--signals", type=Path, nargs="*", default=[], help="recorded carbon intensities")
    parser.add_argument("--seeds", type=int, default=2, help="seeds of each grid, deadline and training")
    arguments = parser.parse_args()
    if arguments.traces is None:
        print("SKIPPED: the replay of measured trainings; name a folder by --traces")
        return 0
    courses = {}
    for seed in range(arguments.seeds):
        for name, grid in grids(seed).items():
            courses.setdefault(name, []).append(grid)
    for path in arguments.signals:
        courses[path.name] = [(RecordedSignal.from_csv(path, "g/kWh", "UTC"), False)]
    names = ("static", "ours", "foresight", "published", "suspend")
    print(
        f"{'change of emissions, %':24} time  " + "".join(f"{name:>10}" for name in names) + "  of foresight switches"
    )
    runs = late = 0
    is_within = True
    trainings = [
        (points, OperatingPoint.pause(IDLE_WATTS[gpu]))
        for gpu in IDLE_WATTS
        for _, points in list(workloads(arguments.traces, gpu))[:3]
    ]
    for course, signals in courses.items():
        for factor in DEADLINES:
            results = [
                changes(points, idle, signal, factor, seed)
                for seed, (signal, _) in enumerate(signals)
                for points, idle in trainings
            ]
            runs += len(results)
            late += sum(result["late"] > 0 for result in results)
            mean = {name: statistics.fmean(result[name] for result in results) for name in (*names, "switches")}
            gained, possible = mean["ours"] - mean["static"], mean["foresight"] - mean["static"]
            share = gained / possible if possible < -0.005 else math.nan
            worst = max(result["ours"] - result["static"] for result in results)
            is_right = worst <= LARGEST_LOSS_TO_STATIC and not (signals[0][1] and share < LEAST_SHARE_OF_FORESIGHT)
            is_within = is_within and is_right
            print(
                f"{course:24} {factor:5.3f} " + "".join(f"{100 * mean[name]:10.1f}" for name in names),
                f"{share:12.0%} {mean['switches']:8.1f}" + ("" if is_right else f"  worst against static {worst:+.2%}"),
                flush=True,
            )
    print(f"{runs} runs, {late} later than their deadline")
    is_within = is_within and late == 0
    print("within the limits" if is_within else "beyond the limits")
    return 0 if is_within else 1


if __name__ == "__main__":
    sys.exit(main())
