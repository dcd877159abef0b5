"""Time and power of training steps as functions of a power limit or a clock: curves, and what shapes them.

A `CurveShapes` holds many kinds of work on many kinds of GPUs, one a row. The clock is a fraction f of the highest one,
and powers are fractions of the power while computing at the full clock:

    y(f) = f * max(v, 1 - s (1 - f))^2                   dynamic power, as a fraction of that at the full clock
    P(f) = static + (1 - static) y(f)                    power while computing
    f    = the highest fraction with P(f) <= rho * limit / demand, at least fmin, at most the locked clock
    seconds = d (1 - k + k / f) + 1 - d                  d: share of time computing; k: share of it bound by the clock
    watts   = demand * (computing * P(f) + blocked * blocking) / seconds

`demand` is the power while computing at the full clock over the original power limit: above 1 the original limit binds.
This is the model of the simulated GPUs, for thousands of kinds at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

FIELDS = ("static", "blocking", "voltage", "slope", "lowest_clock", "regulated", "computing", "compute_bound")
"""The columns of `CurveShapes.parameters`: static, blocking, v, s, fmin, rho, d and k."""

_CLOCKS = 65  # points of f between which P(f) is interpolated: within 0.02 % of the exact solution


@dataclass(frozen=True)
class CurveShapes:
    """Kinds of work.

    Attributes:
        parameters: One row for each shape, with the columns of `FIELDS`.
        demands: One row for each shape; each of its columns makes another kind of work.
    """

    parameters: Array
    demands: Array

    def under_limits(self, fractions: Array) -> tuple[Array, Array]:
        """Return the logarithms of the duration and of the power over the original limit, under power limits.

        Args:
            fractions: The limits over the original one.

        Returns:
            Two arrays with one row for each kind (the demands of the first shape first), and one column for each limit.
        """
        return self._at(fractions, np.ones_like(fractions))

    def at_clocks(self, fractions: Array) -> tuple[Array, Array]:
        """Return the same for locked clocks, over the highest clock, under the original power limit."""
        return self._at(np.ones_like(fractions), fractions)

    def of_rows(self, rows: NDArray[np.int_]) -> CurveShapes:
        """Return some kinds only, each with a shape of its own."""
        return CurveShapes(self.parameters[rows // self.demands.shape[1]], self.demands.reshape(-1, 1)[rows])

    def _at(self, limits: Array, locked_clocks: Array) -> tuple[Array, Array]:
        columns = (column[:, None] for column in self.parameters.T)
        static, blocking, voltage, slope, lowest_clock, regulated, computing, compute_bound = columns
        clocks = lowest_clock + (1 - lowest_clock) * np.linspace(0, 1, _CLOCKS)
        powers = static + (1 - static) * clocks * np.maximum(voltage, 1 - slope * (1 - clocks)) ** 2
        demand = np.repeat(self.demands, len(limits), axis=1)  # one column for each demand and limit
        allowed = regulated * np.tile(limits, self.demands.shape[1]) / demand
        locked = np.maximum(np.tile(locked_clocks, self.demands.shape[1]), lowest_clock)
        reached, drawn = np.empty(allowed.shape), np.empty(allowed.shape)
        for row in range(len(reached)):
            reached[row] = np.minimum(np.interp(allowed[row], powers[row], clocks[row]), locked[row])
            drawn[row] = np.interp(reached[row], clocks[row], powers[row])
        busy = computing * (1 - compute_bound + compute_bound / reached)
        seconds = busy + 1 - computing
        watts = demand * (busy * drawn + (1 - computing) * blocking) / seconds
        return np.log(seconds).reshape(-1, len(limits)), np.log(watts).reshape(-1, len(limits))
