"""How often published sweeps save what `zeus-core predict` predicts, with their GPU model left out of the prior.

    python benchmarks/prediction.py --traces FOLDER     # with the sweeps of ml-energy/zeus

The saving of a sweep is that of the measured limit with the least energy within the slowdown. Nothing is given of the
training, neither the kind of work nor the power. Columns hold the median and the 5th and 95th percentile, in
% of the energy at the highest limit. Exits with 1 if fewer than 80 % lie in the intervals, which are to hold 90 %.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from _sweeps import Sweep, read_sweeps

from zeus_core.search._prior import read_prior
from zeus_core.search.run.prediction import predict_saving

MIN_SHARE = 0.8
SLOWDOWNS = (1.02, 1.05, 1.1, 1.2)


def saved(sweep: Sweep, slowdown: float) -> float:
    """Return the share of the energy that the best measured limit saves."""
    energies = sweep.seconds * sweep.watts
    return float(1 - (energies[sweep.seconds <= slowdown * sweep.seconds[0]] / energies[0]).min())


def main() -> int:
    """Print the table; the exit code is 1 if too few sweeps lie in the intervals."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--traces", type=Path, required=True)
    sweeps = read_sweeps(parser.parse_args().traces)
    print(f"{'GPU':6}{'sweeps':>7}{'slower':>8}{'published':>20}{'predicted':>20}{'within':>8}")
    shares = []
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
            shares += list(is_within)
    print(f"{np.mean(shares):.0%} of {len(shares)} within")
    return int(np.mean(shares) < MIN_SHARE)


if __name__ == "__main__":
    sys.exit(main())
