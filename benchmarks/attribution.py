"""How well the energies of the parts of a training are known: errors and stated half-widths, by class.

    python benchmarks/attribution.py [--seeds 200] [--first-seed 1000] [--save FILE] [--beside FILE] [--processes 1]

Random trainings of 25 s in virtual time, on the NVML driver in C of the tests (tests/nvml_driver), which knows the true
energy: counters of 20 and 100 ms with jitter, a wandering period and values of a while ago; a power that follows the
load with a lag of up to 30 ms, noise and bursts; calls of up to 2 ms; with and without a passing fault (the counter
fails, stands still, loses energy, begins again, tells nonsense). The steps and other parts of `usual` loads are like
each other; those of `erratic` ones draw a power of their own each, ramp, or wander; `passes` are loads whose steps
hold reference passes of a tenth of a period to two periods of the counter (tests/support/random_training.py).

A class is one activity of a training, by the usual length of its parts (long: two updates of the counter and more) and
their time in all. For each: how many there are; the share whose truth lies in the stated interval; the error and the
stated half-width in the median and in 19 of 20, in percent of the truth. `--save` keeps the numbers, `--beside` prints
those of an earlier run, such as one of other code, next to these.

Exits with 1 if the truth of a class is in fewer than 95 %, or the half-width of long parts of 5 s and more is above 2 %
(steps) or 6 % (others) in more than 1 of 20; both less what is chance.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT)]

from tests.support.random_training import make_case, make_erratic_case, make_pass_case, measure  # noqa: E402
from zeus_core.events import Activity  # noqa: E402

LOADS = {"usual": make_case, "erratic": make_erratic_case, "passes": make_pass_case}
BOUNDS = {"steps, long, 5 s and more": 0.02, "others, long, 5 s and more": 0.06}
NAMES = {Activity.STEPS: "steps", Activity.REFERENCE: "passes"}
LEAST_SHARE = 0.95
CONDITIONS = [(load, period, is_faulty) for load in LOADS for period in (0.1, 0.02) for is_faulty in (False, True)]

Rows = dict[str, list[tuple[float, float]]]
"""By class: errors and half-widths, as fractions of the truth."""


def rows_of(condition: tuple[str, float, bool], seed: int) -> tuple[Rows, float, float]:
    """Return the classes of one training, the calls a second in the background, and the CPU seconds of all of it."""
    load, period, is_faulty = condition
    case = LOADS[load](seed, period, is_faulty)
    begin = time.process_time()
    outcome = measure(case)
    seconds = time.process_time() - begin
    rows: Rows = defaultdict(list)
    account = outcome.summary.account
    names = NAMES | ({Activity.STEPS: "steps around passes"} if load == "passes" else {})
    known = [
        (f"{names.get(activity, 'others')}, {outcome.lengths[activity]}", tally, outcome.truth[activity])
        for activity, tally in account.activities.items()
    ]
    for name, tally, truth in [*known, ("total", account.total, sum(outcome.truth.values()))]:
        if tally.energy_joules is not None and truth > 0:
            error, width = abs(tally.measured_joules - truth), tally.measured.uncertainty_joules
            rows[name].append((max(error - 0.01, 0.0) / truth, width / truth))
    return dict(rows), outcome.calls_per_second, seconds


def summary(rows: Sequence[tuple[float, float]]) -> str:
    """Return the numbers of a class in one line."""
    errors, widths = np.array(rows).T
    inside = np.mean(errors <= widths)
    numbers = [*np.quantile(errors, [0.5, 0.95]), *np.quantile(widths, [0.5, 0.95])]
    return f"{len(rows):4} {inside:6.1%} " + " ".join(f"{100 * number:7.2f}" for number in numbers)


def is_good(name: str, rows: Sequence[tuple[float, float]]) -> bool:
    """Whether a class is as promised, but for chance."""
    errors, widths = np.array(rows).T
    least = LEAST_SHARE - 2 * math.sqrt(LEAST_SHARE * (1 - LEAST_SHARE) / len(rows))
    return bool(np.mean(errors <= widths) >= least and np.mean(widths <= BOUNDS.get(name, math.inf)) >= least)


def print_classes(
    classes: Mapping[str, Sequence[tuple[float, float]]], beside: Mapping[str, Sequence[tuple[float, float]]]
) -> bool:
    """Print a table, beside an earlier one; return whether it is as promised."""
    are_good = True
    head = f"{'n':>4} {'inside':>6} {'error':>7} {'19/20':>7} {'+-':>7} {'19/20':>7}"
    print(f"  {'':36} {head}{' | before: ' + head if beside else ''}")
    for name, rows in sorted(classes.items()):
        before = f" |         {summary(beside[name])}" if name in beside else ""
        print(f"  {name:36} {summary(rows)}{before}{'' if is_good(name, rows) else '  <- not as promised'}")
        are_good &= is_good(name, rows)
    return are_good


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--beside", type=Path)
    options = parser.parse_args()
    before = json.loads(options.beside.read_text()) if options.beside else {}
    kept: dict[str, Rows] = {}
    of_all: Rows = defaultdict(list)
    are_good = True
    with ProcessPoolExecutor(options.processes) as pool:
        for condition in CONDITIONS:
            load, period, is_faulty = condition
            title = f"{load} loads, T = {1000 * period:.0f} ms, {'with' if is_faulty else 'no'} faults"
            seeds = range(options.first_seed, options.first_seed + options.seeds)
            classes: Rows = defaultdict(list)
            calls, seconds = [], []
            for rows, calls_per_second, cpu_seconds in pool.map(partial(rows_of, condition), seeds, chunksize=10):
                calls.append(calls_per_second)
                seconds.append(cpu_seconds)
                for name, some in rows.items():
                    classes[name] += some
                    of_all[name] += some
            kept[title] = classes
            print(
                f"{title}: {np.mean(calls):.1f} calls a second, {np.mean(seconds):.2f} s of CPU a training", flush=True
            )
            are_good &= print_classes(classes, before.get(title, {}))
    kept["all"] = of_all
    print("all")
    print_classes(of_all, before.get("all", {}))
    if options.save:
        options.save.write_text(json.dumps(kept))
    return 0 if are_good else 1


if __name__ == "__main__":
    sys.exit(main())
