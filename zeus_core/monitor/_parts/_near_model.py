"""The energy of a time that was not counted, or in one sum only, by what its classes draw near it. Pure.

The same part, or else the same class, tells what was drawn, with the error that this had elsewhere. Where the sum of
all classes is known, that corrects them: the class whose power is known least gets most of what is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from zeus_core.monitor._parts._mixed_interval import PART_NOISE
from zeus_core.monitor._parts._model_error import ModelError, UnlikeParts
from zeus_core.monitor._parts._near_power import NOISY_SECONDS, Gap, Near, NearPower, Seen
from zeus_core.monitor._parts._part import Estimate, Part, seconds_by_key
from zeus_core.monitor._parts._power_columns import Array, padded
from zeus_core.monitor._parts._power_model import PowerModel

__all__ = ["NearModel", "Stretch"]

_QUANTILE = 2.1  # standard errors
# Times the error of some time of a class between others: most of that was seen within parts, not from one to the next.
_UNLIKE = 1.5
_MODEL_FRACTION = 0.01  # of an energy that only the model tells: how far it can be off, on top


class Stretch(NamedTuple):
    """A time whose energy is to be divided, or told.

    Attributes:
        parts: All of it.
        energy_joules: Its energy; None if that is not known.
        gap: The power known around it, if that tells more than its energy.
    """

    parts: Sequence[Part]
    energy_joules: float | None = None
    gap: Gap | None = None


class NearModel:
    """Tells what classes drew by what they drew shortly before and after.

    Args:
        peak_watts: The most that can be drawn.
        model: Tells what each class draws in all.

    Attributes:
        near: The recent power of the classes.
    """

    def __init__(self, peak_watts: float, model: PowerModel) -> None:
        self._peak_watts = peak_watts
        self._model = model
        self._errors = ModelError()
        self._errors_of_class: dict[Hashable, ModelError] = {}  # in intervals of one class
        self._errors_within_parts: dict[Hashable, ModelError] = {}  # in those, compared within each part
        self._unlike_parts: dict[Hashable, UnlikeParts] = {}
        self.near = NearPower()

    def compare(self, energy_joules: float, parts: Sequence[Part], row: Array, is_known: bool) -> None:
        """Note how far the model is off in an interval that it has not seen.

        Args:
            energy_joules: Its energy.
            parts: All of its time.
            row: Its seconds in each column.
            is_known: Whether the class is known well of which its only part is.
        """
        if self._model.seconds == 0:
            return
        seconds = sum(part.seconds for part in parts)
        error_joules = energy_joules - self._model.fitted_joules(row, seconds)
        self._errors.add(error_joules, seconds)
        if len(parts) == 1 and is_known:
            for errors in (self._errors_of_class, self._errors_within_parts):
                errors.setdefault(parts[0].key, ModelError()).add(error_joules, seconds)
            self._unlike_parts.setdefault(parts[0].key, UnlikeParts()).add(error_joules, seconds)

    def see_edge(self) -> None:
        """Note that a part has ended."""
        self.near.see_edge()
        for errors in self._errors_within_parts.values():
            errors.restart()
        for unlike in self._unlike_parts.values():
            unlike.see_edge()

    def tell(
        self,
        stretch: Stretch,
        parts: Sequence[Part],
        rows: Mapping[Hashable, Array],
        is_known: Callable[[Hashable], bool],
    ) -> dict[Hashable, Estimate]:
        """Return the energy of a time by what its classes draw, and by how far they drew more or less near it.

        Args:
            stretch: The time.
            parts: Those whose power is known at all.
            rows: The seconds of each class and span in each column.
            is_known: Whether a class was seen apart from others.
        """
        gap = stretch.gap or self.near.gap_now()
        times, all_seconds = seconds_by_key(parts), sum(part.seconds for part in parts)
        told = dict.fromkeys(rows, Seen(0.0, 0.0, np.zeros_like(next(iter(rows.values()), np.zeros(0)))))
        off = dict.fromkeys(rows, 0.0)
        unlike: dict[tuple[Hashable, Hashable, bool], list[float]] = {}  # seconds of parts that only others tell
        for part in parts:
            near = gap.near(part.key, part is stretch.parts[0], part is stretch.parts[-1])
            weight = part.seconds / (near.seen.seconds + NOISY_SECONDS)
            stderr = self._stderr_within_part(part, near) if near.is_of_part else None
            for key in part.keys:
                told[key] = told[key].and_more(near.seen.times(weight))
                if stderr is None:
                    name = key, part.key, near.has_both_sides
                    unlike.setdefault(name, []).append(part.seconds)
                else:
                    off[key] += stderr**2
        for (key, class_key, has_both_sides), lengths in unlike.items():
            error = _UNLIKE * self._error_joules(class_key, sum(lengths), all_seconds, has_both_sides)
            off[key] += max(error, self._unlike_watts(class_key) * math.hypot(*lengths)) ** 2
        if stretch.energy_joules is None:
            return {key: self._told(row, times[key], told[key], off[key]) for key, row in rows.items()}
        for key, row in rows.items():
            if not is_known(key):
                off[key] = max(off[key], (PART_NOISE * self._model.fitted_joules(row, times[key])) ** 2)
        estimates = {key: self._told(row, times[key], told[key], off[key]) for key, row in rows.items()}
        return self._with_sum(estimates, stretch.energy_joules, times, {part.key for part in parts})

    def _stderr_within_part(self, part: Part, near: Near) -> float | None:
        """Return how far a part can be off what was seen of it; None if that is not known."""
        errors = self._errors_within_parts.get(part.key)
        stderr = None if errors is None else errors.stderr_joules(part.seconds, near.has_both_sides)
        if errors is None or stderr is None or near.seen.seconds <= part.seconds:
            return stderr
        # What was seen reaches farther than the part is long: a power that rises or falls is off by more.
        farther = errors.stderr_joules(near.seen.seconds, near.has_both_sides)
        return stderr if farther is None else max(stderr, farther * part.seconds / near.seen.seconds)

    def _unlike_watts(self, key: Hashable) -> float:
        """Return how far a part that was not seen can be off others of its class: at first as those of all classes."""
        squares = sum(unlike.squares for unlike in self._unlike_parts.values())
        compared = sum(unlike.compared for unlike in self._unlike_parts.values())
        expected = max(PART_NOISE * (self._model.mean_watts or 0.0), math.sqrt(squares / max(compared, 1)))
        return self._unlike_parts.get(key, UnlikeParts()).stderr_watts(expected)

    def _told(self, row: Array, seconds: float, told: Seen, variance: float) -> Estimate:
        """Return the energy of a time of which something is told; the rest is modelled."""
        most_joules = self._peak_watts * seconds
        row = row - padded(told.row, row.shape[-1])
        rest_joules = self._model.fitted_joules(row, seconds - told.seconds)
        fitted = min(max(told.joules + rest_joules, 0.0), most_joules)
        off = _QUANTILE * (math.sqrt(variance) + self._model.regression.stderr_joules(row)) + _MODEL_FRACTION * fitted
        return Estimate(fitted, min(off, max(fitted, most_joules - fitted)))

    def _with_sum(
        self,
        estimates: Mapping[Hashable, Estimate],
        energy_joules: float,
        times: Mapping[Hashable, float],
        classes: Collection[Hashable],
    ) -> dict[Hashable, Estimate]:
        """Correct estimates by what all classes together drew, which is known."""
        missing_joules = energy_joules - sum(estimates[key].energy_joules for key in classes)
        variance = sum(estimates[key].uncertainty_joules ** 2 for key in classes)
        excess = max(missing_joules**2 / variance, 1.0)  # they are off by more than was thought
        all_seconds = sum(times[key] for key in classes)
        corrected = {}
        for key, (joules, off_joules) in estimates.items():
            share = off_joules**2 / variance
            lowest = max(0.0, energy_joules - self._peak_watts * (all_seconds - times[key]))
            highest = min(energy_joules, self._peak_watts * times[key])
            joules = min(max(joules + share * missing_joules, lowest), highest)
            off_joules *= math.sqrt(excess * max(1 - share, 0.0))
            corrected[key] = Estimate(joules, min(off_joules, max(highest - joules, joules - lowest)))
        return corrected

    def _error_joules(self, key: Hashable, seconds: float, all_seconds: float, has_both_sides: bool) -> float:
        """Return how far the model can be off for some time of a class, within all the time that it tells."""
        of_class = self._errors_of_class.get(key)
        stderr = None if of_class is None else of_class.stderr_joules(seconds, has_both_sides)
        if stderr is None:
            stderr = self._errors.stderr_joules(all_seconds, has_both_sides)
            stderr = None if stderr is None else stderr * seconds / all_seconds
        return self._peak_watts * seconds if stderr is None else stderr
