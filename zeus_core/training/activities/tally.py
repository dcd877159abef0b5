"""The time and energy of some part of a training run."""

from __future__ import annotations

from dataclasses import dataclass

from zeus_core.errors import UsageError
from zeus_core.measurement import DeviceEnergy

_NOTHING = DeviceEnergy()


@dataclass(frozen=True)
class Tally:
    """Time and GPU energy, added up.

    A tally holds how much time it has no energy of, instead of being lost as a whole: so the difference of two tallies
    is known where nothing was lost in between.

    Attributes:
        seconds: Elapsed time.
        measured: The energy of all GPUs together, without that of `lost_seconds`.
        lost_seconds: Time in which the energy of some GPU was lost.

    Raises:
        UsageError: `measured` is lost, as in a file that others have changed: it would count as 0 J.
    """

    seconds: float = 0.0
    measured: DeviceEnergy = _NOTHING
    lost_seconds: float = 0.0

    def __post_init__(self) -> None:
        """Check that the energy is known."""
        if self.measured.energy_joules is None:
            raise UsageError("measured.energy_joules is None; time without a known energy belongs to lost_seconds")

    @property
    def measured_joules(self) -> float:
        """The energy as far as it was measured."""
        return self.measured.energy_joules or 0.0

    @property
    def energy_joules(self) -> float | None:
        """The energy; None if any of it was lost."""
        return self.measured_joules if self.lost_seconds == 0 else None

    @property
    def power_watts(self) -> float | None:
        """The mean power; None if any energy was lost or no time has passed."""
        return self.measured.average_power_watts(self.seconds) if self.lost_seconds == 0 else None

    def __add__(self, other: Tally) -> Tally:
        """Add what came before or after."""
        return Tally(
            self.seconds + other.seconds, self.measured + other.measured, self.lost_seconds + other.lost_seconds
        )

    def __sub__(self, earlier: Tally) -> Tally:
        """Subtract `earlier`, which is part of this tally: what came after it is left."""
        return Tally(
            self.seconds - earlier.seconds, self.measured - earlier.measured, self.lost_seconds - earlier.lost_seconds
        )
