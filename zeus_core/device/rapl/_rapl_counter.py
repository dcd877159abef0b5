"""Counting on across the wrap-around of an energy counter: pure arithmetic on whole microjoules.

A zone counts from 0 to its `max_energy_range_uj` and then from 0 again, so it has `max_energy_range_uj` + 1 values.

Behind both files is a register of 32 bits that counts in units of energy, and the kernel multiplies it by that unit
(drivers/powercap/intel_rapl_common.c: `get_energy_counter` and `get_max_energy_counter`; the latter is the register at
0xffffffff). The range is therefore one unit short of the true period, and a wrap-around is counted at most one unit
too low: 61 microjoules in 262 kilojoules on most machines. It is never counted too high.
"""


class WrappingCounter:
    """The energy since a first reading of a counter that wraps around, exact to the microjoule.

    Not for several threads at once, but never half changed: a fork that interrupts `advance` finds the counter as it
    was before or after it.

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
        total += (raw_microjoules - latest) % (self.max_energy_range_microjoules + 1)
        self._latest_and_total_microjoules = (raw_microjoules, total)
        return total
