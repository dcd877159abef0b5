"""The searches on measured sweeps of power limits: trials, regret, cost of searching, and broken bounds.

    python benchmarks/search_replay.py --traces FOLDER [--noise 0.5 1 2] [--seeds 20] [--grid measured 5]

Every trial is a point of a sweep, with normal noise on its time and on its power. Regret is the cost of the choice over
the lowest cost of the sweep, less 1; for the slowdown bound, the energy over the least energy within the bound (a
choice beyond it has none). Extra is what the trials cost beyond as many windows at the best setting, in such windows.
The adaptive search never knows the GPU model it is tried on: its rows are left out of the prior. A sweep binds if the
highest draw exceeds the lowest limit, and is clean if no limit is slower than a lower one by more than 1 %. On a finer
grid, a sweep is interpolated. Exits with 1 if a target below is not met; says so and ends if there is no folder.
"""

from __future__ import annotations

import argparse
import sys
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from _sweeps import Sweep, read_sweeps  # noqa: E402

from zeus_core.measurement import Measurement  # noqa: E402
from zeus_core.search import AdaptiveSearch, GridSearch, Search, Trial  # noqa: E402
from zeus_core.search._prior import CurvePrior, read_prior  # noqa: E402
from zeus_core.search.objectives import (  # noqa: E402
    Energy,
    MaxSlowdownConstraint,
    OptimumSelector,
    PowerLimitMeasurement,
    ZeusCost,
)

FACTOR, BROKEN_BY = 1.1, 0.01
STEPS = 40  # of a trial: as many as the optimizer measures by default
TARGET_NOISE = 0.01
# Of the adaptive search, on clean sweeps that bind: trials, mean and 95th percentile of the regret, bounds broken by
# more than 1 %. None: no target.
TARGETS = {
    "ZeusCost": (4.0, 0.0030, 0.015, None),
    "Energy": (6.0, None, 0.017, None),
    "MaxSlowdown": (None, None, None, 0.02),
}
# In 36 sweeps no limit binds on average. Five of them draw 3 to 9 % less at the lowest: some of those take 3 trials.
TARGET_UNBOUND_TRIALS, TARGET_UNBOUND_SHARE = 2, 0.97

SELECTORS: dict[str, Callable[[Sweep], OptimumSelector]] = {
    "ZeusCost": lambda sweep: ZeusCost(0.5, sweep.gpus),
    "Energy": lambda sweep: Energy(),
    "MaxSlowdown": lambda sweep: MaxSlowdownConstraint(FACTOR),
}
SEARCHES: dict[str, Callable[[Sweep, OptimumSelector], Search]] = {
    "full sweep": lambda sweep, selector: GridSearch(settings_of(sweep)),
    "adaptive": lambda sweep, selector: AdaptiveSearch(settings_of(sweep), selector, prior=prior_without(sweep.gpu)),
}


@dataclass(frozen=True)
class Run:
    gpu: str
    trials: int
    regret: float
    extra: float
    slowdown: float
    stays_or_lowest: bool


@lru_cache
def prior_without(gpu: str) -> CurvePrior:
    return read_prior().without(gpu)


def settings_of(sweep: Sweep) -> list[int]:
    return [int(limit) for limit in sweep.limits]


def true_costs(sweep: Sweep, selector: OptimumSelector) -> np.ndarray:
    joules = sweep.seconds * sweep.watts * sweep.gpus
    if isinstance(selector, ZeusCost):
        return selector.eta_knob * joules + (1 - selector.eta_knob) * sweep.limits[0] * sweep.gpus * sweep.seconds
    return joules


def trial_at(sweep: Sweep, place: int, noise: float, random: np.random.Generator) -> Trial:
    seconds = sweep.seconds[place] * np.exp(noise * random.standard_normal())
    watts = sweep.watts[place] * np.exp(noise * random.standard_normal())
    joules = STEPS * seconds * watts
    measurement = Measurement.from_energies(
        STEPS * seconds, dict.fromkeys(range(sweep.gpus), joules), uncertainty_joules=1.96 * noise * joules
    )
    return Trial(settings_of(sweep)[place], STEPS, measurement, noise * seconds * STEPS**0.5)


def run(sweep: Sweep, search: Search, selector: OptimumSelector, noise: float, seed: int) -> Run:
    random = np.random.default_rng([seed, zlib.crc32(f"{sweep.gpu}/{sweep.name}".encode())])
    settings, trials = settings_of(sweep), dict[int, Trial]()
    while (setting := search.ask()) is not None:
        trials[setting] = trial_at(sweep, settings.index(setting), noise, random)
        search.tell(trials[setting])
    chosen = search.choice
    if chosen is None:
        chosen = selector.select([PowerLimitMeasurement.from_trial(trial, STEPS) for trial in trials.values()])
    costs, slowdowns, place = true_costs(sweep, selector), sweep.seconds / sweep.seconds[0], settings.index(chosen)
    allowed = slowdowns <= FACTOR if isinstance(selector, MaxSlowdownConstraint) else slowdowns > 0
    best = costs[allowed].min()
    return Run(
        sweep.gpu,
        len(trials),
        max(costs[place] / best - 1, 0.0) if allowed[place] else 0.0,
        sum(costs[settings.index(setting)] / best - 1 for setting in trials),
        float(slowdowns[place]),
        place in {0, len(settings) - 1},
    )


def show(name: str, runs: list[Run], is_bound: bool) -> tuple[float, float, float, float]:
    trials, mean, p95 = (
        float(np.mean([one.trials for one in runs])),
        float(np.mean([one.regret for one in runs])),
        float(np.percentile([one.regret for one in runs], 95)),
    )
    broken = float(np.mean([one.slowdown > FACTOR + BROKEN_BY * FACTOR for one in runs]))
    beyond = float(np.mean([one.slowdown > FACTOR for one in runs]))
    extra = float(np.mean([one.extra for one in runs]))
    bound = f"{beyond:9.1%} {broken:9.1%}" if is_bound else ""
    print(f"  {name:28} {trials:6.2f} {mean:9.2%} {p95:9.2%} {extra:7.2f} {bound}")
    return trials, mean, p95, broken


def compare(sweeps: list[Sweep], noise: float, seeds: range) -> Iterator[str]:
    """Print the comparison on some sweeps; yield the targets that the adaptive search misses."""
    for rule, make_selector in SELECTORS.items():
        is_bound = rule == "MaxSlowdown"
        bound = f"{'beyond':>9} {'by > 1 %':>9}" if is_bound else ""
        print(f"  {rule:28} {'trials':>6} {'mean':>9} {'p95':>9} {'extra':>7} {bound}")
        for name, make_search in SEARCHES.items():
            runs = [
                run(sweep, make_search(sweep, selector), selector, noise, seed)
                for sweep in sweeps
                for selector in [make_selector(sweep)]
                for seed in seeds
            ]
            reached = show(name, runs, is_bound)
            if name == "adaptive":
                by_gpu = defaultdict(list)
                for one in runs:
                    by_gpu[one.gpu].append(one)
                for gpu, some in by_gpu.items():
                    show(f"  {gpu}, not in the prior", some, is_bound)
                for what, value, target in zip(
                    ("trials", "mean regret", "p95 regret", "bounds broken"), reached, TARGETS[rule], strict=True
                ):
                    if target is not None and value > target:
                        yield f"{rule}: {what} {value:.4g}, above {target:g}"


def compare_unbound(sweeps: list[Sweep], noise: float, seeds: range) -> Iterator[str]:
    """Print how sweeps that no limit binds are recognised; yield the target if it is missed."""
    runs = [
        run(sweep, SEARCHES["adaptive"](sweep, selector), selector, noise, seed)
        for sweep in sweeps
        for make_selector in SELECTORS.values()
        for selector in [make_selector(sweep)]
        for seed in seeds
    ]
    if not runs:
        return
    recognised = float(np.mean([one.trials <= TARGET_UNBOUND_TRIALS and one.stays_or_lowest for one in runs]))
    most = max(one.trials for one in runs)
    print(f"  {len(sweeps)} sweeps that no limit binds: {recognised:.1%} recognised in 1 or 2 trials, at most {most}")
    if recognised < TARGET_UNBOUND_SHARE:
        yield f"sweeps that no limit binds: {recognised:.1%} recognised in 1 or 2 trials"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, help="folder with measured sweeps (CSV)")
    parser.add_argument("--noise", type=float, nargs="+", default=[0.5, 1.0, 2.0], help="in percent")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0, help="constants were picked on seeds below 1000")
    parser.add_argument("--grid", nargs="+", default=["measured", "5"], help="'measured', or a step in watts")
    parser.add_argument("--all", action="store_true", help="also the sweeps that bind but are not clean")
    arguments = parser.parse_args()
    sweeps = read_sweeps(arguments.traces) if arguments.traces.is_dir() else []
    if not sweeps:
        print(f"SKIPPED: {arguments.traces} holds no sweeps; nothing was replayed", file=sys.stderr)
        return 0
    bound = [sweep for sweep in sweeps if sweep.binds]
    clean = [sweep for sweep in bound if sweep.is_clean]
    unbound = [sweep for sweep in sweeps if not sweep.binds]
    models = sorted({sweep.gpu for sweep in sweeps})
    print(f"{len(sweeps)} sweeps of {', '.join(models)}: {len(bound)} bind, {len(clean)} of them clean")
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    missed, begin = [], time.process_time()
    for grid in arguments.grid:
        for percent in arguments.noise:
            noise = percent / 100
            print(f"\n{grid} W grid, {percent:g} % noise, {arguments.seeds} seeds, clean sweeps that bind")
            misses = [
                *compare([_on(grid, sweep) for sweep in clean], noise, seeds),
                *compare_unbound([_on(grid, sweep) for sweep in unbound], noise, seeds),
            ]
            if noise == TARGET_NOISE:
                missed += [f"{grid} W grid: {miss}" for miss in misses]
            if arguments.all:
                print(f"\n{grid} W grid, {percent:g} % noise, all sweeps that bind")
                list(compare([_on(grid, sweep) for sweep in bound], noise, seeds))
    print(f"\n{time.process_time() - begin:.0f} s of CPU")
    print("\n".join(f"MISSED: {miss}" for miss in missed) or "all targets at 1 % noise are met")
    return int(bool(missed))


def _on(grid: str, sweep: Sweep) -> Sweep:
    return sweep if grid == "measured" else sweep.refined(int(grid))


if __name__ == "__main__":
    sys.exit(main())
