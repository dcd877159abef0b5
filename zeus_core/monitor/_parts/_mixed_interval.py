"""An interval between two updates that holds several parts, and how far each of them may be off. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from zeus_core.monitor._parts._part import Part
from zeus_core.monitor._parts._power_columns import Array
from zeus_core.monitor._parts._power_regression import Group

__all__ = ["PART_NOISE", "MixedInterval"]

PART_NOISE = 0.15
"""How far a part may be off the power of its class, as a fraction of it, to begin with; then as it is seen."""

_TOLD_REACH = 0.4  # times how far a part may be off, where an interval inside it tells what it draws


class MixedInterval:
    """An interval of several parts, whose first one has begun before it, and whose last one goes on behind it.

    Attributes:
        joules: Its energy, less what is told of its ends.
        rows: The seconds of each class and span in each column, with each lag, less the same.
        told: For each part, whether an interval inside it has told what it draws.
    """

    def __init__(
        self, joules: float, rows: dict[Hashable, Array], parts: Sequence[Part], fitted: Sequence[float], timing: float
    ) -> None:
        self.joules, self.rows, self.parts = joules, rows, parts
        self.told = [False] * len(parts)
        self._fitted, self._timing = fitted, timing

    @property
    def group(self) -> Group:
        """The group of intervals whose noise it has."""
        return Group.TOLD if all(self.told) else Group.MIXED

    def variances(self) -> dict[Hashable, float]:
        """Return how far each class and span may be off what is expected of it, in units of the noise.

        Parts of one class are off in the same direction, those of different classes are not.
        """
        reaches: dict[Hashable, float] = {}
        for part, joules, is_told in zip(self.parts, self._fitted, self.told, strict=True):
            for key in part.keys:
                of_part = (_TOLD_REACH if is_told else 1.0) * PART_NOISE * joules
                reaches[key] = reaches.get(key, 0.0) + of_part
        class_of = {key: part.key for part in self.parts for key in part.keys}
        return {key: reach * reaches[class_of[key]] for key, reach in reaches.items()}

    def variance(self, of_parts: float) -> float:
        """Return how far its energy may be off what is expected of it, in units of the noise."""
        return of_parts + self._timing
