"""The first plan of an installation, and whether plans depend on the compiler of the planner's loops.

    python benchmarks/first_plan.py [--problems 20]

`zeus-core plan gpt3-like --microbatches 8`, with and without a price of switches, each in fresh homes: CPU
seconds, seconds until the end, and until the first line; the least of some runs. Then random problems of 2 to 8 stages
(those of `plan_switching.py` with at most 96 forward passes) are planned compiled and by Python: frontiers and plans
must be equal. Exits with 1 if they are not, or if a limit is not kept: 5 CPU seconds, 0.3 s until the first line.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple
from unittest import mock

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from plan_switching import SwitchingProblem, random_problems  # noqa: E402

from zeus_core.errors import UsageError  # noqa: E402
from zeus_core.pipeline import Frontier, make_plan  # noqa: E402
from zeus_core.pipeline.planner import loops  # noqa: E402

COMMAND = [sys.executable, "-m", "zeus_core", "plan", "gpt3-like"]
COMMAND += ["--microbatches", "8", "--output", "out"]
PRICES = {"free switches": [], "switches of 5 ms": ["--switch-seconds", "0.005"]}
RUNS = 5
MOST_CPU_SECONDS, MOST_SILENT_SECONDS = 5.0, 0.3
MOST_FORWARDS = 96
EFFORT = 0.01  # a plan by Python takes a hundred times as long


class FirstPlan(NamedTuple):
    """What a plan took, in seconds."""

    cpu: float
    wall: float
    silent: float


def first_plan(more: list[str]) -> FirstPlan:
    """Plan once in a fresh home."""
    with tempfile.TemporaryDirectory() as folder:
        known = ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
        environment = {name: os.environ[name] for name in known if name in os.environ}
        environment |= {"HOME": folder, "PYTHONPATH": str(ROOT)}
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        with subprocess.Popen(
            [*COMMAND, *more], cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as process:
            assert process.stderr is not None
            process.stderr.readline()
            silent = time.perf_counter() - begin
            process.communicate()
        if process.returncode:
            raise SystemExit(f"the plan ended with {process.returncode}")
        wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return FirstPlan(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall, silent)


def measure_first_plans() -> bool:
    holds = True
    for name, more in PRICES.items():
        runs = [first_plan(more) for _ in range(RUNS)]
        least = FirstPlan(*(min(values) for values in zip(*runs, strict=True)))
        print(
            f"first plan, {name}: {least.cpu:.2f} CPU s (limit {MOST_CPU_SECONDS}), ends after {least.wall:.2f} s,"
            f" first line after {least.silent:.2f} s (limit {MOST_SILENT_SECONDS})",
            flush=True,
        )
        holds = holds and least.cpu <= MOST_CPU_SECONDS and least.silent <= MOST_SILENT_SECONDS
    return holds


def results(problem: SwitchingProblem) -> list[object]:
    """Return the frontier of a problem, its plan with free switches, and that with their price, if there is one."""
    frontier = Frontier.from_profile(problem.profile, problem.schedule)
    asked = {"slowdown_factor": problem.slowdown_factor, "effort": EFFORT}
    found = [frontier.times_seconds.tolist(), frontier.energies_joules.tolist(), make_plan(frontier, **asked)]
    price = {"switch_seconds": problem.switch_seconds, "dwell_seconds": problem.dwell_seconds}
    try:
        return [*found, make_plan(frontier, **asked, **price)]
    except UsageError as error:
        return [*found, str(error)]


def compare_plans(count: int) -> bool:
    small = (
        problem
        for problem in random_problems(sys.maxsize, 0)
        if problem.schedule.stages * problem.schedule.microbatches <= MOST_FORWARDS
    )
    different, seconds = 0, {True: 0.0, False: 0.0}
    for problem in itertools.islice(small, count):
        found = []
        for is_compiled in seconds:
            with mock.patch.object(loops, "has_compiler", return_value=is_compiled):
                begin = time.process_time()
                found.append(results(problem))
                seconds[is_compiled] += time.process_time() - begin
        different += found[0] != found[1]
    print(
        f"{different} of {count} problems have another frontier or plan by Python ({seconds[False]:.0f} CPU s) than"
        f" compiled ({seconds[True]:.0f} CPU s)"
    )
    return different == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=20)
    arguments = parser.parse_args()
    holds = measure_first_plans()
    return int(not (compare_plans(arguments.problems) and holds))


if __name__ == "__main__":
    sys.exit(main())
