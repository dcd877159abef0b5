"""How much energy levelling saves on simulated boards of one model that differ, beside what is attainable.

    python benchmarks/levelling.py [--seeds 4] [--steps 300] [--model A100 ...]

Eight boards, whose speeds under one limit differ by 7 to 9 %, do the same work, which needs 1.2 times the power that
their limits allow. "Attainable" is the least energy that fixed settings take at which the mean step is at most 0.2 %
longer, found by a search that knows how fast each board is at each setting, and how far steps scatter: the difference
to "ours" is lost by not knowing it, all else by the boards and by the scatter. "Ours" is the leveller of
`LevellingOptimizer`; its energy is that of the last hundred steps, and its time that of all. Everything is against
equal settings. Then power budgets are divided, beside equal limits of the same sum. Exits with 1 if the steps of any
draw get more than 0.2 % longer, or a divided budget takes more energy.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from zeus_core.device import SimulatedGpu, SimulatedNoise, Work, find_preset  # noqa: E402
from zeus_core.device.simulated.power_model import OperatingPoint  # noqa: E402
from zeus_core.mixed.levelling._leveller import Leveller, mean_longest  # noqa: E402
from zeus_core.testing import VirtualTime  # noqa: E402

RANKS = 8
MODELS = ("A100-SXM4", "H100", "V100-SXM2")
SCATTERS = (0.0, 0.002, 0.005, 0.01)
BOARD_SPREAD = 0.12  # of power, which is 7 to 9 % of speed
POWER_FACTOR = 1.2
LIMIT_STEP_WATTS = 5
LAST_STEPS = 100
MAX_LONGER = 0.002
BUDGET_SHARES = (0.9, 0.75, 0.65)  # of the usual limits


class Boards:
    """Eight boards, by clock or by limit."""

    def __init__(self, model: str, seed: int, is_clock: bool) -> None:
        self.preset = find_preset(model)
        noise = SimulatedNoise(0, 0, seed=seed, board_spread=BOARD_SPREAD)
        self.gpus = [SimulatedGpu(self.preset, rank, time_source=VirtualTime(), noise=noise) for rank in range(RANKS)]
        self.limit = self.preset.default_limit_watts
        self.work = Work(0.5, POWER_FACTOR * self.limit, 1.0, 0.85)
        self.is_clock = is_clock
        lowest = int(self.preset.limit_range_watts.lowest_watts)
        limits = range(int(self.limit), lowest - 1, -LIMIT_STEP_WATTS)
        self.settings = sorted(self.gpus[0].read_supported_sm_clocks_mhz(), reverse=True) if is_clock else list(limits)
        self.point = functools.cache(self._point)

    def _point(self, rank: int, setting: int) -> OperatingPoint:
        limit, share = (self.limit, setting / self.preset.highest_clock_mhz) if self.is_clock else (float(setting), 1.0)
        return self.gpus[rank]._own_operating_point(self.work, limit, share)

    def points(self, settings: Sequence[int]) -> list[OperatingPoint]:
        return [self.point(rank, setting) for rank, setting in enumerate(settings)]

    def attainable(self, scatter: float) -> float:
        """Return the lowest change of energy of fixed settings, of which a search improves two at a time."""
        even = self.points([self.settings[0]] * RANKS)
        usual = mean_seconds(even, scatter)
        even_joules = joules(even, [point.seconds for point in even], usual)

        def cost(places: Sequence[int]) -> float:
            if min(places) < 0 or max(places) >= len(self.settings):
                return math.inf
            points = self.points([self.settings[place] for place in places])
            seconds = mean_seconds(points, scatter)
            if seconds > (1 + MAX_LONGER) * usual:
                return math.inf
            return joules(points, [point.seconds for point in points], seconds) / even_joules - 1

        slowest = max(point.seconds for point in even)
        levels = {tuple(self._lowest_within(seconds * slowest)) for seconds in np.linspace(0.96, 1.002, 43)}
        return min(improved(level, cost) for level in sorted(levels, key=cost)[:4])

    def _lowest_within(self, seconds: float) -> list[int]:
        """Return the place of the lowest setting of each board at which it takes no longer, or of the highest."""
        places = range(len(self.settings))
        return [
            max((place for place in places if self.point(rank, self.settings[place]).seconds <= seconds), default=0)
            for rank in range(RANKS)
        ]

    def ours(self, seed: int, scatter: float, steps: int, equal: int | None = None) -> tuple[float, float, int]:
        """Return the change of energy and of time, and how often settings changed; with a budget, of equal limits."""
        budget, draw = None if equal is None else RANKS * equal, random.Random(seed)
        leveller = Leveller([self.settings] * RANKS, not self.is_clock, budget)
        even = self.points([self.settings[0] if equal is None else equal] * RANKS)
        times, energies = [], []
        for _ in range(steps):
            points, factors = self.points(leveller.settings), [1 + draw.gauss(0, scatter) for _ in range(RANKS)]
            sums = []
            for used in (points, even):
                own = [point.seconds * factor for point, factor in zip(used, factors, strict=True)]
                sums.append((max(own), joules(used, own, max(own))))
            times.append((sums[0][0], sums[1][0]))
            energies.append((sums[0][1], sums[1][1]))
            clocks = [self.preset.highest_clock_mhz * point.clock_fraction for point in points]
            own = [point.seconds * factor for point, factor in zip(points, factors, strict=True)]
            leveller.add_step(own, clocks if self.is_clock else None)
        return change(energies[-LAST_STEPS:]), change(times), leveller.changes


def improved(places: tuple[int, ...], cost: Callable[[Sequence[int]], float]) -> float:
    """Return the lowest cost that is reached by changes of one or two places."""
    lowest = cost(places)
    while True:
        near = []
        for first, second in itertools.product(range(RANKS), repeat=2):
            for one, other in itertools.product((-1, 1, 2), (-2, -1, 0, 1)):
                moved = list(places)
                moved[first] += one
                moved[second] += other
                near.append(tuple(moved))
        best = min(near, key=cost)
        if cost(best) >= lowest - 1e-9:
            return lowest
        places, lowest = best, cost(best)


def mean_seconds(points: Sequence[OperatingPoint], scatter: float) -> float:
    seconds = np.array([point.seconds for point in points])
    return mean_longest(seconds, scatter * seconds)


def joules(points: Sequence[OperatingPoint], own: Sequence[float], seconds: float) -> float:
    parts = zip(points, own, strict=True)
    return sum(point.active_power_watts * one + point.blocking_power_watts * (seconds - one) for point, one in parts)


def change(pairs: Sequence[tuple[float, float]]) -> float:
    ours, even = map(sum, zip(*pairs, strict=True))
    return ours / even - 1


def span(values: Sequence[float]) -> str:
    return f"{100 * statistics.mean(values):+.2f} ({100 * max(values):+.2f})"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--model", nargs="+", default=MODELS)
    options = parser.parse_args(arguments)
    longest = levelled(options)
    most = shared(options)
    return int(longest > MAX_LONGER or most > 0)


def levelled(options: argparse.Namespace) -> float:
    """Show what levelling saves. Returns the change of time of the longest draw."""
    longest = 0.0
    print("changes in percent: mean of the seeds (and the worst of them)")
    print(f"{'':24} scatter  {'attainable':16} {'ours':16} {'time':16} changes")
    for model in options.model:
        for is_clock in (True, False):
            boards = [Boards(model, seed, is_clock) for seed in range(1, options.seeds + 1)]
            label = f"{model} {boards[0].limit:.0f} W {'clock' if is_clock else 'limit'}"
            for scatter in SCATTERS:
                runs = [one.ours(seed, scatter, options.steps) for seed, one in enumerate(boards)]
                energies, times, changes = zip(*runs, strict=True)
                longest = max(longest, *times)
                best = span([one.attainable(scatter) for one in boards])
                print(
                    f"{label:24} {scatter:7.1%}  {best:16} {span(energies):16} {span(times):16} {max(changes)}",
                    flush=True,
                )
                label = ""
    return longest


def shared(options: argparse.Namespace) -> float:
    """Show what a budget gains beside equal limits. Returns the largest change of energy."""
    most = -math.inf
    print(f"\n{'budget':24} scatter  {'time':16} {'energy':16} changes")
    for model in options.model:
        boards = [Boards(model, seed, False) for seed in range(1, options.seeds + 1)]
        for equal in (round(boards[0].limit * share) for share in BUDGET_SHARES):
            for scatter in SCATTERS[:-1]:
                runs = [one.ours(seed, scatter, options.steps, equal) for seed, one in enumerate(boards)]
                energies, times, changes = zip(*runs, strict=True)
                most = max(most, *energies)
                label = f"{model} {RANKS} x {equal} W"
                print(f"{label:24} {scatter:7.1%}  {span(times):16} {span(energies):16} {max(changes)}", flush=True)
    return most


if __name__ == "__main__":
    sys.exit(main())
