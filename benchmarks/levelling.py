"""How much energy levelling saves on simulated boards of one model that differ, beside what is attainable.

    python benchmarks/levelling.py [--seeds 4] [--steps 300] [--model A100 ...]

Eight boards, whose speeds under one limit differ by 7 to 9 %, do the same work, which needs 1.2 times the power that
their limits allow. "Attainable" is found by trying all settings of each board: the one with the least energy of those
at which it takes no longer than the slowest board. That is for steps that do not scatter: where they do, some of it has
to be left, or steps get longer. "Ours" is the leveller of `LevellingOptimizer`; its energy is that of the last hundred
steps, and its time that of all. Everything is against equal settings. Exits with 1 if steps get more than 0.2 % longer
in the mean of the draws.
"""

from __future__ import annotations

import argparse
import functools
import random
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from zeus_core.device import SimulatedGpu, SimulatedNoise, Work, find_preset  # noqa: E402
from zeus_core.device.simulated._power_model import OperatingPoint  # noqa: E402
from zeus_core.optimizer.levelling._leveller import Leveller  # noqa: E402
from zeus_core.testing import VirtualTime  # noqa: E402

RANKS = 8
MODELS = ("A100-SXM4", "H100", "V100-SXM2")
SCATTERS = (0.0, 0.002, 0.005, 0.01)
BOARD_SPREAD = 0.12  # of power, which is 7 to 9 % of speed
POWER_FACTOR = 1.2
LIMIT_STEP_WATTS = 5
LAST_STEPS = 100
MAX_LONGER = 0.002


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

    def attainable(self) -> float:
        even = self.points([self.settings[0]] * RANKS)
        seconds = max(point.seconds for point in even)
        least = 0.0
        for rank in range(RANKS):
            every = [self.point(rank, setting) for setting in self.settings]
            within = [point for point in every if point.seconds <= seconds * (1 + 1e-9)]
            least += min(joules([point], [point.seconds], seconds) for point in within)
        return least / joules(even, [point.seconds for point in even], seconds) - 1

    def ours(self, seed: int, scatter: float, steps: int) -> tuple[float, float, int]:
        """Return the change of energy and of time, and how often settings changed."""
        leveller, draw = Leveller([self.settings] * RANKS, not self.is_clock), random.Random(seed)
        even = self.points([self.settings[0]] * RANKS)
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
            leveller.tell(own, clocks if self.is_clock else None)
        return change(energies[-LAST_STEPS:]), change(times), leveller.changes


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
    longest = 0.0
    print("changes in percent: mean of the seeds (and the worst of them)")
    print(f"{'':24} {'attainable':16} scatter  {'ours':16} {'time':16} changes")
    for model in options.model:
        for is_clock in (True, False):
            boards = [Boards(model, seed, is_clock) for seed in range(1, options.seeds + 1)]
            label = f"{model} {boards[0].limit:.0f} W {'clock' if is_clock else 'limit'}"
            best = span([one.attainable() for one in boards])
            for scatter in SCATTERS:
                runs = [one.ours(seed, scatter, options.steps) for seed, one in enumerate(boards)]
                energies, times, changes = zip(*runs, strict=True)
                longest = max(longest, statistics.mean(times))
                row = f"{scatter:7.1%}  {span(energies):16} {span(times):16} {max(changes)}"
                print(f"{label:24} {best:16} {row}", flush=True)
                label = best = ""
    return int(longest > MAX_LONGER)


if __name__ == "__main__":
    sys.exit(main())
