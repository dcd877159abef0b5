"""The energy of a time that was not counted, or in one sum only, by what its classes draw near it. Pure.

The same part, or else the same class, tells what was drawn, with the error that this had elsewhere, or samples of the
power do, where they are surer. Where the sum of all classes is known, that corrects them: the class whose power is
known least gets most of what is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from zeus_core.monitor._parts._model_error import ModelError, UnlikeParts
from zeus_core.monitor._parts._near_power import NOISY_SECONDS, NOTHING, Gap, Near, NearPower, Seen
from zeus_core.monitor._parts._part import Estimate, Part, seconds_by_key
from zeus_core.monitor._parts._power_columns import Array, padded, sum_of_rows
from zeus_core.monitor._parts._power_model import PowerModel
from zeus_core.monitor._parts._power_samples import Sampled

__all__ = ["NearModel", "Stretch"]

_QUANTILE = 2.7  # standard errors
_PART_NOISE = 0.15  # how far a part may be off the power of its class, as a fraction of it, until that is seen
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

    def sampled(self, number: int) -> Sampled | None:
        """Return what samples of the power tell of a part; None if nothing."""
        return self.gap.sampled[number] if self.gap is not None and self.gap.sampled else None


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
        rows_of_parts: Mapping[int, Mapping[Hashable, Array]],
        is_known: Callable[[Hashable], bool],
    ) -> dict[Hashable, Estimate]:
        """Return the energy of a time by what its classes draw, and by how far they drew more or less near it.

        Args:
            stretch: The time.
            rows_of_parts: The seconds of each class and span in each column, for the parts whose power is known at all.
            is_known: Whether a class was seen apart from others.
        """
        gap = stretch.gap or self.near.gap_now()
        parts = {number: stretch.parts[number] for number in rows_of_parts}
        rows, times = sum_of_rows(rows_of_parts.values()), seconds_by_key(parts.values())
        nears = {
            number: gap.near(part.key, part is stretch.parts[0], part is stretch.parts[-1])
            for number, part in parts.items()
        }
        sampled = {
            number: self._better_sampled(stretch.sampled(number), parts[number], nears[number]) for number in parts
        }
        others = {number: part for number, part in parts.items() if sampled[number] is None}
        told, off = self._told_by_near(others, nears, sum(part.seconds for part in parts.values()))
        if stretch.energy_joules is not None:
            other_times = seconds_by_key(others.values())
            for key, row in sum_of_rows(rows_of_parts[number] for number in others).items():
                if not is_known(key):
                    off[key] = max(off[key], (_PART_NOISE * self._model.fitted_joules(row, other_times[key])) ** 2)
        for number, power in sampled.items():
            if power is None:
                continue
            for key, row in rows_of_parts[number].items():
                # The samples are of the power once it has followed the load: by the lag, the model tells the rest.
                followed = Seen(parts[number].seconds, power.energy_joules, np.broadcast_to(row[0], row.shape))
                told[key] = told.get(key, NOTHING).and_more(followed)
                off[key] = off.get(key, 0.0) + power.stderr_joules**2
        estimates = {key: self._told(row, times[key], told[key], off[key]) for key, row in rows.items()}
        if stretch.energy_joules is None:
            return estimates
        return self._with_sum(estimates, stretch.energy_joules, times, {part.key for part in parts.values()})

    def _told_by_near(
        self, parts: Mapping[int, Part], nears: Mapping[int, Near], all_seconds: float
    ) -> tuple[dict[Hashable, Seen], dict[Hashable, float]]:
        """Return what is told of each class and span by what was seen near its parts, and the variance of that.

        Args:
            parts: Those that are told by it, by their numbers.
            nears: The energy seen near each part.
            all_seconds: The length of the whole time.
        """
        told: dict[Hashable, Seen] = {}
        off: dict[Hashable, float] = {}
        unlike: dict[tuple[Hashable, Hashable, bool], list[float]] = {}  # seconds of parts that only others tell
        for number, part in parts.items():
            near = nears[number]
            stderr = self._stderr_within_part(part, near)
            for key in part.keys:
                seen = near.seen.times(part.seconds / (near.seen.seconds + NOISY_SECONDS))
                told[key] = told.get(key, NOTHING).and_more(seen)
                off[key] = off.get(key, 0.0) + (0.0 if stderr is None else stderr**2)
                if stderr is None:
                    unlike.setdefault((key, part.key, near.has_both_sides), []).append(part.seconds)
        for (key, class_key, has_both_sides), lengths in unlike.items():
            off[key] += self._unlike_joules(class_key, lengths, all_seconds, has_both_sides) ** 2
        return told, off

    def _better_sampled(self, sampled: Sampled | None, part: Part, near: Near) -> Sampled | None:
        """Return what samples of the power tell of a part, if that is surer than what was seen near it."""
        if sampled is None or near.seen.seconds == 0:
            return sampled
        stderr = self._stderr_within_part(part, near)
        if stderr is None:
            stderr = self._unlike_joules(part.key, [part.seconds], part.seconds, near.has_both_sides)
        return sampled if sampled.stderr_joules < stderr else None

    def _stderr_within_part(self, part: Part, near: Near) -> float | None:
        """Return how far a part can be off what was seen of it; None if nothing was, or that is not known."""
        errors = self._errors_within_parts.get(part.key) if near.is_of_part else None
        stderr = None if errors is None else errors.stderr_joules(part.seconds, near.has_both_sides)
        if errors is None or stderr is None or near.seen.seconds <= part.seconds:
            return stderr
        # What was seen reaches farther than the part is long: a power that rises or falls is off by more.
        farther = errors.stderr_joules(near.seen.seconds, near.has_both_sides)
        return stderr if farther is None else max(stderr, farther * part.seconds / near.seen.seconds)

    def _unlike_joules(
        self, key: Hashable, lengths: Sequence[float], all_seconds: float, has_both_sides: bool
    ) -> float:
        """Return how far parts of a class can be off that are told by others of it, within all the time to tell."""
        error = _UNLIKE * self._error_joules(key, sum(lengths), all_seconds, has_both_sides)
        return max(error, self._unlike_watts(key) * math.hypot(*lengths))

    def _unlike_watts(self, key: Hashable) -> float:
        """Return how far a part that was not seen can be off others of its class: at first as those of all classes."""
        squares = sum(unlike.squares for unlike in self._unlike_parts.values())
        compared = sum(unlike.compared for unlike in self._unlike_parts.values())
        expected = max(_PART_NOISE * (self._model.mean_watts or 0.0), math.sqrt(squares / max(compared, 1)))
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
