"""The mean power of each kind of work, even of work shorter than the period of the energy counter.

Between two updates of the counter the energy is known exactly, and so is the work of the GPU. The mean power of each
kind of work at each clock is unknown. There are many more intervals than kinds, so this is a linear regression. Waiting
is a kind of work too.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zeus_core.attribution.regression import PowerRegression
from zeus_core.attribution.updates import Knot, likely_knots
from zeus_core.pipeline.profile.step_timeline import Span

WAITING = "waiting"
"""The kind of work between the spans of a GPU."""

WAITING_SLOPE = "waiting slope"
"""How much more the GPU draws while it waits for each unit of what is given with the known times; often below 0."""

# Fraction of all time below which the power of a kind of work cannot be determined.
_MIN_TIME_FRACTION = 1e-6

_NOISE = 1e-3  # of the energy of an interval, before its scatter is known
_MIN_JOULES = 1e-6  # keeps divisions finite
_PRIOR = 100.0  # times the mean power: next to nothing is expected of a kind before it is measured

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
    updates: Sequence[Knot],
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
    edges = _edges(likely_knots(updates))
    if len(edges) < 2:
        return {}
    at = np.array([edge.at for edge in edges])
    joules = np.diff([edge.energy_joules for edge in edges])
    names, seconds = _seconds_of_each(at, spans)
    if units:
        spread = np.sum([unit * _overlaps(at, [span]) for unit, span in zip(units, known, strict=True)], axis=0)
        seconds = np.column_stack([seconds, seconds[:, -1] * spread / np.diff(at)])
        names = [*names, WAITING_SLOPE]
    is_known = _overlaps(at, known) - _overlaps(at, held_up) > np.diff(at) * (1 - 1e-9)
    is_known &= joules >= 0  # a counter that was reset has gone back
    return _regress(names, seconds[is_known], joules[is_known])


def _edges(updates: Sequence[Knot]) -> list[Knot]:
    """Return the updates whose times are accurate enough."""
    edges: list[Knot] = []
    for update in updates:
        reach = update.at - edges[-1].at if edges else np.inf
        if update.half_width_seconds <= _MAX_UNCERTAINTY_FRACTION * reach:
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
    """Return the powers that the energies determine, by the regression that activities have (without a lag)."""
    is_seen = seconds.sum(axis=0) > _MIN_TIME_FRACTION * seconds.sum()
    seen = [name for name, is_one in zip(names, is_seen.tolist(), strict=True) if is_one]
    seconds = seconds[:, is_seen]
    if len(joules) <= len(seen) or np.linalg.matrix_rank(seconds) < len(seen):
        return {}
    lengths = seconds.sum(axis=1)
    mean_watts = float(joules.sum() / lengths.sum())
    variances = np.full(len(joules), max(_NOISE * mean_watts * float(lengths.mean()), _MIN_JOULES) ** 2)
    expected = np.full(len(seen), mean_watts)
    precision = np.eye(len(seen)) / (_PRIOR * max(mean_watts, _MIN_JOULES)) ** 2
    powers = PowerRegression.of(seconds[None], joules, variances, expected, precision)
    return {name: MeanPower(*powers.energy(unit)) for name, unit in zip(seen, np.eye(len(seen)), strict=True)}
