"""How much power each kind of work draws, although it is shorter than the period of the energy counter.

Between two steps of the counter the energy is known exactly, and so is what the GPU did in between. What is not known
is the mean power of each kind of work at each clock, and there are many more intervals than kinds: a linear
regression. Waiting is a kind of work too.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zeus_core.optimizer.pipeline_frequency.counter_watch import CounterStep
from zeus_core.optimizer.pipeline_frequency.step_times import likely_steps
from zeus_core.optimizer.pipeline_frequency.timeline import Span

__all__ = ["WAITING", "MeanPower", "mean_powers"]

WAITING = "waiting"
"""What a GPU does between its spans."""

_LEAST_SHARE = 1e-6  # of the time: what takes less tells nothing of its power
_LEAST_SQUARE = 1e-12  # joules squared
_MOST_CORRELATED = 0.4999
_ALIKE_INTERVALS = 20  # that are off alike, at most
_LONGEST_DOUBT = 0.05  # of an interval: steps that are less sure than that are passed over

Numbers = NDArray[np.float64]


class MeanPower(NamedTuple):
    """The mean power of one kind of work.

    Attributes:
        watts: The power.
        error_watts: Its standard error.
    """

    watts: float
    error_watts: float


def mean_powers(
    steps: Sequence[CounterStep], spans: Sequence[Span], known: Sequence[Span]
) -> Mapping[Hashable, MeanPower]:
    """The mean power of each kind of work, and of waiting.

    Args:
        steps: The steps of the energy counter as they were seen, in order.
        spans: What the GPU did, in order and not overlapping.
        known: When all it did is in `spans`; in order and not overlapping. Intervals that reach out of these times do
            not count.

    Returns:
        By what the spans say they are; those of which the measurements tell nothing are left out.
    """
    edges = _edges(likely_steps(steps))
    if len(edges) < 2:
        return {}
    at = np.array([step.at_seconds for step in edges])
    joules = np.diff([step.energy_joules for step in edges])
    names, seconds = _seconds_of_each(at, spans)
    is_known = _overlaps(at, known) > np.diff(at) * (1 - 1e-9)
    is_known &= joules >= 0  # a counter that was reset has gone back
    return _regress(names, seconds[is_known], joules[is_known])


def _edges(steps: Sequence[CounterStep]) -> list[CounterStep]:
    """The steps whose times are sure enough."""
    edges: list[CounterStep] = []
    for step in steps:
        reach = step.at_seconds - edges[-1].at_seconds if edges else np.inf
        if step.half_width_seconds <= _LONGEST_DOUBT * reach:
            edges.append(step)
    return edges


def _seconds_of_each(at: Numbers, spans: Sequence[Span]) -> tuple[list[Hashable], Numbers]:
    """How long each kind of work took in each interval, [intervals, kinds]; waiting is the last."""
    by_name: dict[Hashable, list[Span]] = {}
    for span in spans:
        by_name.setdefault(span.what, []).append(span)
    columns = [_overlaps(at, of_name) for of_name in by_name.values()]
    waiting = np.maximum(np.diff(at) - sum(columns), 0.0)
    return [*by_name, WAITING], np.stack([*columns, waiting], axis=1)


def _overlaps(at: Numbers, spans: Sequence[Span]) -> Numbers:
    """How much of each interval between neighbouring times lies in some spans, [intervals]."""
    if not spans:
        return np.zeros(len(at) - 1)
    begins = np.array([span.begin_seconds for span in spans])
    lengths = np.array([max(span.seconds, 0.0) for span in spans])
    ends = np.cumsum(lengths)
    # How much of all spans lies before each time.
    last = np.searchsorted(begins, at, side="right") - 1
    inside = np.minimum(at - begins[last], lengths[last])
    before = np.where(last >= 0, ends[last] - lengths[last] + inside, 0.0)
    overlaps: Numbers = np.diff(before)
    return overlaps


def _regress(names: Sequence[Hashable], seconds: Numbers, joules: Numbers) -> Mapping[Hashable, MeanPower]:
    """Least squares, generalized: see `_whitened`."""
    is_seen = seconds.sum(axis=0) > _LEAST_SHARE * seconds.sum()
    seen = [name for name, is_one in zip(names, is_seen.tolist(), strict=True) if is_one]
    seconds = seconds[:, is_seen]
    if len(joules) <= len(seen) or np.linalg.matrix_rank(seconds) < len(seen):
        return {}
    residual = joules - seconds @ np.linalg.lstsq(seconds, joules, rcond=None)[0]
    correlation = float(residual[1:] @ residual[:-1]) / max(float(residual @ residual), _LEAST_SQUARE)
    seconds, joules = _whitened(np.column_stack([seconds, joules]), correlation)
    inverse = np.linalg.pinv(seconds)
    watts = inverse @ joules
    errors = _standard_errors(inverse, joules - seconds @ watts)
    return {name: MeanPower(*pair) for name, *pair in zip(seen, watts.tolist(), errors.tolist(), strict=True)}


def _standard_errors(inverse: Numbers, residual: Numbers) -> Numbers:
    """Those of the powers, [kinds], also where neighbouring intervals are off alike (Newey and West, 1987).

    Args:
        inverse: What the joules are multiplied with, [kinds, intervals].
        residual: By how much the joules are off, [intervals].
    """
    kinds, count = inverse.shape
    scores = inverse * residual
    variance = np.square(scores).sum(axis=1)
    reach = min(_ALIKE_INTERVALS, count - 1)
    for lag in range(1, reach + 1):
        variance += 2 * (1 - lag / (reach + 1)) * (scores[:, lag:] * scores[:, :-lag]).sum(axis=1)
    alone = np.square(inverse).sum(axis=1) * float(residual @ residual) / count
    errors: Numbers = np.sqrt(np.maximum(variance, alone) * count / (count - kinds))
    return errors


def _whitened(rows: Numbers, correlation: float) -> tuple[Numbers, Numbers]:
    """Rows, the last column of which is the known side, in which what is off is no longer correlated.

    A step that is seen too late adds to one interval what it takes from the next: neighbours are off in opposite
    directions, by a correlation down to -1/2. Rows are divided by the Cholesky factor of that covariance.
    """
    off = min(max(correlation, -_MOST_CORRELATED), 0.0)
    white = np.empty_like(rows)
    below = 0.0  # of the factor, left of the diagonal
    before = np.zeros(rows.shape[1])
    for number, row in enumerate(rows):
        diagonal = np.sqrt(1.0 - below**2)
        before = (row - below * before) / diagonal
        white[number] = before
        below = off / diagonal
    return white[:, :-1], white[:, -1]
