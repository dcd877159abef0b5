"""One locked clock for all GPUs beside one power limit for all, at the same time per iteration, on measured stages.

    python benchmarks/clock_or_limit.py PROFILES [--microbatches 16] [--blocking-watts 80]

PROFILES is a folder of CSV files with the columns stage, instruction, frequency, time, energy: a pipeline measured at
locked SM clocks, such as those of the Perseus artifact. The iteration is a 1F1B schedule, in which GPUs wait for each
other.

Limits were not measured there, so that two columns hold what a board makes of one at most and at least:

- mean: it holds the mean power of a GPU over the iteration. GPUs that wait draw less, and keep a high clock for it.
- quick: it holds the power of every instruction, and mixes the two clocks on either side of the limit without loss.

Real boards average over some 10 to 100 ms, about the length of an instruction here, and hunt between clocks. Savings
are of the energy of an iteration at the highest clock, and a column of points says how much more the clock saves. Exits
with 1 if a clock saves less than the limit on the mean by more than 0.5 points.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from zeus_core.errors import UsageError  # noqa: E402
from zeus_core.pipeline import PipelineProfile, schedules  # noqa: E402
from zeus_core.pipeline.planner.pipeline_problem import PipelineProblem  # noqa: E402

SLOWDOWNS = (0.005, 0.02, 0.05, 0.10)
MAX_ROUNDS = 30  # until the time of an iteration and the power of its GPUs agree
MAX_LOSS_POINTS = 0.5  # single measurements scatter by as much


@dataclass(frozen=True)
class Iteration:
    """The time and energy of an iteration with one setting for all GPUs, and the setting."""

    setting: float
    seconds: float
    joules: float


class Pipeline:
    """Iterations of a measured pipeline at any clock and under any limit."""

    def __init__(self, profile: PipelineProfile, microbatches: int) -> None:
        self._problem = PipelineProblem(profile, schedules.one_f_one_b(profile.stages, microbatches))
        options = [profile.get(*kind).options for kind in self._problem.kinds]
        clocks = [{option.clock_mhz for option in of_kind} for of_kind in options]
        self.clocks = sorted((clock for clock in set.intersection(*clocks) if clock is not None), reverse=True)
        by_clock = [{option.clock_mhz: option for option in of_kind} for of_kind in options]
        self._seconds = np.array([[of_kind[clock].time_seconds for clock in self.clocks] for of_kind in by_clock])
        self._joules = np.array([[of_kind[clock].energy_joules for clock in self.clocks] for of_kind in by_clock])
        self._stage_of_kind = np.array([stage for stage, _ in self._problem.kinds])
        self._counts = np.bincount(self._problem.kind_of, minlength=len(by_clock))
        self._blocking_watts = np.array(profile.blocking_power_watts)
        watts = self._joules / self._seconds
        self.lowest_watts, self.highest_watts = float(watts.min(axis=1).max()), float(watts.max())

    def at_clock(self, clock_mhz: int) -> Iteration:
        return self._iteration(clock_mhz, np.full(len(self._seconds), float(self.clocks.index(clock_mhz))))

    def under_quick_limit(self, limit_watts: float) -> Iteration:
        """Each instruction is as quick as its own power allows."""
        return self._iteration(
            limit_watts,
            _highest_places(
                lambda places: self._at(places)[1] / self._at(places)[0], limit_watts, *self._seconds.shape
            ),
        )

    def under_mean_limit(self, limit_watts: float) -> Iteration:
        """Each GPU is as quick as its mean power over the iteration allows, with the time it waits."""
        iteration = self.at_clock(self.clocks[0])
        for _ in range(MAX_ROUNDS):
            before = iteration.seconds
            places = _highest_places(
                lambda places, total=before: self._mean_watts(places, total), limit_watts, *self._seconds.shape
            )
            iteration = self._iteration(limit_watts, places)
            if abs(iteration.seconds / before - 1) < 1e-6:
                break
        return iteration

    def _at(self, places: Any) -> tuple[Any, Any]:
        """Return time and energy of each kind of instruction, between two clocks by the shares of its work."""
        low = np.minimum(places.astype(int), len(self.clocks) - 2)
        rows, share = np.arange(len(places)), places - low
        return tuple(
            (1 - share) * values[rows, low] + share * values[rows, low + 1] for values in (self._seconds, self._joules)
        )  # type: ignore[return-value]

    def _mean_watts(self, places: Any, total_seconds: float) -> Any:
        """Return the mean power of the GPU that runs each kind."""
        seconds, joules = self._at(places)
        stages = len(self._blocking_watts)
        busy, used = (
            np.bincount(self._stage_of_kind, self._counts * values, minlength=stages) for values in (seconds, joules)
        )
        return ((used + self._blocking_watts * (total_seconds - busy)) / total_seconds)[self._stage_of_kind]

    def _iteration(self, setting: float, places: Any) -> Iteration:
        seconds, _ = self._at(places)
        of_each = seconds[self._problem.kind_of]
        total = float((self._problem.start_seconds(of_each) + of_each).max())
        _, first_of_stage = np.unique(self._stage_of_kind, return_index=True)
        return Iteration(setting, total, float(self._mean_watts(places, total)[first_of_stage].sum()) * total)


def _highest_places(watts_at: Callable[[Any], Any], limit_watts: float, kinds: int, clocks: int) -> Any:
    """Return the place of the highest clock within a limit, for each kind: 0 for the highest, and between two."""
    low, high = np.zeros(kinds), np.full(kinds, clocks - 1.0)
    if (watts_at(low) <= limit_watts).all():
        return low
    for _ in range(40):
        middle = (low + high) / 2
        is_within = watts_at(middle) <= limit_watts
        low, high = np.where(is_within, low, middle), np.where(is_within, middle, high)
    return high


def compare(path: Path, microbatches: int, blocking_watts: float) -> bool:
    """Print the table of one profile. Returns whether no clock loses to the limit."""
    pipeline = Pipeline(PipelineProfile.from_csv(path, blocking_watts), microbatches)
    clocks = [pipeline.at_clock(clock) for clock in pipeline.clocks]
    watts = np.arange(pipeline.lowest_watts / 2, pipeline.highest_watts + 1, 1.0).tolist()
    kinds = {"mean": pipeline.under_mean_limit, "quick": pipeline.under_quick_limit}
    limits = {name: [under(one) for one in watts] for name, under in kinds.items()}
    original = clocks[0]
    print(f"\n{path.name}: {microbatches} microbatches, GPUs that wait draw {blocking_watts:g} W")
    print(f"{'time':>7} {'clock':>9} {'saved':>8}" + "".join(f"{n:>7} limit {'saved':>7} {'points':>7}" for n in kinds))
    holds = True
    for slowdown in SLOWDOWNS:
        clock = min(_within(clocks, original.seconds * (1 + slowdown)), key=lambda one: one.joules)
        saved = 100 * (1 - clock.joules / original.joules)
        line = f"{clock.seconds / original.seconds - 1:+7.1%} {clock.setting:5.0f} MHz {saved:7.1f}%"
        for name, iterations in limits.items():
            limit = min(_within(iterations, clock.seconds), key=lambda one: one.joules)
            points = saved - 100 * (1 - limit.joules / original.joules)
            line += f" {limit.setting:10.0f} W {saved - points:6.1f}% {points:+7.1f}"
            holds = holds and (name != "mean" or points >= -MAX_LOSS_POINTS)
        print(line)
    return holds


def _within(iterations: list[Iteration], seconds: float) -> list[Iteration]:
    return [one for one in iterations if one.seconds <= seconds * (1 + 1e-9)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profiles", nargs="?", type=Path, help="a folder of CSV files")
    parser.add_argument("--microbatches", type=int, default=16)
    parser.add_argument("--blocking-watts", type=float, default=80.0, help="power of a GPU that waits")
    arguments = parser.parse_args()
    paths = [] if arguments.profiles is None else sorted(arguments.profiles.glob("*.csv"))
    if not paths:
        print("SKIPPED: no measured stages; name a folder of profiles (stage, instruction, frequency, time, energy)")
        return 0
    holds = True
    for path in paths:
        try:
            holds = compare(path, arguments.microbatches, arguments.blocking_watts) and holds
        except UsageError as error:
            print(f"\nSKIPPED {path.name}: {error}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
