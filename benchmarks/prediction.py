"""How often published sweeps save what `zeus-core predict` predicts, with their GPU model left out of the prior.

    python benchmarks/prediction.py --traces FOLDER     # with the sweeps of ml-energy/zeus

The saving of a sweep is that of the measured limit with the least energy within the slowdown. In the table nothing is
given of the training, neither the kind of work nor the power. Columns hold the median and the 5th and 95th percentile,
in % of the energy at the highest limit. Below it the published draw is given (`--draw`), and the kinds of work that the
shape fitted to the sweep itself belongs to (`--work`; sweeps that no limit binds have none), with the median width of
the intervals. Exits with 1 if fewer than 80 % of a line lie in the intervals, which are to hold 90 %.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from _sweeps import Sweep, read_sweeps

from zeus_core.search._curves import FIELDS
from zeus_core.search._prior import read_prior
from zeus_core.search.run.prediction import WORKS, predict_saving

MIN_SHARE = 0.8
SLOWDOWNS = (1.02, 1.05, 1.1, 1.2)


def saved(sweep: Sweep, slowdown: float) -> float:
    """Return the share of the energy that the best measured limit saves."""
    energies = sweep.seconds * sweep.watts
    return float(1 - (energies[sweep.seconds <= slowdown * sweep.seconds[0]] / energies[0]).min())


def known_works(sweeps: list[Sweep]) -> list[list[str]]:
    """Return the kinds of work of each sweep; the rows of the prior are in the order of the sweeps that limits bind."""
    prior = read_prior()
    shares = prior.parameters[:, FIELDS.index("computing")] * prior.parameters[:, FIELDS.index("compute_bound")]
    rows = {
        sweep.gpu: iter([share for share, source in zip(shares, prior.sources, strict=True) if source == sweep.gpu])
        for sweep in sweeps
    }
    own = [next(rows[sweep.gpu]) if sweep.binds else np.nan for sweep in sweeps]
    return [[work for work, (lowest, highest) in WORKS.items() if lowest <= share <= highest] for share in own]


def report_given(sweeps: list[Sweep]) -> float:
    """Print a line for each of what may be given; return the least share of sweeps within."""
    worst = 1.0
    works = known_works(sweeps)
    for title in ("nothing", "draw", "work", "draw and work"):
        widths, is_within = [], []
        for sweep, each in zip(sweeps, works, strict=True):
            for work in each if "work" in title else [None]:
                draw = float(sweep.watts[0]) if "draw" in title else None
                for slowdown in SLOWDOWNS:
                    prior = read_prior().without(sweep.gpu)
                    predicted = predict_saving(tuple(sweep.limits), slowdown, work, draw, prior)
                    widths.append(predicted.high - predicted.low)
                    is_within.append(predicted.low <= saved(sweep, slowdown) <= predicted.high)
        width, share = 100 * np.median(widths), float(np.mean(is_within))
        print(f"given {title}: {share:.0%} of {len(widths)} within, {width:.0f} points wide")
        worst = min(worst, share)
    return worst


def main() -> int:
    """Print the table; the exit code is 1 if too few sweeps lie in the intervals."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--traces", type=Path, required=True)
    sweeps = read_sweeps(parser.parse_args().traces)
    print(f"{'GPU':6}{'sweeps':>7}{'slower':>8}{'published':>20}{'predicted':>20}{'within':>8}")
    for gpu in sorted({sweep.gpu for sweep in sweeps}):
        own = [sweep for sweep in sweeps if sweep.gpu == gpu]
        for slowdown in SLOWDOWNS:
            real = np.array([saved(sweep, slowdown) for sweep in own])
            predicted = predict_saving(tuple(own[0].limits), slowdown, prior=read_prior().without(gpu))
            is_within = (real >= predicted.low) & (real <= predicted.high)
            low, median, high = (f"{100 * value:.1f}" for value in np.quantile(real, (0.05, 0.5, 0.95)))
            published = f"{median} ({low} to {high})"
            text = f"{100 * predicted.median:.1f} ({100 * predicted.low:.1f} to {100 * predicted.high:.1f})"
            print(f"{gpu:6}{len(own):7}{slowdown - 1:8.0%}{published:>20}{text:>20}{is_within.mean():8.0%}")
    return int(report_given(sweeps) < MIN_SHARE)


if __name__ == "__main__":
    sys.exit(main())
