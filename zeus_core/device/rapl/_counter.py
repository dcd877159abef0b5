"""Counting on across the wrap-around of an energy counter: pure arithmetic on whole microjoules.

A zone counts from 0 to its `max_energy_range_uj` and then from 0 again, so it has `max_energy_range_uj` + 1 values.

Behind both files is a register of 32 bits that counts steps, which the kernel multiplies by the size of a step
(drivers/powercap/intel_rapl_common.c: `get_energy_counter` and `get_max_energy_counter`; the latter is the register at
0xffffffff). The range is therefore one step short of the true period, and a wrap-around is counted at most one step
too low: 61 microjoules in 262 kilojoules on most machines. It is never counted too high.
"""

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["WrappingCounter", "count_microjoules"]

_Microjoules = TypeVar("_Microjoules", int, "npt.NDArray[np.int64]")


def _increment_microjoules(
    before_microjoules: _Microjoules, after_microjoules: _Microjoules, max_energy_range_microjoules: int
) -> _Microjoules:
    """The energy between two readings less than a wrap-around apart. The rule, for single readings and for arrays."""
    return (after_microjoules - before_microjoules) % (max_energy_range_microjoules + 1)


def count_microjoules(
    readings_microjoules: "npt.NDArray[np.int64]", max_energy_range_microjoules: int
) -> "npt.NDArray[np.int64]":
    """The energy since the first of a sequence of readings, at each of the later ones.

    Args:
        readings_microjoules: Raw readings of shape (..., n), in the order in which they were taken along the last axis.
        max_energy_range_microjoules: The highest value of the counter.

    Returns:
        Totals in microjoules, of shape (..., n - 1).
    """
    before, after = readings_microjoules[..., :-1], readings_microjoules[..., 1:]
    return _increment_microjoules(before, after, max_energy_range_microjoules).cumsum(axis=-1)


class WrappingCounter:
    """The energy since a first reading of a counter that wraps around, exact to the microjoule.

    Not for several threads at once, but never half changed: whoever interrupts `advance` (a fork does) finds the
    counter as it was before or after it.

    Args:
        max_energy_range_microjoules: The highest value of the counter.
        first_microjoules: The raw reading from which on energy is counted.
    """

    def __init__(self, max_energy_range_microjoules: int, first_microjoules: int) -> None:
        self.max_energy_range_microjoules = max_energy_range_microjoules
        self._latest_and_total_microjoules = (first_microjoules, 0)

    def advance(self, raw_microjoules: int) -> int:
        """Count up to a new reading.

        Args:
            raw_microjoules: From 0 to the highest value, taken less than one wrap-around after the reading before it.

        Returns:
            The energy since the first reading, in microjoules. It never decreases.
        """
        latest, total = self._latest_and_total_microjoules
        total += _increment_microjoules(latest, raw_microjoules, self.max_energy_range_microjoules)
        self._latest_and_total_microjoules = (raw_microjoules, total)
        return total
