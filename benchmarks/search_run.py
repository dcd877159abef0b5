"""Costs and savings of a search in whole runs of training, beside a full sweep: time, energy, and broken bounds.

    python benchmarks/search_run.py [--seeds 20] [--traces FOLDER | --held-out] [--steps 60 200 650 2000 20000]
                                    [--factor 1.02 1.1]

Runs in virtual time under `MaxSlowdownConstraint`, on simulated GPUs or, with --traces, on the curves of measured
sweeps (interpolated to 5 W). The adaptive search never knows the GPU model it is tried on: its rows are left out of the
prior. Steps scatter by --spread percent; their durations drift by 2 %, correlated over 30 or 300 steps, or by a trend
of 5 % in either direction. A limit takes 2 s to settle; the energy counter is updated every 0.1 s, and the power of a
step scatters by 1 %. A run is compared with the very same steps at the original limit. "Best" is the best fixed limit
from the first step on, which nobody knows beforehand. No constant of the search was picked on the boards of --held-out:
other GPU models, and other work. Exits with 1 if a target below is missed.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from _sweeps import Sweep, read_sweeps  # noqa: E402

from zeus_core.device import Work, find_preset  # noqa: E402
from zeus_core.measurement import Measurement  # noqa: E402
from zeus_core.search import GridSearch, Trial  # noqa: E402
from zeus_core.search._prior import CurvePrior, read_prior  # noqa: E402
from zeus_core.search.objectives import MaxSlowdownConstraint, PowerLimitMeasurement  # noqa: E402
from zeus_core.search.run.adaptive_run_search import AdaptiveRunSearch  # noqa: E402
from zeus_core.search.run.fixed_trials import FixedTrials  # noqa: E402
from zeus_core.search.run.run_search import RunSearch  # noqa: E402

GRID_WATTS = 5
SETTLE_SECONDS, COUNTER_SECONDS, POWER_CV = 2.0, 0.1, 0.01
SWEEP_WATTS, SWEEP_STEPS = 25, 40  # of the full sweep, as the optimizer makes it by default
GPUS = {"A100": "A100-SXM4-80GB", "H100": "H100-SXM5-80GB", "V100": "V100-PCIE-32GB"}
# Power at the full clock over the default limit, active fraction, compute-bound share: a fit to the A100 LLM sweeps.
LLM = (1.2, 0.938, 0.744)
# Boards of --held-out: GPU models and shares of work that the constants were not picked on.
HELD_OUT_GPUS = {"A40": "A40", "RTX6000": "Quadro RTX 6000", "A100-PCIE": "A100-PCIE-80GB"} | GPUS
HELD_OUT_WORK = ((1.05, 0.85, 0.55), (1.5, 0.97, 0.92))  # as the three above: partly bound by memory, and by the clock
DRIFTS = ("none", "30 steps", "300 steps", "slower", "faster")
DRIFT_DEVIATION, TREND = 0.02, 0.05

# Pooled over the table: runs beyond the bound, and beyond it by more than 1 %.
MAX_BEYOND, BROKEN_BY = 0.025, 0.01
# At factor 1.1 and 0.5 s steps, without drift: share of the best fixed limit's saving at spreads up to 5 %, by steps.
SHARES = {200: 0.70, 650: 0.80, 2000: 0.87}
# At factor 1.02, there: the same share, exceeded by the lower end of its 95 % interval, by steps and spread.
TIGHT_SHARES = {(2000, 0.05): 0.70, (2000, 0.2): 0.45, (650, 0.05): 0.60}
# On A100, at factor 1.1: energy saved at spreads up to 5 %, and at 20 %.
SAVED = {2000: (0.115, 0.095), 20000: (0.13, 0.115)}


@dataclass(frozen=True)
class Board:
    """One kind of work on one GPU: its time, over that at the original limit, and its power, at each limit."""

    gpu: str
    limits: list[int]
    slowdown: np.ndarray
    watts: np.ndarray

    def best_saving(self, factor: float) -> float:
        joules = self.slowdown * self.watts
        return float(1 - joules[self.slowdown <= factor].min() / joules[0])


@dataclass(frozen=True)
class Case:
    """The settings that are varied over the table."""

    board: int
    step_seconds: float
    steps: int
    spread: float
    drift: str
    factor: float


@dataclass(frozen=True)
class Outcome:
    """A run; energies and times are fractions of those of the same steps at the original limit."""

    gpu: str
    case: Case
    time_factor: float
    saved: float
    best_saved: float
    search_steps: int
    search_joules: float

    @property
    def excess(self) -> float:
        return self.time_factor / self.case.factor - 1


def simulated_board(gpu: str, of_work: tuple[float, float, float] = LLM) -> Board:
    preset = find_preset(HELD_OUT_GPUS[gpu])
    active_over_default, active_fraction, compute_bound = of_work
    work = Work(1.0, active_over_default * preset.default_limit_watts, active_fraction, compute_bound)
    limits = list(range(int(preset.default_limit_watts), int(preset.limit_range_watts.lowest_watts) - 1, -GRID_WATTS))
    points = [preset.physics.operating_point(work, limit) for limit in limits]
    seconds = np.array([point.seconds for point in points])
    return Board(gpu, limits, seconds / seconds[0], np.array([point.energy_joules for point in points]) / seconds)


def measured_board(sweep: Sweep) -> Board:
    fine = sweep.refined(GRID_WATTS)
    return Board(fine.gpu, [int(limit) for limit in fine.limits], fine.seconds / fine.seconds[0], fine.watts)


@lru_cache
def prior_without(gpu: str) -> CurvePrior:
    return read_prior().without(gpu.partition("-")[0].lower())


def step_factors(case: Case, random: np.random.Generator) -> np.ndarray:
    """Return the duration of each step over the mean."""
    logs = case.spread * random.standard_normal(case.steps) - case.spread**2 / 2
    if case.drift in {"slower", "faster"}:
        logs += TREND * (1 if case.drift == "slower" else -1) * np.arange(case.steps) / case.steps
    elif case.drift != "none":
        kept = math.exp(-1 / int(case.drift.split()[0]))
        drift, changes = random.standard_normal(), random.standard_normal(case.steps) * math.sqrt(1 - kept**2)
        drifts = itertools.accumulate(changes, lambda before, change: kept * before + change, initial=drift)
        logs += DRIFT_DEVIATION * np.fromiter(drifts, float, case.steps + 1)[1:]
    return np.exp(logs)


class Training:
    """A run in progress."""

    def __init__(self, board: Board, case: Case, factors: np.ndarray, random: np.random.Generator) -> None:
        self._board, self._case, self._random = board, case, random
        self._until = np.concatenate([[0.0], np.cumsum(factors)]) * case.step_seconds
        self._factors = factors
        self._place = 0
        self.steps, self.seconds, self.joules = 0, 0.0, 0.0
        self.search_steps, self.search_joules = 0, 0.0

    def run(self, search: RunSearch) -> None:
        """Run blocks until the training ends."""
        while self.steps < self._case.steps:
            block = search.ask()
            is_search = not (block.is_choice and search.is_done)
            begin_joules = self.joules
            place = self._board.limits.index(block.setting)
            begin, begin_seconds = self.steps, self.seconds
            if place != self._place:
                self._place = place
                step_seconds = self._case.step_seconds * self._board.slowdown[place]
                self._advance(self.steps + math.ceil(SETTLE_SECONDS / step_seconds))
            measured = self.steps, self.seconds, self.joules
            last = self.steps + block.steps
            while self.steps < min(last, self._case.steps):
                self._advance(min(self.steps + max(block.steps // 8, 1), last))
                if not search.may_continue(self.steps - begin, self.seconds - begin_seconds):
                    break
            if self.steps > measured[0]:
                search.tell(self._trial(*measured), self.steps, self.seconds)
            if is_search:
                self.search_steps += self.steps - begin
                self.search_joules += self.joules - begin_joules

    def _advance(self, step: int) -> None:
        step = min(step, self._case.steps)
        seconds = float(self._until[step] - self._until[self.steps]) * self._board.slowdown[self._place]
        self.steps, self.seconds = step, self.seconds + seconds
        self.joules += seconds * self._board.watts[self._place]

    def _trial(self, begin: int, begin_seconds: float, begin_joules: float) -> Trial:
        count, seconds, joules = self.steps - begin, self.seconds - begin_seconds, self.joules - begin_joules
        resolution = float(self._board.watts[self._place]) * COUNTER_SECONDS / 2
        counted = joules * (1 + POWER_CV * self._random.standard_normal() / math.sqrt(count))
        counted = max(counted + resolution * self._random.uniform(-1, 1), 1e-3)
        scale = self._case.step_seconds * float(self._board.slowdown[self._place])
        deviation = float(self._factors[begin : self.steps].std(ddof=1)) * scale if count > 1 else 0.0
        measurement = Measurement.from_energies(seconds, {0: counted}, uncertainty_joules=resolution)
        return Trial(self._board.limits[self._place], count, measurement, deviation)


def outcome(board: Board, case: Case, seed: int, make_search: Callable[[Board, Case], RunSearch]) -> Outcome:
    random = np.random.default_rng(zlib.crc32(repr((case, seed)).encode()))
    factors = step_factors(case, random)
    training, search = Training(board, case, factors, random), make_search(board, case)
    training.run(search)
    untouched = float(factors.sum()) * case.step_seconds
    joules = untouched * float(board.watts[0])
    return Outcome(
        board.gpu,
        case,
        training.seconds / untouched,
        1 - training.joules / joules,
        board.best_saving(case.factor),
        training.search_steps,
        training.search_joules / joules,
    )


def adaptive(board: Board, case: Case) -> RunSearch:
    rule = MaxSlowdownConstraint(case.factor)
    return AdaptiveRunSearch(board.limits, rule, max_steps=case.steps, prior=prior_without(board.gpu))


def full_sweep(board: Board, case: Case) -> RunSearch:
    def choose(trials: Iterable[Trial]) -> int:
        rule = MaxSlowdownConstraint(case.factor)
        return rule.select([PowerLimitMeasurement.from_trial(trial, 1) for trial in trials])

    limits = board.limits[:: SWEEP_WATTS // GRID_WATTS]
    return FixedTrials(GridSearch(limits), limits, choose, SWEEP_STEPS)


def show(name: str, some: list[Outcome]) -> None:
    saved, best = (float(np.mean([getattr(one, field) for one in some])) for field in ("saved", "best_saved"))
    excesses = np.array([one.excess for one in some])
    print(
        f"  {name:34} {np.mean([one.time_factor for one in some]):6.3f} {saved:7.1%} {best:7.1%} {saved / best:6.0%} "
        f"{min(one.saved for one in some):7.1%} {np.mean(excesses > 0):7.1%} {np.mean(excesses > BROKEN_BY):7.1%} "
        f"{excesses.max():+7.2%} {np.mean([one.search_steps for one in some]):6.0f} "
        f"{np.mean([one.search_joules for one in some]):7.1%}"
    )


def show_table(title: str, outcomes: list[Outcome]) -> None:
    columns = ("time", "saved", "best", "share", "least", "beyond", "by 1 %", "worst", "steps", "joules")
    widths = (6, 7, 7, 6, 7, 7, 7, 7, 6, 7)
    heads = " ".join(f"{column:>{width}}" for column, width in zip(columns, widths, strict=True))
    print(f"\n{title}\n  {'':34} {heads}")
    groups: dict[str, Callable[[Outcome], object]] = {
        "GPU": lambda one: one.gpu,
        "step seconds": lambda one: one.case.step_seconds,
        "drift": lambda one: one.case.drift,
        "factor, steps, spread": lambda one: (one.case.factor, one.case.steps, one.case.spread),
    }
    for group, value_of in groups.items():
        for value in dict.fromkeys(value_of(one) for one in outcomes):
            show(f"{group} {value}", [one for one in outcomes if value_of(one) == value])
    show("all", outcomes)


def interval(some: list[Outcome]) -> tuple[float, float]:
    """Return the share of the best fixed limit's saving, and the half-width of its 95 % interval."""
    saved, best = (np.array([getattr(one, field) for one in some]) for field in ("saved", "best_saved"))
    share = saved.sum() / best.sum()
    return share, 1.96 * float(np.std(saved - share * best)) / math.sqrt(len(some)) / best.mean()


def tight_misses(outcomes: list[Outcome]) -> Iterator[str]:
    """Print the shares at a tight bound; yield the targets that are missed."""
    for (steps, spread), share in TIGHT_SHARES.items():
        some = [
            one
            for one in outcomes
            if (one.case.factor, one.case.steps, one.case.spread) == (1.02, steps, spread)
            and (one.case.step_seconds, one.case.drift) == (0.5, "none")
        ]
        if some:
            reached, error = interval(some)
            print(f"factor 1.02, {steps:,} steps, spread {spread:.0%}: share {reached:.3f} +-{error:.3f} of {share}")
            if reached - error < share:
                yield f"share {reached:.3f} +-{error:.3f} at factor 1.02 in {steps:,} steps, spread {spread:.0%}"


def misses(outcomes: list[Outcome]) -> list[str]:
    """Return the targets that are missed."""
    excesses = np.array([one.excess for one in outcomes])
    missed = list(tight_misses(outcomes))
    if np.mean(excesses > 0) > MAX_BEYOND:
        missed.append(f"{np.mean(excesses > 0):.1%} of all runs beyond their bound, more than {MAX_BEYOND:.1%}")
    if excesses.max() > BROKEN_BY:
        missed.append(f"a run {excesses.max():.2%} beyond its bound, more than {BROKEN_BY:.0%}")
    if min(one.saved for one in outcomes) < 0:
        missed.append("a run that used more energy than untouched")
    usual = [one for one in outcomes if (one.case.factor, one.case.step_seconds, one.case.drift) == (1.1, 0.5, "none")]
    for steps, share in SHARES.items():
        some = [one for one in usual if one.case.steps == steps and one.case.spread <= 0.05]
        if some and sum(one.saved for one in some) < share * sum(one.best_saved for one in some):
            missed.append(f"less than {share:.0%} of the best saving in {steps:,} steps")
    for steps, (low, high) in SAVED.items():
        for spreads, target in (((0.02, 0.05), low), ((0.2,), high)):
            some = [
                one for one in usual if one.gpu == "A100" and one.case.steps == steps and one.case.spread in spreads
            ]
            if some and np.mean([one.saved for one in some]) < target:
                missed.append(f"A100, {steps:,} steps, spread {spreads}: less than {target:.1%} saved")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0, help="constants were picked on seeds below 1000")
    parser.add_argument("--traces", type=Path, help="folder with measured sweeps (CSV)")
    parser.add_argument("--held-out", action="store_true", help="on boards that no constant was picked on")
    parser.add_argument("--gpu", nargs="+", choices=GPUS, default=list(GPUS))
    parser.add_argument("--steps", type=int, nargs="+", default=[60, 200, 650, 2000, 20000])
    parser.add_argument("--step-seconds", type=float, nargs="+", default=[0.05, 0.5])
    parser.add_argument("--spread", type=float, nargs="+", default=[2.0, 5.0, 20.0], help="in percent")
    parser.add_argument("--drift", nargs="+", choices=DRIFTS, default=list(DRIFTS))
    parser.add_argument("--factor", type=float, nargs="+", default=[1.02, 1.1])
    parser.add_argument("--no-sweep", action="store_true", help="leave out the full sweep")
    arguments = parser.parse_args()
    boards = [simulated_board(gpu) for gpu in arguments.gpu]
    if arguments.held_out:
        boards = [simulated_board(gpu, work) for gpu in HELD_OUT_GPUS for work in HELD_OUT_WORK]
        boards += [simulated_board(gpu) for gpu in HELD_OUT_GPUS if gpu not in GPUS]
    if arguments.traces is not None:
        sweeps = read_sweeps(arguments.traces) if arguments.traces.is_dir() else []
        boards = [measured_board(sweep) for sweep in sweeps if sweep.binds and sweep.is_clean]
        if not boards:
            print(f"SKIPPED: {arguments.traces} holds no sweeps; nothing was run", file=sys.stderr)
            return 0
    spreads = [percent / 100 for percent in arguments.spread]
    cases = [
        Case(*values)
        for values in itertools.product(
            range(len(boards)), arguments.step_seconds, arguments.steps, spreads, arguments.drift, arguments.factor
        )
    ]
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    begin = time.process_time()
    searches = {"adaptive search": adaptive} | ({} if arguments.no_sweep else {"full sweep": full_sweep})
    results = {
        name: [outcome(boards[case.board], case, seed, make) for case in cases for seed in seeds]
        for name, make in searches.items()
    }
    for name, outcomes in results.items():
        show_table(name, outcomes)
    print(f"\n{time.process_time() - begin:.0f} s of CPU")
    missed = misses(results["adaptive search"])
    print("\n".join(f"MISSED: {miss}" for miss in missed) or "all targets are met")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
