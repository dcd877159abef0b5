"""What some part of a training run has taken."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from zeus_core.errors import UsageError
from zeus_core.measurement import Measurement, finite_number

__all__ = ["Tally", "tally_of"]


@dataclass(frozen=True)
class Tally:
    """Time and GPU energy, added up.

    Attributes:
        seconds: Elapsed time.
        measured_joules: Energy, as far as it was measured.
        uncertainty_joules: How far `measured_joules` can be off.
        lost_seconds: Time of which the energy of some GPU was lost.
    """

    seconds: float = 0.0
    measured_joules: float = 0.0
    uncertainty_joules: float = 0.0
    lost_seconds: float = 0.0

    @property
    def energy_joules(self) -> float | None:
        """Energy; None if any of it was lost."""
        return self.measured_joules if self.lost_seconds == 0 else None

    @property
    def power_watts(self) -> float | None:
        """Mean power; None if any energy was lost or no time has passed."""
        return self.energy_joules / self.seconds if self.energy_joules is not None and self.seconds > 0 else None

    def __add__(self, other: Tally) -> Tally:
        """Both, one after the other."""
        return self._combined(other, 1.0)

    def __sub__(self, earlier: Tally) -> Tally:
        """What came after `earlier`, which this one holds too; uncertainties still add."""
        return self._combined(earlier, -1.0)

    def _combined(self, other: Tally, sign: float) -> Tally:
        return Tally(
            self.seconds + sign * other.seconds,
            self.measured_joules + sign * other.measured_joules,
            self.uncertainty_joules + other.uncertainty_joules,
            self.lost_seconds + sign * other.lost_seconds,
        )

    @staticmethod
    def of_ranks(tallies: Iterable[Tally]) -> Tally:
        """The same part of the run on all ranks, each of which tallied devices of its own."""
        together = list(tallies)
        return Tally(
            max(it.seconds for it in together),
            math.fsum(it.measured_joules for it in together),
            math.fsum(it.uncertainty_joules for it in together),
            math.fsum(it.lost_seconds for it in together),  # whatever any of them lost is lost to all
        )

    def to_json(self) -> dict[str, float]:
        """A JSON object that `from_json` reads back."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Tally:
        """Read what `to_json` wrote.

        Raises:
            UsageError: A field is missing, or holds what no tally holds.
        """
        try:
            return cls(**{name: finite_number(fields[name]) for name in cls.__dataclass_fields__})
        except (KeyError, TypeError) as error:
            raise UsageError(f"this is not a tally of time and energy: {error!r}") from error


def tally_of(measurement: Measurement, gpu_indices: Collection[int]) -> Tally:
    """A measurement as a tally of some of its GPUs: those that no other rank counts."""
    energies = [measurement.gpu_energy[index] for index in gpu_indices]
    if None in energies:
        return Tally(measurement.time, lost_seconds=measurement.time)
    return Tally(
        measurement.time,
        math.fsum(energy or 0.0 for energy in energies),
        math.fsum(measurement.gpu_uncertainty_joules.get(index) or 0.0 for index in gpu_indices),
    )
