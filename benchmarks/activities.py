"""Runs of several activities in virtual time: one setting for all, or one for each, by known curves and by the search.

    python benchmarks/activities.py [--seeds 20] [--cycles 50 500 5000] [--spread 2 10 20] [--factor 1.01 1.02 1.05 1.1]
                                    [--mix NAME ...] [--held-out] [--drift none longer shrinking shorter ...]

A run is a number of cycles, each with visits of some activities, such as generation and a training step, on a simulated
GPU whose model is left out of the prior. Settings are locked SM clocks. Visits scatter by --spread percent, each on its
own; the first activity of a mix may get longer by half (longer) or shorter by half (shrinking), last 0.4 times as long
from mid-run on (shorter) while the last one lasts twice as long (swapped), be visited in 2 of 5 cycles alone from then
on (fewer), twice in each (more), never again (gone), or never before (late). A change takes 10 ms, in which the setting
before holds; an activity settles for 2 s at a new setting. With --pace fast, cycles are 20 times as short and settings
may change at any time; with slow, 120 times an hour at most.

Beside each other, in percent of the energy: the best limit and the best clock for all activities from the first cycle
on, within the bound; the best clock of each by known curves, among those that visits and changes allow ("each"); the
same if the curves are known, but not believed: visits at the original setting must show that the bound is kept
("shown"); a search for one clock for all, with a cycle as its step ("one"); and the search for each, which knows
nothing beforehand, with its share of "each", the least, and the most that it is behind the best for all. --held-out
draws boards by seed: other voltages, static powers, draws and shares. Exits with 1 if a target below is missed.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
import zlib
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from statistics import NormalDist

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT)]

from zeus_core.activities.activities_search import STEPS, ActivitiesRunSearch  # noqa: E402
from zeus_core.device import Work, find_preset  # noqa: E402
from zeus_core.measurement import Measurement  # noqa: E402
from zeus_core.search import Trial  # noqa: E402
from zeus_core.search._prior import CurvePrior, read_prior  # noqa: E402
from zeus_core.search.objectives import EnergyWithin  # noqa: E402

SWITCH_SECONDS, SETTLE_SECONDS, COUNTER_SECONDS, POWER_CV = 0.01, 2.0, 0.1, 0.01
MIN_LATENCIES, CONFIDENCE = 20, 0.98
FAST = 20.0  # cycles are so many times as short
CHANGES = {"slow": 120.0, "fast": 1e9}  # an hour
DRIFTS = ("none", "longer", "shrinking", "shorter", "swapped", "fewer", "more", "gone", "late")
RATES = {
    "fewer": (1.0, 0.4),
    "more": (1.0, 2.0),
    "gone": (1.0, 0.0),
    "late": (0.0, 1.0),
}  # visits before mid-run, after

MAX_BEYOND, BROKEN_BY = 0.025, 0.01
CYCLES, MAX_SPREAD = 500, 0.1  # of the next two
SHARE, AHEAD = 0.85, 0.03  # of the best with one clock each, where it is so much better than one for all
MAX_BEHIND = 0.01  # the best setting for all, elsewhere


@dataclass(frozen=True)
class Part:
    """An activity of a mix.

    Attributes:
        name: Its name.
        seconds: Duration of a visit.
        power: Power while active at the full clock, over the default limit.
        active: Share of the time that the GPU is active.
        bound: Share of that which stretches with the clock (k).
        every: It is visited once in so many cycles.
    """

    name: str
    seconds: float
    power: float
    active: float
    bound: float
    every: int = 1


def _steps(seconds: float) -> Part:
    return Part(STEPS, seconds, 1.2, 0.938, 0.8)


# Shares, powers and k of generation as published (docs/search.md); 250 and 300 W of 700 W, 170 of 400, 130 of 250.
MIXES: dict[str, tuple[str, tuple[Part, ...]]] = {
    "H100 75% k.05": ("H100-SXM5-80GB", (Part("generation", 60, 0.357, 1, 0.05), _steps(20))),
    "H100 60% k.05": ("H100-SXM5-80GB", (Part("generation", 48, 0.43, 1, 0.05), _steps(32))),
    "H100 60% k.15": ("H100-SXM5-80GB", (Part("generation", 48, 0.43, 1, 0.15), _steps(32))),
    "H100 60% k.30": ("H100-SXM5-80GB", (Part("generation", 48, 0.43, 1, 0.3), _steps(32))),
    "A100 60% k.05": ("A100-SXM4-80GB", (Part("generation", 48, 0.43, 1, 0.05), _steps(32))),
    "A100 evaluation": ("A100-SXM4-80GB", (Part("evaluation", 55, 0.8, 1, 0.5, every=100), _steps(5))),
    "V100 3": (
        "V100-PCIE-32GB",
        (Part("generation", 60, 0.52, 1, 0.05), Part("reference", 20, 0.6, 1, 0.4), _steps(40)),
    ),
    "H100 4": (
        "H100-SXM5-80GB",
        (
            Part("generation", 60, 0.43, 1, 0.05),
            Part("reference", 30, 0.38, 1, 0.3),
            Part("reward", 30, 0.3, 0.7, 0.2),
            _steps(60),
        ),
    ),
    "H100 1": ("H100-SXM5-80GB", (_steps(60),)),
}


@dataclass(frozen=True)
class Case:
    """The settings that are varied."""

    mix: str
    cycles: int
    spread: float
    drift: str
    factor: float
    pace: str


class Board:
    """The activities of a mix on a GPU: time of a visit, and its power, at each clock and at each limit."""

    def __init__(self, mix: str, pace: str, seed: int | None) -> None:
        gpu, parts = MIXES[mix]
        preset, draw = find_preset(gpu), np.random.default_rng(zlib.crc32(repr((mix, seed)).encode()))
        physics = preset.physics
        if seed is not None:

            def around(value: float, by: float) -> float:
                return float(value * math.exp(by * draw.standard_normal()))

            physics = replace(
                physics,
                static_power_watts=around(physics.static_power_watts, 0.2),
                lowest_voltage_fraction=min(around(physics.lowest_voltage_fraction, 0.06), 0.95),
                voltage_slope=around(physics.voltage_slope, 0.2),
            )
            parts = tuple(
                replace(one, power=around(one.power, 0.1), bound=min(around(one.bound, 0.25), 0.95)) for one in parts
            )
        self.gpu, self.parts = gpu.partition("-")[0].lower(), parts
        if pace == "fast":
            self.parts = tuple(replace(one, seconds=one.seconds / FAST) for one in parts)
        lowest, highest = preset.limit_range_watts
        self.clocks = list(range(preset.highest_clock_mhz, preset.lowest_clock_mhz - 1, -preset.clock_step_mhz))
        limits = np.arange(highest, lowest - 1, -5.0)
        points = [(preset.default_limit_watts, clock / preset.highest_clock_mhz) for clock in self.clocks]
        self.seconds, self.watts, at_limits = [], [], []
        for one in self.parts:
            work = Work(one.seconds, one.power * preset.default_limit_watts, one.active, one.bound)
            found = [physics.operating_point(work, *point) for point in points]
            self.seconds.append(np.array([point.seconds for point in found]))
            self.watts.append(np.array([point.energy_joules for point in found]) / self.seconds[-1])
            found = [physics.operating_point(work, limit) for limit in limits]
            at_limits.append(np.array([[point.seconds, point.energy_joules] for point in found]).T / one.every)
        self._at_limits = np.array(at_limits)
        at_clocks = [(time / one.every, time * power / one.every) for one, time, power in self._all()]
        self.at_clocks = np.array(at_clocks)
        self._is_short = [one.seconds < MIN_LATENCIES * SWITCH_SECONDS for one in self.parts]
        self._changes = CHANGES[pace]

    def _all(self) -> Iterator[tuple[Part, np.ndarray, np.ndarray]]:
        return zip(self.parts, self.seconds, self.watts, strict=True)

    def as_one(self) -> tuple[Board, float]:
        """Return a cycle as one step, and the scatter of its duration over that of one activity."""
        one = copy(self)
        one.parts = (replace(self.parts[0], name=STEPS, every=1),)
        seconds, joules = self.at_clocks.sum(axis=0)
        one.seconds, one.watts = [seconds], [joules / seconds]
        shares = self.at_clocks[:, 0, 0] / seconds[0]
        return one, float(np.sqrt(np.sum(shares**2 * [part.every for part in self.parts])))

    def best_limit(self, factor: float) -> float:
        return self._saved([self._at_limits.sum(axis=0)], factor)

    def best_clock(self, factor: float) -> float:
        return self._saved([self.at_clocks.sum(axis=0)], factor)

    def best_each(self, factor: float) -> float:
        """Return what is saved with the best clock of each activity that may have its own; the others follow steps."""
        others = [place for place, one in enumerate(self.parts) if one.name != STEPS and not self._is_short[place]]
        hours = self.at_clocks[:, 0, 0].sum() / 3600
        saved = []
        for count in range(len(others) + 1):
            for own in itertools.combinations(others, count):
                if sum(2 / self.parts[place].every for place in own) <= self._changes * hours:
                    rest = sum(self.at_clocks[place] for place in range(len(self.parts)) if place not in own)
                    saved.append(self._saved([rest, *(self.at_clocks[place] for place in own)], factor))
        return max(saved)

    def _saved(self, groups: list[np.ndarray], factor: float) -> float:
        """Return the most energy saved within the bound with a setting for each group, of all that pay."""
        seconds, joules = np.zeros(1), np.zeros(1)
        for group in groups:
            seconds = np.add.outer(seconds, group[0]).ravel()
            joules = np.add.outer(joules, group[1]).ravel()
            order = np.lexsort((joules, seconds))
            seconds, joules = seconds[order], joules[order]
            pays = joules < np.concatenate([[np.inf], np.minimum.accumulate(joules)[:-1]])
            seconds, joules = seconds[pays], joules[pays]
            if len(seconds) > 2000:
                some = np.unique(np.linspace(0, len(seconds) - 1, 2000).astype(int))
                seconds, joules = seconds[some], joules[some]
        original = sum(group[:, 0] for group in groups)
        kept = seconds <= factor * original[0] * (1 + 1e-9)
        return float(1 - min(joules[kept].min(initial=original[1]), original[1]) / original[1])


@dataclass(frozen=True)
class Outcome:
    """A run; energies and times are fractions of those of the same visits at the original setting."""

    case: Case
    time_factor: float
    saved: float
    best_limit: float
    best_clock: float
    best_each: float
    best_shown: float
    saved_by_one: float

    @property
    def excess(self) -> float:
        return self.time_factor / self.case.factor - 1

    @property
    def best_common(self) -> float:
        return max(self.best_limit, self.best_clock)

    @property
    def is_ahead(self) -> bool:
        return self.best_each >= self.best_common + AHEAD


@cache
def best_shown(board: Board, factor: float, spread: float, cycles: int) -> float:
    """Return what the best clocks save if the slowdown of each activity is known by measuring its visits alone.

    A share q of the N visits of an activity is at the original setting, so that its time T has the standard error
    T cv sqrt((1 - q) / (q N)). The bound is kept with the confidence of the search, at one price of a second.
    """
    quantile, q, parts = NormalDist().inv_cdf(CONFIDENCE), np.arange(1, 91)[:, None] / 100, []
    for part, (seconds, joules) in zip(board.parts, board.at_clocks, strict=True):
        variance = (seconds * spread) ** 2 * (1 - q) / (q * cycles / part.every)
        variance[:, 0] = 0.0
        parts.append((q * seconds[0] + (1 - q) * seconds, q * joules[0] + (1 - q) * joules, variance))
    original_seconds, original_joules = board.at_clocks[:, :, 0].sum(axis=0)

    def totals(price: float, variance_price: float) -> np.ndarray:
        costs = [joules + price * (seconds + variance_price * variance) for seconds, joules, variance in parts]
        return sum(np.array([one.flat[cost.argmin()] for one in part]) for part, cost in zip(parts, costs, strict=True))

    best = original_joules
    for variance_price in np.logspace(-4, 6, 41):
        low, high = (original_joules / original_seconds * scale for scale in (1e-4, 1e5))
        for _ in range(30):
            middle = math.sqrt(low * high)
            seconds, joules, variance = totals(middle, variance_price)
            keeps = seconds + quantile * math.sqrt(variance) <= factor * original_seconds
            low, high = (low, middle) if keeps else (middle, high)
            best = min(best, joules) if keeps else best
    return min(float(1 - best / original_joules), board.best_each(factor))


@lru_cache
def prior_without(gpu: str) -> CurvePrior:
    return read_prior().without(gpu)


class Activity:
    """An activity of a run in progress: as an optimizer sees it."""

    def __init__(self, run: Run, place: int) -> None:
        self._run, self._part = run, run.board.parts[place]
        self._seconds, self._watts = run.board.seconds[place], run.board.watts[place]
        self._search = run.search.of(self._part.name)
        self._visits, self._all_seconds = 0, 0.0
        self._setting, self._to_settle = run.board.clocks[0], 0.0
        self._measured: list[float] = []
        self._joules = 0.0
        self._block_visits, self._block_seconds = 0, 0.0

    def visit(self, length: float) -> None:
        run, block = self._run, self._search.ask()
        if block.setting != self._setting:  # also where it follows another one: what was measured until then is a block
            self._report()
            self._setting, self._to_settle = block.setting, SETTLE_SECONDS
            block = self._search.ask()
        place, before = run.board.clocks.index(self._setting), run.place
        slow, fast = self._seconds[place] * length, self._seconds[before] * length
        late = min(SWITCH_SECONDS, fast) if before != place else 0.0
        seconds = late + (1 - late / fast) * slow
        joules = late * self._watts[before] + (seconds - late) * self._watts[place]
        run.place = place
        run.seconds, run.joules = run.seconds + seconds, run.joules + joules
        run.untouched_seconds += self._seconds[0] * length
        run.untouched_joules += self._seconds[0] * length * self._watts[0]
        self._visits, self._all_seconds = self._visits + 1, self._all_seconds + seconds
        self._block_visits, self._block_seconds = self._block_visits + 1, self._block_seconds + seconds
        if self._to_settle > 0:
            self._to_settle -= seconds
            return
        self._measured.append(seconds)
        self._joules += joules
        is_checked = self._block_visits % max(block.steps // 8, 1) == 0
        if len(self._measured) >= block.steps or (
            is_checked and not self._search.may_continue(self._block_visits, self._block_seconds)
        ):
            self._report()

    def _report(self) -> None:
        count, run = len(self._measured), self._run
        if count:
            resolution = self._joules / sum(self._measured) * COUNTER_SECONDS / 2
            joules = self._joules * (1 + POWER_CV * run.random.standard_normal() / math.sqrt(count))
            joules = max(joules + resolution * run.random.uniform(-1, 1), 1e-3)
            measurement = Measurement.from_energies(
                math.fsum(self._measured), {0: joules}, uncertainty_joules=resolution
            )
            deviation = float(np.std(self._measured, ddof=1)) if count > 1 else 0.0
            run.search.at_step(run.cycle)
            self._search.tell(Trial(self._setting, count, measurement, deviation), self._visits, self._all_seconds)
        self._measured, self._joules = [], 0.0
        self._block_visits, self._block_seconds = 0, 0.0


class Run:
    """A run in progress."""

    def __init__(self, board: Board, case: Case, random: np.random.Generator) -> None:
        self.board, self.case, self.random = board, case, random
        self.search = ActivitiesRunSearch(
            board.clocks,
            EnergyWithin(case.factor),
            max_steps=case.cycles,
            max_changes_per_hour=CHANGES[case.pace],
            knob="clock",
            settle_seconds=SETTLE_SECONDS,
            prior=prior_without(board.gpu),
        )
        self.search.switch_seconds = SWITCH_SECONDS
        self.cycle, self.place = 0, 0
        self.seconds = self.joules = self.untouched_seconds = self.untouched_joules = 0.0

    def finish(self) -> None:
        case = self.case
        activities = [Activity(self, place) for place in range(len(self.board.parts))]
        lengths = np.exp(case.spread * self.random.standard_normal((case.cycles, len(activities))) - case.spread**2 / 2)
        if case.drift == "longer":
            lengths[:, 0] *= 1 + 0.5 * np.arange(case.cycles) / case.cycles
        elif case.drift == "shrinking":
            lengths[:, 0] *= 1 - 0.5 * np.arange(case.cycles) / case.cycles
        elif case.drift in ("shorter", "swapped"):
            lengths[case.cycles // 2 :, 0] *= 0.4
            if case.drift == "swapped":
                lengths[case.cycles // 2 :, -1] *= 2.0
        for cycle in range(case.cycles):
            self.cycle = cycle
            for part, activity, length in zip(self.board.parts, activities, lengths[cycle], strict=True):
                rates = RATES.get(case.drift, (1.0, 1.0)) if activity is activities[0] else (1.0, 1.0)
                rate = rates[cycle >= case.cycles / 2]
                if cycle % part.every == part.every - 1:
                    for _ in range(math.floor((cycle + 1) * rate) - math.floor(cycle * rate)):
                        activity.visit(float(length))


def outcome(board: Board, case: Case, seed: int) -> Outcome:
    random = np.random.default_rng(zlib.crc32(repr((case, seed)).encode()))
    run = Run(board, case, random)
    run.finish()
    together, share = board.as_one()
    one = Run(together, replace(case, spread=case.spread * share), random)
    one.finish()
    return Outcome(
        case,
        run.seconds / run.untouched_seconds,
        1 - run.joules / run.untouched_joules,
        board.best_limit(case.factor),
        board.best_clock(case.factor),
        board.best_each(case.factor),
        best_shown(board, case.factor, case.spread, case.cycles),
        1 - one.joules / one.untouched_joules,
    )


def show(name: str, some: list[Outcome]) -> None:
    limit, clock, each, shown, one, saved = (
        float(np.mean([getattr(one, field) for one in some]))
        for field in ("best_limit", "best_clock", "best_each", "best_shown", "saved_by_one", "saved")
    )
    excesses = np.array([one.excess for one in some])
    behind = max(one.best_common - one.saved for one in some)
    print(
        f"  {name:26} {len(some):5} {limit:7.1%} {clock:7.1%} {each:7.1%} {shown:7.1%} {one:7.1%} "
        f"{saved:7.1%} {saved / each:6.0%} {min(one.saved for one in some):7.1%} {behind:7.1%} "
        f"{np.mean(excesses > 0):7.1%} {excesses.max():+7.2%}"
    )


def show_tables(outcomes: list[Outcome]) -> None:
    columns = ("limit", "clock", "each", "shown", "one", "search", "share", "least", "behind", "beyond", "worst")
    heads = " ".join(f"{one:>{width}}" for one, width in zip(columns, (7, 7, 7, 7, 7, 7, 6, 7, 7, 7, 7), strict=True))
    print(f"  {'':26}  runs {heads}")
    for field in ("mix", "factor", "cycles", "spread", "drift", "pace"):
        for value in dict.fromkeys(getattr(one.case, field) for one in outcomes):
            show(f"{field} {value}", [one for one in outcomes if getattr(one.case, field) == value])
    show("all", outcomes)


def of_targets(outcomes: Iterable[Outcome]) -> tuple[list[Outcome], list[list[Outcome]]]:
    """Return the runs where each its own is ahead, and the others by mix, factor and pace, that targets are for."""
    some = [
        one
        for one in outcomes
        if one.case.cycles == CYCLES and one.case.spread <= MAX_SPREAD and one.case.drift == "none"
    ]
    elsewhere: dict[tuple[str, float, str], list[Outcome]] = {}
    for one in some:
        if not one.is_ahead:
            elsewhere.setdefault((one.case.mix, one.case.factor, one.case.pace), []).append(one)
    return [one for one in some if one.is_ahead], list(elsewhere.values())


def misses(outcomes: list[Outcome]) -> Iterator[str]:
    """Print what the targets are for; yield those that are missed."""
    excesses = np.array([one.excess for one in outcomes])
    print(f"beyond the bound: {np.mean(excesses > 0):.1%} of at most {MAX_BEYOND:.1%}; worst {excesses.max():+.2%}")
    if np.mean(excesses > 0) > MAX_BEYOND:
        yield f"{np.mean(excesses > 0):.1%} of all runs beyond their bound, more than {MAX_BEYOND:.1%}"
    if excesses.max() > BROKEN_BY:
        yield f"a run {excesses.max():.2%} beyond its bound, more than {BROKEN_BY:.0%}"
    if min(one.saved for one in outcomes) < 0:
        yield "a run that used more energy than untouched"
    ahead, elsewhere = of_targets(outcomes)
    if ahead:
        share = sum(one.saved for one in ahead) / sum(one.best_each for one in ahead)
        print(f"{CYCLES} cycles, where one clock each is {AHEAD:.0%} ahead: {share:.1%} of it, of {SHARE:.0%}")
        if share < SHARE:
            yield f"{share:.1%} of what is saved by the best clock of each activity, less than {SHARE:.0%}"
    for some in elsewhere:
        case, behind = some[0].case, float(np.mean([one.best_common - one.saved for one in some]))
        print(f"{CYCLES} cycles, {case.mix}, {case.factor}, {case.pace}: {behind:+.1%} behind the best for all")
        if behind > MAX_BEHIND:
            yield f"{case.mix}, {case.factor}, {case.pace}: {behind:.1%} behind the best for all, not {MAX_BEHIND:.0%}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--held-out", action="store_true", help="on boards drawn by seed")
    parser.add_argument("--mix", nargs="+", choices=MIXES, default=list(MIXES))
    parser.add_argument("--cycles", type=int, nargs="+", default=[50, 500, 5000])
    parser.add_argument("--spread", type=float, nargs="+", default=[2.0, 10.0, 20.0], help="in percent")
    parser.add_argument("--drift", nargs="+", choices=DRIFTS, default=list(DRIFTS))
    parser.add_argument("--factor", type=float, nargs="+", default=[1.01, 1.02, 1.05, 1.10])
    parser.add_argument("--pace", nargs="+", choices=CHANGES, default=list(CHANGES))
    arguments = parser.parse_args()
    spreads = [percent / 100 for percent in arguments.spread]
    begin, outcomes = time.process_time(), []
    boards = lru_cache(Board)
    for values in itertools.product(
        arguments.mix, arguments.cycles, spreads, arguments.drift, arguments.factor, arguments.pace
    ):
        case = Case(*values)
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            board = boards(case.mix, case.pace, seed if arguments.held_out else None)
            outcomes.append(outcome(board, case, seed))
    show_tables(outcomes)
    print(f"\n{time.process_time() - begin:.0f} s of CPU")
    missed = list(misses(outcomes))
    print("\n".join(f"MISSED: {miss}" for miss in missed) or "all targets are met")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
