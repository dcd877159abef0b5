"""Make the prior of the adaptive search (`zeus_core/search/curve_prior.csv`) from measured sweeps of power limits.

    python tools/fit_search_prior.py FOLDER     # with summary_power_v100.csv, summary_power_a40.csv, kronos_a100_*.csv

Each sweep whose highest draw exceeds its lowest limit gives one row: the parameters of `zeus_core/search/_curves.py`
that fit its time and power best (least squares, weakly drawn towards values that are usual for GPUs). Rows of the
source `physics` are not fitted to anything: they spread over what GPUs can be, so that the prior also covers those
nobody measured. The sweeps come from ml-energy/zeus (Apache-2.0): the Zeus artifact (NSDI'23) for V100 and A40, the
Perseus artifact (SOSP'24) for A100. Needs scipy.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from _sweeps import Sweep, read_sweeps  # noqa: E402

from zeus_core.search._curves import FIELDS, Array, CurveShapes  # noqa: E402
from zeus_core.search._prior import PRIOR_PATH  # noqa: E402

SOURCES = ("a100", "a40", "v100")
PHYSICS_ROWS = 200

# static, blocking, v, s, fmin, rho, d, k, and the demand: what GPUs can be, what is usual, and how far from it.
LOWEST = np.array([0.03, 0.03, 0.5, 0.3, 0.05, 0.9, 0.2, 0.0, 0.1])
HIGHEST = np.array([0.5, 0.7, 0.98, 1.3, 0.5, 1.1, 1.0, 1.0, 3.0])
USUAL = np.array([0.15, 0.25, 0.78, 0.8, 0.18, 1.01, 0.75, 0.7, 1.0])
DEVIATION = np.array([0.07, 0.1, 0.08, 0.15, 0.07, 0.03, 0.2, 0.25, 0.5])

# How far single measurements scatter around the model, in time and power (medians of a fit without weights).
TIME_SCATTER, POWER_SCATTER = 0.01, 0.015
STARTS, TRIED_STARTS = 3000, 3


def curves(parameters: Array, fractions: Array) -> tuple[Array, Array]:
    """Return the logarithms of time and power for rows of parameters."""
    return CurveShapes(parameters[:, :-1], parameters[:, -1:]).under_limits(fractions)


def fit(sweep: Sweep) -> Array:
    """Return the parameters that fit a sweep best."""
    fractions = sweep.limits / sweep.limits[0]
    log_seconds, log_watts = np.log(sweep.seconds), np.log(sweep.watts / sweep.limits[0])

    def errors(parameters: Array) -> Array:
        seconds, watts = curves(parameters, fractions)
        time_error = log_seconds - seconds
        time_error -= time_error.mean(axis=1, keepdims=True)  # how long a step takes is not part of its shape
        return np.concatenate([time_error / TIME_SCATTER, (log_watts - watts) / POWER_SCATTER], axis=1)

    def penalised(parameters: Array) -> Array:
        return np.concatenate([errors(parameters[None])[0], (0.5 * (parameters - USUAL) / DEVIATION)[:-1]])

    random = np.random.default_rng(0)
    starts = np.clip(USUAL + DEVIATION * random.standard_normal((STARTS, len(USUAL))), LOWEST + 1e-3, HIGHEST - 1e-3)
    starts[:, -1] = np.exp(random.uniform(np.log(0.3), np.log(1.8), STARTS))
    best = np.argsort((errors(starts) ** 2).sum(axis=1))[:TRIED_STARTS]
    fits = [
        least_squares(penalised, starts[place], bounds=(LOWEST, HIGHEST), max_nfev=60, loss="soft_l1") for place in best
    ]
    return np.asarray(min(fits, key=lambda one: float(one.cost)).x)


def physics() -> Array:
    """Return parameters that spread over what GPUs can be."""
    random = np.random.default_rng(1)
    rows = np.clip(USUAL + DEVIATION * random.standard_normal((PHYSICS_ROWS, len(USUAL))), LOWEST, HIGHEST)
    rows[:, 1] = rows[:, 0] + random.uniform(0, 0.2, PHYSICS_ROWS)  # a GPU that waits draws more than a stopped one
    return rows


def main() -> int:
    """Make the file."""
    sweeps = [sweep for sweep in read_sweeps(Path(sys.argv[1])) if sweep.gpu in SOURCES and sweep.binds]
    if {sweep.gpu for sweep in sweeps} != set(SOURCES):
        print(f"{sys.argv[1]} does not hold the sweeps of {', '.join(SOURCES)}", file=sys.stderr)
        return 1
    rows = [(sweep.gpu, fit(sweep)) for sweep in sweeps] + [("physics", row) for row in physics()]
    lines = [
        "# Shapes of time and power curves: the prior of the adaptive search. Made by tools/fit_search_prior.py from",
        "# sweeps of ml-energy/zeus (Apache-2.0). The columns are explained in _curves.py.",
        ",".join(("source", *FIELDS)),
        *(",".join((source, *(f"{value:.3f}" for value in row[:-1]))) for source, row in rows),
    ]
    PRIOR_PATH.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(rows)} rows in {PRIOR_PATH}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
