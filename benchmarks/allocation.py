"""Allocations for mixed GPUs beside simpler ones and another solver, on measured profiles.

    python benchmarks/allocation.py --traces DIR [--sizes 2,4,8,16,64,1024] [--highs-seconds 60] [--spread 0.08]

DIR holds summary_power_v100.csv and summary_power_a40.csv (the power traces of Zeus, NSDI'23), itself or in
power_limit/. Half of the GPUs of each mix are V100, half A40; with `--spread 0.08` the GPUs of one model differ by up
to 8 % in speed and in power, as real ones do. Columns: CPU seconds; the certified gap; cost, time and energy of a step
relative to an even split at the highest limits, for

- proportional: batches in proportion to throughput, at the highest limits
- published: the heuristic of the published extension for two types of GPUs: the least sum of the costs of each GPU,
  with quadratics in the batch for time and power, clamped at 0, and time weighed by the chosen limit. Its choice is
  then predicted as all others are
- allocation: `zeus_core.allocation.allocate`
- HiGHS: the same problem as a mixed-integer program, in seconds of the clock, stopped after a limit; its best plan is
  compared anyway

Costs are `ZeusCost(eta)`: the highest limits of all GPUs weigh the time. Predictions are fits of the traces, and no
batch is larger than the largest that was measured, but for the published heuristic. Exits with 1 if a limit below is
not kept.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from zeus_core.allocation import (  # noqa: E402
    AllocationPlan,
    DeviceOption,
    DeviceOptions,
    DeviceProfile,
    allocate,
    baselines,
)
from zeus_core.errors import UsageError  # noqa: E402
from zeus_core.optimizer.power_limit import ZeusCost  # noqa: E402

FILES = ("summary_power_v100.csv", "summary_power_a40.csv")
BLOCKING_WATTS = (50.0, 68.0)  # the least that was seen of GPUs that wait in a collective
MAX_SECONDS = {64: 0.5, 1024: 2.0}
MAX_GAP = {2: 1e-6, 4: 1e-6, 8: 1e-6, 16: 1e-6, 64: 0.001, 1024: 0.001}
MAX_OVER_HIGHS = 0.002


@dataclass(frozen=True)
class Work:
    """A network of the traces, the samples of an epoch, and a usual batch of one GPU."""

    where: dict[str, str]
    samples_per_epoch: int
    batch: int

    def __str__(self) -> str:
        return "/".join(self.where.values())


WORKS = [
    Work({"dataset": "cifar100", "network": "shufflenetv2", "optimizer": "adadelta"}, 50_000, 512),
    Work({"dataset": "imagenet", "network": "resnet50"}, 1_281_167, 64),
    Work({"dataset": "librispeech", "network": "deepspeech2"}, 281_241, 32),
    Work({"dataset": "squad", "network": "bert_base_uncased"}, 88_524, 24),
    Work({"dataset": "sentiment140", "network": "bert_base_uncased"}, 1_600_000, 64),
]


class Mix:
    """The GPUs of a mix, and what a step of them costs."""

    def __init__(self, profiles: Sequence[DeviceProfile], size: int, batch: int, eta: float, spread: float) -> None:
        self.profiles, self.batch, self.eta = profiles, batch * size, eta
        random = np.random.default_rng(size)
        self.devices = [
            _other_silicon(profiles[rank % len(profiles)].options(), *(1 + spread * random.uniform(-0.5, 0.5, 2)))
            for rank in range(size)
        ]
        self.max_watts = sum(device.max_power_watts for device in self.devices)
        self.objective = ZeusCost(eta)

    def cost(self, plan: AllocationPlan) -> float:
        return self.eta * plan.energy_joules + (1 - self.eta) * self.max_watts * plan.step_seconds

    def with_cost(self, plan: AllocationPlan, bound: float | None = None) -> AllocationPlan:
        return replace(plan, cost=self.cost(plan), bound_cost=bound)


def _other_silicon(device: DeviceOptions, slower: float, hungrier: float) -> DeviceOptions:
    """Return a GPU of the same model that takes more or less time and power."""
    return replace(
        device,
        options=tuple(
            replace(
                option,
                fixed_seconds=option.fixed_seconds * slower,
                seconds_per_sample=option.seconds_per_sample * slower,
                floor_seconds=option.floor_seconds * slower,
                power_watts=option.power_watts * hungrier,
            )
            for option in device.options
        ),
    )


def published_plan(mix: Mix) -> AllocationPlan:
    """The published heuristic; see above."""
    halves = len(mix.devices) // 2
    together = mix.batch // halves  # samples of one GPU of each type
    batches = np.arange(together + 1)
    costs, limits = zip(*(_least_costs(profile, mix.eta, batches) for profile in mix.profiles), strict=True)
    first = int(np.argmin(costs[0] + costs[1][::-1]))
    pair = (first, together - first)
    settings = [int(limits[kind][pair[kind]]) for kind in (0, 1)]
    return mix.with_cost(AllocationPlan.from_shares("published", mix.devices, [*pair] * halves, settings * halves))


def _least_costs(profile: DeviceProfile, eta: float, batches: Any) -> tuple[Any, Any]:
    """Return the least cost of one GPU for each batch, and the limit, as the published heuristic has it."""
    settings = sorted({point.setting for point in profile.points}, reverse=True)
    costs = []
    for setting in settings:
        points = [point for point in profile.points if point.setting == setting]
        sizes = [point.batch for point in points]
        seconds, watts = (
            np.maximum(0.0, np.polyval(np.polyfit(sizes, values, min(2, len(points) - 1)), batches))
            for values in ([point.seconds for point in points], [point.watts for point in points])
        )
        costs.append(eta * watts * seconds + (1 - eta) * setting * seconds)
    table = np.where(batches > 0, np.array(costs), 0.0)
    chosen = np.argmin(table, axis=0)
    return table[chosen, np.arange(len(batches))], np.array(settings)[chosen]


@dataclass(frozen=True)
class Piece:
    """A straight part of an option: batches, seconds and cost above waiting, each at both ends."""

    rank: int
    setting: int
    first: int
    last: int
    seconds: tuple[float, float]
    cost: tuple[float, float]


def pieces(mix: Mix) -> list[Piece]:
    """The options of all devices, each cut where its cost bends."""
    found = []
    for rank, device in enumerate(mix.devices):
        for option in device.options:
            last = min(device.largest_batch(option), mix.batch)
            kink = min(max(math.floor(option.batch_at_floor), 0), last)
            for low, high in ((1, kink), (kink + 1, last)):
                if low <= high:
                    found.append(_piece(mix, rank, device, option, low, high))
    return found


def _piece(mix: Mix, rank: int, device: DeviceOptions, option: DeviceOption, low: int, high: int) -> Piece:
    seconds = (option.seconds(low), option.seconds(high))
    cost = tuple(
        mix.eta * (option.joules(batch) - device.blocking_power_watts * option.seconds(batch)) for batch in (low, high)
    )
    return Piece(rank, option.setting, low, high, seconds, (cost[0], cost[1]))


def highs_plan(mix: Mix, limit_seconds: float) -> tuple[AllocationPlan | None, bool]:
    """The best plan that HiGHS has found, with its bound, and whether it ended by itself.

    Variables: whether a piece is used, its batch above its first one, and the duration of the slowest rank.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_matrix

    parts = pieces(mix)
    count, ranks = len(parts), len(mix.devices)
    place, rank = np.arange(count), np.array([part.rank for part in parts])
    room = np.array([part.last - part.first for part in parts], float)
    first = np.array([part.first for part in parts], float)
    (seconds, costs), slopes = _lines(parts)
    end = 2 * count
    entries = [
        (rank, place, np.ones(count)),  # at most one piece of each rank
        (ranks + place, place, -room),  # the batch of a piece only where it is used
        (ranks + place, count + place, np.ones(count)),
        (np.full(count, ranks + count), place, first),  # all samples
        (np.full(count, ranks + count), count + place, np.ones(count)),
        (ranks + count + 1 + rank, place, seconds),  # each rank is done in time
        (ranks + count + 1 + rank, count + place, slopes[0]),
        (ranks + count + 1 + np.arange(ranks), np.full(ranks, end), -np.ones(ranks)),
    ]
    rows, columns, values = (np.concatenate(part) for part in zip(*entries, strict=True))
    upper = np.concatenate([np.ones(ranks), np.zeros(count), [mix.batch], np.zeros(ranks)])
    lower = np.full(len(upper), -np.inf)
    lower[ranks + count] = mix.batch
    rate = mix.eta * sum(device.blocking_power_watts for device in mix.devices) + (1 - mix.eta) * mix.max_watts
    result = milp(
        np.concatenate([costs, slopes[1], [rate]]),
        constraints=LinearConstraint(
            coo_matrix((values, (rows, columns)), (len(upper), end + 1)).tocsr(), lower, upper
        ),
        integrality=np.concatenate([np.ones(2 * count), [0]]),
        bounds=Bounds(0, np.concatenate([np.ones(count), room, [np.inf]])),
        options={"time_limit": limit_seconds},
    )
    if result.x is None:
        return None, False
    batches, settings = [0] * ranks, [device.options[-1].setting for device in mix.devices]
    for part, used, further in zip(parts, result.x[:count], result.x[count:end], strict=True):
        if used > 0.5:
            batches[part.rank], settings[part.rank] = part.first + round(further), part.setting
    plan = AllocationPlan.from_shares("HiGHS", mix.devices, batches, settings)
    return mix.with_cost(plan, min(float(result.mip_dual_bound), mix.cost(plan))), result.status == 0


def _lines(parts: Sequence[Piece]) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Return seconds and costs of the first batch of each piece, and of each further sample."""
    room = np.array([max(1, part.last - part.first) for part in parts])
    ends = np.array([(part.seconds, part.cost) for part in parts])
    starts = ends[:, :, 0].T
    slopes = (ends[:, :, 1] - ends[:, :, 0]).T / room
    return (starts[0], starts[1]), (slopes[0], slopes[1])


def cpu_seconds(action: Callable[[], Any], runs: int) -> tuple[float, Any]:
    """Return the lowest CPU time of some runs, and the result."""
    best, result = math.inf, None
    for _ in range(runs):
        begin = time.process_time()
        result = action()
        best = min(best, time.process_time() - begin)
    return best, result


def compare(work: Work, mix: Mix, highs_seconds: float) -> tuple[bool, bool]:
    """Print the lines of one mix. Returns whether all limits are kept, and whether HiGHS ended in time."""
    size = len(mix.devices)
    seconds, plan = cpu_seconds(lambda: allocate(mix.devices, mix.batch, mix.objective), 3)
    even = mix.with_cost(baselines.even_plan(mix.devices, mix.batch))
    simpler = [even, mix.with_cost(baselines.proportional_plan(mix.devices, mix.batch))]
    print(f"\n{work}, {size} GPUs, batch {mix.batch}")
    for other in [*simpler, published_plan(mix)]:
        print(line(other, even))
    print(line(plan, even, seconds))
    complaints = []
    if seconds > MAX_SECONDS.get(size, math.inf):
        complaints.append(f"took {seconds:.2f} s")
    if (plan.gap_fraction or 0.0) > MAX_GAP.get(size, 0.001):
        complaints.append(f"has a gap of {plan.gap_fraction:.3%}")
    complaints += [f"is dearer than {other.name}" for other in simpler if mix.cost(other) < mix.cost(plan) * (1 - 1e-9)]
    has_ended = False
    if highs_seconds:
        begin = time.perf_counter()
        best, has_ended = highs_plan(mix, highs_seconds)
        if best is not None:
            print(line(best, even, time.perf_counter() - begin) + ("" if has_ended else "  (stopped)"))
            if mix.cost(plan) > mix.cost(best) * (1 + MAX_OVER_HIGHS):
                complaints.append("is dearer than HiGHS")
            if mix.cost(best) < (plan.bound_cost or 0.0) * (1 - 1e-6):
                complaints.append("has a bound above the plan of HiGHS")
    for complaint in complaints:
        print(f"FAILED: the allocation {complaint}")
    return not complaints, has_ended


def line(plan: AllocationPlan, even: AllocationPlan, seconds: float | None = None) -> str:
    """Return a plan in one line."""
    assert plan.cost is not None
    assert even.cost is not None
    gap = "" if plan.gap_fraction is None else f"{plan.gap_fraction:.4%}"
    duration = "" if seconds is None else f"{seconds:.3f} s"
    extrapolated = sum(share.is_extrapolated for share in plan.ranks)
    note = f"  {extrapolated} ranks beyond what was measured" if extrapolated else ""
    return (
        f"{plan.name:13} {duration:>9} {gap:>9}   cost {plan.cost / even.cost - 1:+7.1%}   "
        f"time {plan.step_seconds / even.step_seconds - 1:+7.1%}   "
        f"energy {plan.energy_joules / even.energy_joules - 1:+7.1%}{note}"
    )


def find_traces(folder: Path | None) -> list[Path]:
    """Return the two tables, or nothing."""
    if folder is None:
        return []
    for place in (folder, folder / "power_limit"):
        if all((place / name).is_file() for name in FILES):
            return [place / name for name in FILES]
    return []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, help="a folder with the two tables")
    parser.add_argument("--sizes", default="2,4,8,16,64,1024", help="numbers of GPUs, even ones")
    parser.add_argument("--highs-seconds", type=float, default=60.0, help="limit for HiGHS; 0: without it")
    parser.add_argument("--spread", type=float, default=0.0, help="of speed and power among GPUs of one model")
    parser.add_argument("--eta", type=float, default=0.5)
    arguments = parser.parse_args()
    paths = find_traces(arguments.traces)
    if not paths:
        print(f"SKIPPED: no traces; name a folder that holds {' and '.join(FILES)} by --traces")
        return 0
    holds = True
    for work in WORKS:
        try:
            profiles = [
                DeviceProfile.from_csv(path, path.stem[-4:], watts, work.samples_per_epoch, work.where)
                for path, watts in zip(paths, BLOCKING_WATTS, strict=True)
            ]
        except UsageError as error:
            print(f"\nSKIPPED {work}: {error}")
            continue
        highs_seconds = arguments.highs_seconds
        for size in map(int, arguments.sizes.split(",")):
            mix = Mix(profiles, size, work.batch, arguments.eta, arguments.spread)
            is_kept, has_ended = compare(work, mix, highs_seconds)
            holds = holds and is_kept
            if not has_ended:  # larger ones take longer still
                highs_seconds = 0.0
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
