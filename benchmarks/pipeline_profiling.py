"""How many iterations are profiled before a plan, and how much of the achievable saving the plan realises.

Simulated pipelines of 2 to 8 stages with 4 to 16 microbatches on four GPU models, in virtual time, whose iterations of
0.6 s scatter: by default passes by 3 % in time and 1 % in power. The stages differ, by a fixed seed. Prints for each
the iterations profiled, the realised saving beside the best plan's (without scatter), and the slowdown. Exits with 1 if
more iterations are profiled than the limit. Takes about 3 minutes.

    python benchmarks/pipeline_profiling.py
    python benchmarks/pipeline_profiling.py --time-cv 0.06 --power-cv 0.02 --seeds 2
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.pipeline_training import Run, Watched, true_profile
from zeus_core.device import SimulatedNoise, Work
from zeus_core.pipeline import Frontier, PipelineFrequencySettings, make_plan, schedules
from zeus_core.pipeline.optimizer.frequency_phases import PlanningPhase
from zeus_core.pipeline.testing import SimulatedJob

MOST_ITERATIONS = 60
WATTS = {"A100-SXM4-80GB": 330.0, "A40": 270.0, "H100-SXM5-80GB": 550.0, "V100-SXM2-32GB": 240.0}
SHAPES = [(2, 4), (2, 8), (3, 6), (4, 8), (6, 6), (8, 8), (8, 16)]  # stages, microbatches
STEPS = 190
LAST_STEPS = 20
SETTINGS = PipelineFrequencySettings(quiet=True)


def made_work(stages: int, microbatches: int, model: str, seconds: float, seed: int) -> dict[tuple[int, str], Work]:
    """Return passes that differ by stage, whose iteration takes about so long."""
    draw = random.Random(f"{stages} {microbatches} {model} {seed}")
    sizes = [draw.uniform(0.8, 1.2) for _ in range(stages)]
    dependences = [draw.uniform(0.7, 0.9) for _ in range(stages)]
    unit = seconds / (3 * max(sizes) * (microbatches + stages - 1))
    return {
        (stage, kind): Work(unit * sizes[stage] * length, WATTS[model], 1.0, dependences[stage])
        for stage in range(stages)
        for kind, length in (("forward", 1), ("backward", 2))
    }


def run(shape: tuple[int, int], model: str, seed: int, arguments: argparse.Namespace) -> tuple[int, float, float]:
    """Train; print and return the iterations profiled, and the realised and the best saving."""
    work, schedule = made_work(*shape, model, arguments.seconds, seed), schedules.one_f_one_b(*shape)
    noise = SimulatedNoise(arguments.time_cv, arguments.power_cv, seed=seed)
    job = SimulatedJob(schedule, work, model, noise=noise)
    trained = Run(job, STEPS, lambda rank: Watched(rank, SETTINGS), 300.0)
    profiled = len(trained.steps_of(PlanningPhase.PROFILING))
    before = [*trained.steps_of(PlanningPhase.WARMING_UP), *trained.steps_of(PlanningPhase.BASELINE)]
    after = trained.steps_of(PlanningPhase.REPLAYING)[-LAST_STEPS:] or before

    def means(steps: list[int]) -> tuple[float, float]:
        seconds = fmean(max(rank.step_seconds[step] for rank in trained.ranks) for step in steps)
        return seconds, fmean(sum(rank.step_joules[step] for rank in trained.ranks) for step in steps)

    (seconds_before, joules_before), (seconds_after, joules_after) = means(before), means(after)
    frontier = Frontier.from_profile(true_profile(work, model), schedule)
    best = 1 - make_plan(frontier, slowdown_factor=1.0).energy_joules / frontier.highest_clock_point[1]
    saving = 1 - joules_after / joules_before
    print(
        f"{shape[0]} stages x {shape[1]:2} on {model:15} seed {seed}: {profiled:3} iterations profiled, saving "
        f"{saving:6.2%} of {best:6.2%}, slowdown {seconds_after / seconds_before - 1:+.2%}",
        flush=True,
    )
    return profiled, saving, best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.6, help="of an iteration (%(default)s)")
    parser.add_argument("--time-cv", type=float, default=0.03, help="scatter of the time of a pass (%(default)s)")
    parser.add_argument("--power-cv", type=float, default=0.01, help="scatter of its power (%(default)s)")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each (%(default)s)")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    results = [
        run(shape, model, seed, arguments) for shape in SHAPES for model in WATTS for seed in range(arguments.seeds)
    ]
    profiled, savings, best = zip(*results, strict=True)
    print(
        f"{len(results)} runs: at most {max(profiled)} iterations profiled, {fmean(profiled):.1f} in the mean; "
        f"{sum(savings) / sum(best):.1%} of the achievable saving realised"
    )
    return int(max(profiled) > MOST_ITERATIONS)


if __name__ == "__main__":
    sys.exit(main())
