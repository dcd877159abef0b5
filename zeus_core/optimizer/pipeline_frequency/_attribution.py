"""The mean power of each kind of work, even of work shorter than the period of the energy counter.

Between two updates of the counter the energy is known exactly, and so is the work of the GPU. The mean power of each
kind of work at each clock is unknown. There are many more intervals than kinds, so this is a linear regression. Waiting
is a kind of work too.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zeus_core.optimizer.pipeline_frequency._counter_updates import CounterUpdate, likely_updates
from zeus_core.optimizer.pipeline_frequency._timeline import Span

__all__ = ["WAITING", "WAITING_SLOPE", "MeanPower", "mean_powers"]

WAITING = "waiting"
"""The kind of work between the spans of a GPU."""

WAITING_SLOPE = "waiting slope"
"""How much more the GPU draws while it waits for each unit of what is given with the known times; often below 0."""

# Fraction of all time below which the power of a kind of work cannot be determined.
_MIN_TIME_FRACTION = 1e-6

_MIN_SQUARE_JOULES = 1e-12  # keeps the division finite where the fit is exact

# Correlation of neighbouring errors; -1/2 is the theoretical bound, at which the factorization would end.
_MAX_CORRELATION = 0.4999

# Maximum distance at which the errors of intervals are taken to be correlated: wide enough for the
# instructions of a microbatch. A wider one makes the standard errors themselves uncertain (Newey and West, 1987).
_CORRELATED_INTERVALS = 20

# Uncertainty of an update, as a fraction of the interval it ends, above which it is skipped: the interval is merged
# with the next one, whose relative uncertainty is smaller.
_MAX_UNCERTAINTY_FRACTION = 0.05

Numbers = NDArray[np.float64]


class MeanPower(NamedTuple):
    """The mean power of one kind of work.

    Attributes:
        watts: The power.
        stderr_watts: Its standard error.
    """

    watts: float
    stderr_watts: float


def mean_powers(
    updates: Sequence[CounterUpdate],
    spans: Sequence[Span],
    known: Sequence[Span],
    held_up: Sequence[Span] = (),
    units: Sequence[float] = (),
) -> Mapping[Hashable, MeanPower]:
    """Determine the mean power of each kind of work, and of waiting.

    Args:
        updates: The updates of the energy counter as they were detected, in order.
        spans: The work of the GPU, in order and not overlapping.
        known: The times in which `spans` is complete; in order and not overlapping. Intervals that extend beyond them
            do not count.
        held_up: Those of `spans` in which the GPU waited for something. Intervals that overlap them do not count.
        units: For each of `known`, such as how far the clock is below the highest, a number to which the power of
            waiting is linear: `WAITING` is then that at 0. Empty if it is the same in all.

    Returns:
        The power by the label of the spans, by `WAITING`, and by `WAITING_SLOPE` with units; kinds that cannot be
        determined are left out.
    """
    edges = _edges(likely_updates(updates))
    if len(edges) < 2:
        return {}
    at = np.array([edge.at_seconds for edge in edges])
    joules = np.diff([edge.energy_joules for edge in edges])
    names, seconds = _seconds_of_each(at, spans)
    if units:
        spread = np.sum([unit * _overlaps(at, [span]) for unit, span in zip(units, known, strict=True)], axis=0)
        seconds = np.column_stack([seconds, seconds[:, -1] * spread / np.diff(at)])
        names = [*names, WAITING_SLOPE]
    is_known = _overlaps(at, known) - _overlaps(at, held_up) > np.diff(at) * (1 - 1e-9)
    is_known &= joules >= 0  # a counter that was reset has gone back
    return _regress(names, seconds[is_known], joules[is_known])


def _edges(updates: Sequence[CounterUpdate]) -> list[CounterUpdate]:
    """Return the updates whose times are accurate enough."""
    edges: list[CounterUpdate] = []
    for update in updates:
        reach = update.at_seconds - edges[-1].at_seconds if edges else np.inf
        if update.uncertainty_seconds <= _MAX_UNCERTAINTY_FRACTION * reach:
            edges.append(update)
    return edges


def _seconds_of_each(at: Numbers, spans: Sequence[Span]) -> tuple[list[Hashable], Numbers]:
    """Return the seconds of each kind of work in each interval, [intervals, kinds]; waiting is the last."""
    by_name: dict[Hashable, list[Span]] = {}
    for span in spans:
        by_name.setdefault(span.label, []).append(span)
    columns = [_overlaps(at, of_name) for of_name in by_name.values()]
    waiting = np.maximum(np.diff(at) - sum(columns), 0.0)
    return [*by_name, WAITING], np.stack([*columns, waiting], axis=1)


def _overlaps(at: Numbers, spans: Sequence[Span]) -> Numbers:
    """Return the seconds of each interval between neighbouring times that lie in some spans, [intervals]."""
    if not spans:
        return np.zeros(len(at) - 1)
    begins = np.array([span.begin_seconds for span in spans])
    lengths = np.array([max(span.seconds, 0.0) for span in spans])
    ends = np.cumsum(lengths)
    # The total length of spans before each time.
    last = np.searchsorted(begins, at, side="right") - 1
    inside = np.minimum(at - begins[last], lengths[last])
    before = np.where(last >= 0, ends[last] - lengths[last] + inside, 0.0)
    overlaps: Numbers = np.diff(before)
    return overlaps


def _regress(names: Sequence[Hashable], seconds: Numbers, joules: Numbers) -> Mapping[Hashable, MeanPower]:
    """Least squares, generalized: see `_whitened`."""
    is_seen = seconds.sum(axis=0) > _MIN_TIME_FRACTION * seconds.sum()
    seen = [name for name, is_one in zip(names, is_seen.tolist(), strict=True) if is_one]
    seconds = seconds[:, is_seen]
    if len(joules) <= len(seen) or np.linalg.matrix_rank(seconds) < len(seen):
        return {}
    residual = joules - seconds @ np.linalg.lstsq(seconds, joules, rcond=None)[0]
    correlation = float(residual[1:] @ residual[:-1]) / max(float(residual @ residual), _MIN_SQUARE_JOULES)
    seconds, joules = _whitened(np.column_stack([seconds, joules]), correlation)
    inverse: NDArray[Any] = np.linalg.pinv(seconds)
    watts = inverse @ joules
    errors = _standard_errors(inverse, joules - seconds @ watts)
    return {name: MeanPower(*pair) for name, *pair in zip(seen, watts.tolist(), errors.tolist(), strict=True)}


def _standard_errors(inverse: NDArray[Any], residual: NDArray[Any]) -> Numbers:
    """The standard errors of the powers, [kinds], where errors of near intervals are correlated (Newey and West, 1987).

    Args:
        inverse: The pseudoinverse of the seconds, [kinds, intervals].
        residual: The residual joules, [intervals].
    """
    kinds, count = inverse.shape
    scores = inverse * residual
    variance = np.square(scores).sum(axis=1)
    reach = min(_CORRELATED_INTERVALS, count - 1)
    for lag in range(1, reach + 1):
        variance += 2 * (1 - lag / (reach + 1)) * (scores[:, lag:] * scores[:, :-lag]).sum(axis=1)
    alone = np.square(inverse).sum(axis=1) * float(residual @ residual) / count
    errors: Numbers = np.sqrt(np.maximum(variance, alone) * count / (count - kinds))
    return errors


def _whitened(rows: Numbers, correlation: float) -> tuple[Numbers, Numbers]:
    """Transform rows, whose last column is the right-hand side, so that their errors are no longer correlated.

    An update that is detected late adds to one interval what it takes from the next: the errors of neighbours have
    opposite signs, with a correlation down to -1/2. Rows are divided by the Cholesky factor of that covariance.
    """
    off = min(max(correlation, -_MAX_CORRELATION), 0.0)
    white = np.empty_like(rows)
    below = 0.0  # of the factor, left of the diagonal
    before = np.zeros(rows.shape[1])
    for number, row in enumerate(rows):
        diagonal = np.sqrt(1.0 - below**2)
        before = (row - below * before) / diagonal
        white[number] = before
        below = off / diagonal
    return white[:, :-1], white[:, -1]
