"""How well the energies of the parts of a training are known: coverage and half-widths of the intervals, by class.

    python benchmarks/part_energy.py [--seeds 160] [--first-seed 1000] [--periods 0.1 0.02] [--loads usual erratic]
                                     [--faulty]

Random trainings of 25 s in virtual time, on a GPU of its own physics (tests/support): the steps and other parts of
`usual` loads are like each other; those of `erratic` ones draw a power of their own each, ramp, or wander. A class is
one activity of a training, by the usual length of its parts (long: two updates of the counter and more) and their time
in all. Prints, for each class: how many there are, the share whose truth lies in the stated interval, the half-width in
the median and in 19 of 20, and the share within the bound: 1 % for steps, 5 % for other parts. Beside it, the least
half-width that anyone could state from the same reads (tests/support/part_oracle.py) in the median and in 19 of 20, the
share of it within the bound, and how many times as wide the stated one is. The oracle is not told the lag of the power,
nor the age and jitter of the counter's values; the last columns are of one that is.

Exits with 1 if the truth is in fewer than 95 % (less what is chance), or fewer than 95 % of the long classes of 5 s and
more of usual loads are within the bound. Takes a minute for each load and period.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT)]

from tests.support.random_training import Outcome, make_case, make_erratic_case, measure  # noqa: E402

LOADS = {"usual": make_case, "erratic": make_erratic_case}
BOUNDS = {"steps": 0.01, "other": 0.05, "total": 0.01}
PROMISED = "long parts, 5 s and more in all"
LEAST_SHARE = 0.95


class Row(NamedTuple):
    """One class of one training; half-widths are fractions of the true energy."""

    name: str
    is_inside: bool
    width: float
    least_width: float
    """The width of the oracle; nan for the total."""
    least_width_if_told: float


def rows_of(outcome: Outcome) -> list[Row]:
    """Return the classes of a training."""
    account = outcome.summary.account
    least, least_if_told = outcome.least_half_widths(False), outcome.least_half_widths(True)
    known = [
        (
            f"{'steps' if activity.value == 'steps' else 'other'}: {outcome.lengths[activity]}",
            tally,
            outcome.truth[activity],
            least[activity],
            least_if_told[activity],
        )
        for activity, tally in account.activities.items()
    ]
    known.append(("total", account.total, sum(outcome.truth.values()), math.nan, math.nan))
    return [
        Row(
            name,
            abs(tally.measured_joules - truth) <= tally.measured.uncertainty_joules + 0.01,
            tally.measured.uncertainty_joules / truth,
            *(joules / truth for joules in of_oracle),
        )
        for name, tally, truth, *of_oracle in known
        if tally.energy_joules is not None and truth > 0
    ]


def print_classes(outcomes: list[Outcome], is_promised: bool) -> bool:
    """Print the table of some trainings; return whether it is as it should be."""
    classes: dict[str, list[Row]] = defaultdict(list)
    for outcome in outcomes:
        for row in rows_of(outcome):
            classes[row.name].append(row)
    is_good = True
    for name, rows in sorted(classes.items()):
        inside = np.mean([row.is_inside for row in rows])
        widths, least, if_told = np.array([row[2:] for row in rows]).T
        bound = BOUNDS[name.partition(":")[0]]
        chance = 2 * math.sqrt(LEAST_SHARE * (1 - LEAST_SHARE) / len(rows))
        is_good &= bool(inside >= LEAST_SHARE - chance)
        if is_promised and name.endswith(PROMISED):
            is_good &= bool((widths <= bound).mean() >= LEAST_SHARE - chance)
        stated = f"{name:40} {len(rows):4} {inside:6.1%} {quantiles(widths)} {(widths <= bound).mean():5.0%}"
        if name == "total":
            print(f"  {stated}")
            continue
        times = np.quantile(widths / np.maximum(least, 1e-9), [0.5, 0.95])
        oracle = f"{quantiles(least)} {(least <= bound).mean():5.0%}  {times[0]:5.1f} {times[1]:5.1f}"
        print(f"  {stated} | {oracle} | {quantiles(if_told)} {(if_told <= bound).mean():5.0%}")
    return is_good


def quantiles(fractions: NDArray[np.float64]) -> str:
    """Return the median and the 95th percentile, in percent."""
    return " ".join(f"{100 * fraction:7.2f}" for fraction in np.quantile(fractions, [0.5, 0.95]))


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=160)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--periods", type=float, nargs="+", default=[0.1, 0.02])
    parser.add_argument("--loads", choices=LOADS, nargs="+", default=list(LOADS))
    parser.add_argument("--faulty", action="store_true", help="a passing fault of the counter in each training")
    options = parser.parse_args()
    is_good = True
    for load in options.loads:
        for period in options.periods:
            outcomes = [
                measure(LOADS[load](seed, period, options.faulty))
                for seed in range(options.first_seed, options.first_seed + options.seeds)
            ]
            calls = np.quantile([outcome.calls_per_second for outcome in outcomes], [0.5, 0.95])
            print(f"{load} loads, T = {period * 1000:.0f} ms, {calls[0]:.1f} calls a second (95 %: {calls[1]:.1f})")
            head = f"{'median':>7} {'19/20':>7} {'bound':>5}"
            oracle = f"{'oracle':>7} {'19/20':>7} {'bound':>5} {'times':>12} | told"
            print(f"  {'class':40} {'n':>4} {'inside':>6} {head} | {oracle}")
            is_good &= print_classes(outcomes, load == "usual")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
