"""Allocations for mixed GPUs beside simpler ones and another solver, on measured profiles.

    python benchmarks/allocation.py --traces DIR [--sizes 2,4,8,16,64,1024] [--highs-seconds 60] [--spread 0.08]

DIR holds tables summary_power_<GPU>.csv (such as those of V100 and A40, the power traces of Zeus, NSDI'23), itself or
in power_limit/. The GPUs of a mix are of all models in turn; with `--spread 0.08` those of one model differ by up to
8 % in speed and in power, as real ones do. Columns: CPU seconds; the certified gap; cost, time and energy of a step
relative to an even split at the highest limits, for

- proportional: batches in proportion to throughput, at the highest limits
- published: the heuristic of the published extension for two types of GPUs: the least sum of the costs of each GPU,
  with quadratics in the batch for time and power, clamped at 0, and time weighed by the chosen limit. Its choice is
  then predicted as all others are
- allocation: `zeus_core.mixed.allocation.allocate`
- HiGHS, if SciPy is there: the same problem as a mixed-integer program, in seconds of the clock, stopped after a
  limit; its best plan is compared anyway. Once it was stopped, larger mixes go without, unless by --always-highs

Costs are `ZeusCost(eta)`: the highest limits of all GPUs weigh the time. Predictions are fits of the traces, and no
batch is larger than the largest that was measured, but for the published heuristic.

Before them, and without traces: random mixes of two models with hundreds of samples for each GPU, many with a bound on
time, where no search closes the gap. Columns: CPU seconds, the gap, and how much dearer the plan is than that of a
search with ten times the effort. Exits with 1 if a limit below is not kept.
"""

from __future__ import annotations

import argparse
import importlib.util
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

from zeus_core.errors import UsageError  # noqa: E402
from zeus_core.mixed.allocation import DeviceProfile, _solver, allocate  # noqa: E402
from zeus_core.mixed.allocation.allocating import even_plan, proportional_plan  # noqa: E402
from zeus_core.mixed.allocation.allocation_plan import AllocationPlan  # noqa: E402
from zeus_core.mixed.allocation.device_options import DeviceOption, DeviceOptions  # noqa: E402
from zeus_core.optimizer.power_limit import Energy, EnergyWithin, Objective, ZeusCost  # noqa: E402

PREFIX = "summary_power_"
# The least that was seen of GPUs that wait in a collective.
BLOCKING_WATTS = {"v100": 50.0, "a40": 68.0, "rtx6000": 56.0, "p100": 48.0}
OTHER_BLOCKING_WATTS = 60.0
MAX_SECONDS = {64: 0.5, 1024: 2.0}
MAX_GAP = {2: 1e-6, 4: 1e-6, 8: 1e-6, 16: 1e-6, 64: 0.001, 1024: 0.001}
MAX_OVER_HIGHS = 0.002
HARD_MIXES, HARD_SEED = 40, 20261126
HARD_MAX_SECONDS, HARD_MAX_DEARER = {64: 1.0, 1024: 3.0}, 0.0005


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
                fixed_joules=option.fixed_joules * slower * hungrier,
            )
            for option in device.options
        ),
    )


def published_plans(mix: Mix) -> list[AllocationPlan]:
    """The published heuristic, see above; nothing if there are not two halves of two types."""
    if len(mix.profiles) != 2 or len(mix.devices) % 2:
        return []
    halves = len(mix.devices) // 2
    together = mix.batch // halves  # samples of one GPU of each type
    batches = np.arange(together + 1)
    costs, limits = zip(*(_least_costs(profile, mix.eta, batches) for profile in mix.profiles), strict=True)
    first = int(np.argmin(costs[0] + costs[1][::-1]))
    pair = (first, together - first)
    settings = [int(limits[kind][pair[kind]]) for kind in (0, 1)]
    plan = AllocationPlan.from_shares("published", mix.devices, [*pair] * halves, settings * halves)
    return [mix.with_cost(plan)]


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
    even = mix.with_cost(even_plan(mix.devices, mix.batch))
    simpler = [even, mix.with_cost(proportional_plan(mix.devices, mix.batch))]
    print(f"\n{work}, {size} GPUs, batch {mix.batch}")
    for other in [*simpler, *published_plans(mix)]:
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
        from tests.mixed.allocation.highs import highs_plan

        begin = time.perf_counter()
        found = highs_plan(mix.devices, mix.batch, mix.eta, (1 - mix.eta) * mix.max_watts, highs_seconds)
        if found is not None:
            has_ended = found.has_ended
            best = mix.with_cost(found.plan, min(found.bound, mix.cost(found.plan)))
            print(line(best, even, time.perf_counter() - begin) + ("" if has_ended else "  (stopped)"))
            if mix.cost(plan) > mix.cost(best) * (1 + MAX_OVER_HIGHS):
                complaints.append("is dearer than HiGHS")
            if mix.cost(best) < (plan.bound_cost or 0.0) * (1 - 1e-6):
                complaints.append("has a bound above the plan of HiGHS")
    for complaint in complaints:
        print(f"FAILED: the allocation {complaint}")
    return not complaints, has_ended


def hard_mix(random: np.random.Generator, size: int) -> tuple[list[DeviceOptions], int, Objective]:
    """Return devices of two models in turn, a global batch and an objective."""
    models = []
    for name, watts, slowest in (("one", 400.0, 1e-3), ("other", 300.0, 3e-3)):
        clocks = 1.0 - 0.6 * np.arange(settings := int(random.choice([5, 12, 30]))) / settings
        seconds = random.uniform(1e-4, slowest) * (0.35 + 0.65 / clocks)
        powers = watts * (0.25 + 0.75 * clocks**2.4)
        floor, fixed = random.choice([0.0, 0.02]), random.choice([0.001, 0.003, 0.01])
        options = [
            DeviceOption(round(1400 * clock), fixed, second, power, floor)
            for clock, second, power in zip(clocks, seconds, powers, strict=True)
        ]
        models.append(DeviceOptions(name, tuple(options), 60.0, 8192, "SM clock"))
    objective = random.choice([Energy(), EnergyWithin(1.05), EnergyWithin(1.1), EnergyWithin(1.3), ZeusCost(0.5)])
    return [models[rank % 2] for rank in range(size)], size * int(random.choice([256, 512, 1024])), objective


def check_hard_mixes() -> bool:
    """Print a line for each hard mix. Returns whether all limits are kept."""
    random, holds = np.random.default_rng(HARD_SEED), True
    for size in [*random.choice([12, 16, 24, 32, 48, 64], HARD_MIXES).tolist(), 1024]:
        mix = hard_mix(random, size)
        seconds, plan = cpu_seconds(lambda mix=mix: allocate(*mix), 1)
        effort = _solver._MAX_SECONDS
        _solver._MAX_SECONDS = 10 * effort
        longer = allocate(*mix)
        _solver._MAX_SECONDS = effort
        assert plan.cost is not None
        assert longer.cost is not None
        dearer = plan.cost / longer.cost - 1.0
        print(f"{size:5} GPUs, batch {mix[1]:7}, {mix[2]!r}: {seconds:.2f} s  {plan.gap_fraction:.4%}  {dearer:+.4%}")
        if seconds > HARD_MAX_SECONDS[1024 if size > 64 else 64] or dearer > HARD_MAX_DEARER:
            holds = False
            print("FAILED: it took too long, or is too dear")
    return holds


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


def find_tables(folder: Path | None) -> list[Path]:
    """Return the tables in a folder, if there are at least two; that of the V100 comes first."""
    for place in [] if folder is None else [folder, folder / "power_limit"]:
        tables = sorted(place.glob(f"{PREFIX}*.csv"), reverse=True)
        if len(tables) > 1:
            return tables
    return []


def read_profiles(tables: Sequence[Path], work: Work) -> list[DeviceProfile]:
    """Return the profiles of all GPU models for a network."""
    profiles = []
    for table in tables:
        model = table.stem.removeprefix(PREFIX)
        watts = BLOCKING_WATTS.get(model, OTHER_BLOCKING_WATTS)
        profiles.append(DeviceProfile.from_csv(table, model, watts, work.samples_per_epoch, work.where))
    return profiles


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, help="a folder of power traces")
    parser.add_argument("--sizes", default="2,4,8,16,64,1024", help="numbers of GPUs")
    parser.add_argument("--highs-seconds", type=float, default=60.0, help="limit for HiGHS; 0: without it")
    parser.add_argument("--always-highs", action="store_true", help="also mixes larger than one it did not end for")
    parser.add_argument("--spread", type=float, default=0.0, help="of speed and power among GPUs of one model")
    parser.add_argument("--eta", type=float, default=0.5)
    arguments = parser.parse_args()
    holds = check_hard_mixes()
    tables = find_tables(arguments.traces)
    if not tables:
        print(f"SKIPPED: no traces; name a folder with {PREFIX}v100.csv and {PREFIX}a40.csv by --traces")
        return 0 if holds else 1
    if arguments.highs_seconds and importlib.util.find_spec("scipy") is None:
        print("HiGHS is left out: SciPy is not installed")
        arguments.highs_seconds = 0.0
    for work in WORKS:
        highs_seconds = arguments.highs_seconds
        for size in map(int, arguments.sizes.split(",")):
            try:
                mix = Mix(read_profiles(tables, work), size, work.batch, arguments.eta, arguments.spread)
                is_kept, has_ended = compare(work, mix, highs_seconds)
            except UsageError as error:
                print(f"\nSKIPPED {work}, {size} GPUs: {error}")
                continue
            holds = holds and is_kept
            if not has_ended and not arguments.always_highs:  # larger ones take longer still
                highs_seconds = 0.0
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
