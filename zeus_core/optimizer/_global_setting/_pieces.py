"""The pieces of a block, and which of them are left out of it.

A block is cut into pieces of a number of steps, the same on all ranks. Pieces that are not training as it goes on are
left out of it: those with a step that took far too long (a compilation, a stall of the data), and those at its
beginning in which the GPU had not settled yet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from zeus_core.search._comparison import standard_deviation

__all__ = ["Piece", "left_out_pieces", "usual_seconds"]

# A step this many times as long as the median one, and this many robust standard deviations longer, is an outlier.
# Ragged batches differ by less than the first (20 % spread), and quiet loops scatter by less than the second.
_OUTLIER_FACTOR = 2.0
_OUTLIER_DEVIATIONS = 8.0
_DEVIATION_OF_MEDIAN = 1.4826  # standard deviations of a normal variable in its median absolute deviation
_MIN_STEPS_TO_COMPARE = 5
_MAX_LEFT_OUT = 0.5  # of the pieces; beyond, long steps are part of the work

# A piece has settled if its steps and its power are as those of the second half of the block, as far as these scatter.
_MIN_PIECES_TO_SETTLE = 4
_SETTLED_DEVIATIONS = 4.0
_SETTLED_FRACTION = 0.03  # smaller differences are the work's own: between pieces of 0.3 s the power differs by as much


@dataclass(frozen=True)
class Piece:
    """A piece of a block, on one rank.

    Attributes:
        steps: Its steps.
        seconds: Their time.
        joules: The energy of the GPUs; None if it was lost.
        joules_uncertainty: How far it can be off.
        outliers: How many of the steps took far too long.
        excess_seconds: How much longer than the median step.
    """

    steps: int
    seconds: float
    joules: float | None
    joules_uncertainty: float
    outliers: int
    excess_seconds: float


def left_out_pieces(ranks: Sequence[dict[int, Piece]], is_settling: bool) -> list[int]:
    """Return the numbers of the pieces that are left out of a block on all ranks. Pure.

    Args:
        ranks: The pieces of each rank.
        is_settling: Whether the setting was changed before the block.
    """
    numbers = sorted({number for pieces in ranks for number in pieces})
    with_outliers = [number for number in numbers if any(_piece(pieces, number).outliers for pieces in ranks)]
    if len(with_outliers) > _MAX_LEFT_OUT * len(numbers):
        with_outliers = []
    usual = [number for number in numbers if number not in with_outliers]
    if not is_settling or len(usual) < _MIN_PIECES_TO_SETTLE:
        return with_outliers
    pieces_of_ranks = [[_piece(pieces, number) for pieces in ranks] for number in usual]
    seconds = [(max(_quotient(piece.seconds, piece.steps) for piece in pieces), 0.0) for pieces in pieces_of_ranks]
    unsettled = max(_unsettled_count(seconds), _unsettled_count([_watts(pieces) for pieces in pieces_of_ranks]))
    return sorted({*with_outliers, *usual[:unsettled]})


def usual_seconds(step_seconds: Sequence[float]) -> tuple[float, float]:
    """Return how long the median step lasts, and how long one may last that is no outlier."""
    if len(step_seconds) < _MIN_STEPS_TO_COMPARE:
        return 0.0, math.inf
    middle = _median(step_seconds)
    deviation = _DEVIATION_OF_MEDIAN * _median([abs(seconds - middle) for seconds in step_seconds])
    return middle, max(_OUTLIER_FACTOR * middle, middle + _OUTLIER_DEVIATIONS * deviation)


def _unsettled_count(values: Sequence[tuple[float, float]]) -> int:
    """Return how many of the first values, each with its uncertainty, differ from those of the second half.

    None do if one of them is not known.
    """
    if not all(math.isfinite(value) for value, _ in values):
        return 0
    early, late = values[: len(values) // 2], [value for value, _ in values[len(values) // 2 :]]
    middle = _median(late)
    reach = max(_SETTLED_DEVIATIONS * standard_deviation(late), _SETTLED_FRACTION * middle)
    different = [abs(value - middle) > reach + uncertainty for value, uncertainty in early]
    return max((place + 1 for place, is_different in enumerate(different) if is_different), default=0)


def _watts(pieces: Sequence[Piece]) -> tuple[float, float]:
    """Return the power of all ranks together, and how far it can be off."""
    watts = math.fsum(_quotient(math.nan if piece.joules is None else piece.joules, piece.seconds) for piece in pieces)
    return watts, math.fsum(_quotient(piece.joules_uncertainty, piece.seconds) for piece in pieces)


def _median(values: Sequence[float]) -> float:
    """Return the middle one of some values; `statistics` takes 3 ms to import."""
    return sorted(values)[len(values) // 2]


def _quotient(dividend: float, divisor: float) -> float:
    return dividend / divisor if divisor > 0 else math.nan


def _piece(pieces: dict[int, Piece], number: int) -> Piece:
    return pieces.get(number, Piece(0, 0.0, None, 0.0, 0, 0.0))
