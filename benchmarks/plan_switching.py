"""Savings of plans with a price of clock switches on random problems, and the share of each part of the search.

    python benchmarks/plan_switching.py [--problems 60] [--seed 0]

Each problem has 2 to 8 stages, 12 to 96 microbatches, a schedule, measured-looking profiles whose times scatter, no to
20 % slowdown, switches of 5 or 20 ms, and a dwell of 0 to 0.5 s. Savings are in percent
of the energy at the highest clocks: those of the plan, of the cheapest start of its search, of the baselines, and the
bound that no plan can exceed. Exits with 1 if a plan takes more energy than a baseline, or less than its bound.

Parts that the search once had, with the points that each removal cost in the mean on the 60 problems of seed 0
(26 November 2026, numba 0.68); all removals together cost 0.10:

    plans of stricter problems, as starts and in comparison   0.02
    starts by two paces of each rank                          0.01
    rounds of 40, 20 and 12 starts instead of one of 12       0.08
    crossings of the best plans                               0.15
    (starts by prices, which stay                             0.30)

What parts that stay gain, on 20 of these problems, and on 45 plans for the published profiles of GPT-3 (12 and 48
microbatches, 0 to 10 % slower, 5 and 20 ms, dwells of 0 and 0.5 s; 2026-11-27):

    repairs of starts that end too late                       0.04    0.67, and up to 3.8 with 20 ms and 0.5 s
    starts as if switches cost 1/2 to 16 times as much        0.01    0.06
    local searches from four starts instead of one            0.01    0.10
    the local search beside annealing                         0.13 (15 problems)
    its moves of a part of a run                              0.16 (15 problems)
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from zeus_core.errors import UsageError  # noqa: E402
from zeus_core.pipeline import Frontier, PipelineProfile, baselines, make_plan, schedules  # noqa: E402
from zeus_core.pipeline.planner.clock_options import MeasuredOption  # noqa: E402
from zeus_core.pipeline.planner.pipeline_profile import InstructionProfile  # noqa: E402
from zeus_core.pipeline.planner.pipeline_schedule import Schedule  # noqa: E402

MICROBATCHES = (12, 24, 48, 96)
SLOWDOWNS = (1.0, 1.02, 1.05, 1.1, 1.2)
SWITCH_SECONDS = (0.005, 0.02)
DWELL_SECONDS = (0.0, 0.0, 0.1, 0.5)


class SwitchingProblem(NamedTuple):
    """A pipeline, the longest iteration over that at the highest clocks, and the price of a switch."""

    profile: PipelineProfile
    schedule: Schedule
    slowdown_factor: float
    switch_seconds: float
    dwell_seconds: float


def random_problems(count: int, seed: int) -> Iterator[SwitchingProblem]:
    """Yield random problems: all combinations of microbatches, slowdowns and switches alike often."""
    for number in range(count):
        random = np.random.default_rng([seed, number])
        stages = int(random.choice([2, 4, 8]))
        microbatches = MICROBATCHES[number % len(MICROBATCHES)]
        name = ("one_f_one_b", "one_f_one_b", "gpipe", "zb_h1")[int(random.integers(4))]
        yield SwitchingProblem(
            random_profile(stages, name == "zb_h1", random),
            getattr(schedules, name)(stages, microbatches),
            SLOWDOWNS[number % len(SLOWDOWNS)],
            SWITCH_SECONDS[number // 2 % len(SWITCH_SECONDS)],
            DWELL_SECONDS[int(random.integers(len(DWELL_SECONDS)))],
        )


def random_profile(stages: int, is_split: bool, random: np.random.Generator) -> PipelineProfile:
    """Return a profile: time falls with the clock, power rises with its cube, stages differ, measurements scatter."""
    noise, spread = random.choice([0.0, 0.003, 0.01]), random.choice([0.03, 0.15, 0.3])
    scale, clocks = random.choice([0.3, 1.0, 3.0]), int(random.choice([10, 20, 38]))
    seconds = {"forward": 0.02, "backward-input": 0.02, "backward-weight": 0.02}
    profiles = []
    for stage in range(stages):
        for kind, usual in (seconds if is_split else {"forward": 0.02, "backward": 0.04}).items():
            highest = scale * usual * random.uniform(1 - spread, 1 + spread)
            by_clock, watts = random.uniform(0.6, 0.9), random.uniform(300, 380)
            options = []
            for clock in np.linspace(1410, 855, clocks).astype(int).tolist():
                x = clock / 1410
                time = highest * (by_clock / x + 1 - by_clock) * (1 + noise * random.standard_normal())
                options.append(
                    MeasuredOption(clock, float(time), float((80 + (watts - 80) * (0.3 * x + 0.7 * x**3)) * time))
                )
            profiles.append(InstructionProfile(stage, kind, tuple(options)))
    return PipelineProfile(profiles, 80.0)


def savings_of(problem: SwitchingProblem) -> dict[str, float]:
    """Return what plan, start, baselines and bound save, in percent, and the CPU seconds of the plan."""
    frontier = Frontier.from_profile(problem.profile, problem.schedule)
    seconds, joules = frontier.highest_clock_point
    price = {"switch_seconds": problem.switch_seconds, "dwell_seconds": problem.dwell_seconds}
    begin = time.process_time()
    plan = make_plan(frontier, slowdown_factor=problem.slowdown_factor, **price)
    cpu_seconds = time.process_time() - begin
    energies = {
        "plan": plan.energy_joules,
        "bound": plan.bound_joules,
        "start": make_plan(frontier, slowdown_factor=problem.slowdown_factor, effort=0.0, **price).energy_joules,
        "one clock": joules,
        "one clock per stage": joules,
    }
    simpler = {"one clock": baselines.global_clock_plan, "one clock per stage": baselines.stage_clocks_plan}
    for name, baseline in simpler.items():
        with contextlib.suppress(UsageError):  # none keeps the time
            simple = baseline(frontier.problem, problem.slowdown_factor * seconds)
            if simple.switches == 0:
                energies[name] = min(joules, simple.energy_joules)
    return {name: 100 * (1 - energy / joules) for name, energy in energies.items()} | {"CPU s": cpu_seconds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    found = []
    for number, problem in enumerate(random_problems(arguments.problems, arguments.seed)):
        savings = savings_of(problem)
        found.append(savings)
        if number == 0:
            print("stages   M slower switch dwell", *(f"{name:>19}" for name in savings))
        stages, microbatches = problem.schedule.stages, problem.schedule.microbatches
        asked = f"{problem.slowdown_factor:6.2f} {problem.switch_seconds:6.3f} {problem.dwell_seconds:5.1f}"
        print(f"{stages:6d} {microbatches:3d} {asked}", *(f"{value:19.2f}" for value in savings.values()), flush=True)
    print(f"{'mean':30}", *(f"{np.mean([savings[name] for savings in found]):19.2f}" for name in found[0]))
    faults = [
        savings
        for savings in found
        if savings["plan"] < max(savings["one clock"], savings["one clock per stage"]) - 1e-7
        or savings["plan"] > savings["bound"] + 1e-7
    ]
    print(f"{len(faults)} plans that take more energy than a baseline, or less than their bound")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
