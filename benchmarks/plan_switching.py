"""What plans with a price of clock switches save, on random problems, and what each part of the search adds.

    python benchmarks/plan_switching.py [--problems 60] [--seed 0]

Each problem has 2 to 8 stages, 12 to 96 microbatches, a schedule, measured-looking profiles whose times scatter, no to
20 % slowdown, switches of 5 or 20 ms, and a dwell of 0 to 0.5 s. Savings are in percent of the energy at the highest
clocks. Exits with 1 if a plan takes more energy than a baseline, or less than its bound.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from zeus_core.pipeline import InstructionProfile, MeasuredOption, PipelineProfile, Schedule, schedules  # noqa: E402

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
