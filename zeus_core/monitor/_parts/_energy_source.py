"""Where the energy at some moments comes from: a counter, or samples of the power."""

from __future__ import annotations

from typing import Protocol

from zeus_core.monitor._parts._counter_phase import Knot

__all__ = ["EnergySource"]


class EnergySource(Protocol):
    """Knows the energy at some moments, from reads."""

    @property
    def is_of_power(self) -> bool:
        """Whether it is the power that is read, not a counter of energy."""
        ...

    @property
    def uncertainty_joules(self) -> float:
        """How far the energy from the first knot to the last can be off."""
        ...

    @property
    def period_seconds(self) -> float:
        """The usual time between two knots."""
        ...

    @property
    def is_known(self) -> bool:
        """Whether the moments of the knots are known well."""
        ...

    @property
    def half_width_seconds(self) -> float:
        """How far all knots can be off together."""
        ...

    def add(self, begin: float, end: float, value: float) -> None:
        """Take in a read that was made between two moments."""
        ...

    def knots_before(self, moment: float) -> list[Knot]:
        """Return the knots of the reads before a moment, each once."""
        ...

    def pending_knots(self) -> list[Knot]:
        """Return the knots that were not returned yet."""
        ...

    def is_read_due(self, now: float, changed_at: float) -> bool:
        """Tell whether to read now, given when the load changed last."""
        ...

    def stands_still(self, now: float, energy_joules: float) -> bool:
        """Tell whether it has shown the same for too long, given what it shows now."""
        ...

    def plan_read(self, now: float, calls: int) -> None:
        """Plan the next read after one that has ended now, and took so many calls of the driver."""
        ...

    def next_look_at(self, now: float) -> float:
        """Return when to ask again whether a read is due."""
        ...
