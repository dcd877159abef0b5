"""How well the energies of the parts of a training are known: coverage and half-widths of the intervals, by class.

    python benchmarks/part_energy.py [--seeds 160] [--periods 0.1 0.02] [--loads usual erratic] [--faulty]

Random trainings of 25 s in virtual time, on a GPU of its own physics (tests/support): the steps and other parts of
`usual` loads are like each other; those of `erratic` ones draw a power of their own each, ramp, or wander. A class is
one activity of a training, by the usual length of its parts (long: two updates of the counter and more) and their time
in all. Prints, for each class: how many there are, the share whose truth lies in the stated interval, the half-width in
the median and in 19 of 20, and the share within the bound: 1 % for steps, 5 % for other parts. Exits with 1 if the
truth is in fewer than 95 % (less what is chance), or fewer than 95 % of the long classes of 5 s and more of usual loads
without faults are within the bound. Takes a minute for each load and period.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT)]

from tests.support.random_training import Outcome, make_case, make_erratic_case, measure  # noqa: E402

LOADS = {"usual": make_case, "erratic": make_erratic_case}
BOUNDS = {"steps": 0.01, "other": 0.05, "total": 0.01}
PROMISED = "long parts, 5 s and more in all"
LEAST_SHARE = 0.95


def rows_of(outcome: Outcome) -> list[tuple[str, bool, float]]:
    """Return for each class of a training: its name, whether the truth is inside, and the relative half-width."""
    account = outcome.summary.account
    known = [
        (("steps" if activity.value == "steps" else "other", outcome.lengths[activity]), tally, outcome.truth[activity])
        for activity, tally in account.activities.items()
    ]
    known.append((("total", ""), account.total, sum(outcome.truth.values())))
    return [
        (
            ": ".join(filter(None, name)),
            abs(tally.measured_joules - truth) <= tally.measured.uncertainty_joules + 0.01,
            tally.measured.uncertainty_joules / truth,
        )
        for name, tally, truth in known
        if tally.energy_joules is not None and truth > 0
    ]


def print_classes(outcomes: list[Outcome], is_promised: bool) -> bool:
    """Print the table of some trainings; return whether it is as it should be."""
    classes: dict[str, list[tuple[bool, float]]] = defaultdict(list)
    for outcome in outcomes:
        for name, is_inside, width in rows_of(outcome):
            classes[name].append((is_inside, width))
    is_good = True
    for name, cases in sorted(classes.items()):
        inside = np.array([is_inside for is_inside, _ in cases])
        widths = np.array([width for _, width in cases])
        within = float((widths <= BOUNDS[name.partition(":")[0]]).mean())
        chance = 2 * math.sqrt(LEAST_SHARE * (1 - LEAST_SHARE) / len(cases))
        is_good &= bool(inside.mean() >= LEAST_SHARE - chance)
        if is_promised and name.endswith(PROMISED):
            is_good &= within >= LEAST_SHARE
        median, most = 100 * np.quantile(widths, [0.5, 0.95])
        print(f"  {name:40} {len(cases):4} {inside.mean():6.1%} {median:8.2f} % {most:8.2f} % {within:7.1%}")
    return is_good


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=160)
    parser.add_argument("--periods", type=float, nargs="+", default=[0.1, 0.02])
    parser.add_argument("--loads", choices=LOADS, nargs="+", default=list(LOADS))
    parser.add_argument("--faulty", action="store_true", help="a passing fault of the counter in each training")
    options = parser.parse_args()
    is_good = True
    for load in options.loads:
        for period in options.periods:
            outcomes = [
                measure(LOADS[load](seed, period, options.faulty)) for seed in range(1000, 1000 + options.seeds)
            ]
            calls = np.quantile([outcome.calls_per_second for outcome in outcomes], [0.5, 0.95])
            print(f"{load} loads, T = {period * 1000:.0f} ms, {calls[0]:.1f} calls a second (95 %: {calls[1]:.1f})")
            print(f"  {'class':40} {'n':>4} {'inside':>6} {'median':>10} {'19 of 20':>10} {'bound':>7}")
            is_good &= print_classes(outcomes, load == "usual" and not options.faulty)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
