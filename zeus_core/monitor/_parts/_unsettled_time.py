"""The time since the latest settled knot, and that before the first one: told anew until it is settled. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from zeus_core.monitor._parts._amount import Amount, add_estimate, is_class, lose
from zeus_core.monitor._parts._class_energy import ClassEnergy
from zeus_core.monitor._parts._near_model import Stretch
from zeus_core.monitor._parts._part import Estimate, Part
from zeus_core.monitor._parts._power_samples import Sampled

__all__ = ["SILENT_SECONDS", "UnsettledTime"]

SILENT_SECONDS = 2.0
"""A source that has not answered by then is given up; before anything is settled."""


class UnsettledTime:
    """The time of one GPU whose energy is not settled.

    Args:
        classes: Tells what classes draw.
        peak_watts: The most the GPU can draw.
        before: The class of the time before the first moment that counts.

    Attributes:
        power_watts: The latest power that was read, for the time before the first update.
    """

    def __init__(self, classes: ClassEnergy, peak_watts: float, before: Hashable) -> None:
        self._classes = classes
        self._peak_watts = peak_watts
        self._before = before
        self._missed_gap = classes.near.begin_gap()
        self._missed: Stretch | None = None
        self.power_watts: float | None = None

    def miss(self, parts: Sequence[Part], sampled: Sequence[Sampled | None]) -> None:
        """Note that the first reads have failed.

        Args:
            parts: Those before the first knot.
            sampled: The energies that samples of the power tell of each.
        """
        self._missed_gap.sampled = sampled
        self._missed = Stretch(parts, gap=self._missed_gap)

    def add_to(
        self,
        amounts: dict[Hashable, Amount],
        intervals: Sequence[Stretch],
        tail: Sequence[Part],
        sampled: Sequence[Sampled | None],
        *,
        period_seconds: float,
        is_outage: bool,
        is_last: bool,
    ) -> float:
        """Add its energy. Return how far the sum of that can be off.

        Args:
            amounts: Those that are settled.
            intervals: Those between knots that are not settled.
            tail: The parts since the latest knot.
            sampled: The energies that samples of the power tell of each of these.
            period_seconds: The time between two updates.
            is_outage: Whether that is longer ago than a counter can stand still.
            is_last: Whether no more will be told.
        """
        stretches = list(intervals)
        if self._missed is not None:
            stretches.append(self._missed)
        if is_outage and not is_last:
            lose(amounts, tail)
        else:
            stretches.append(Stretch(tail, gap=self._classes.near.gap_now(sampled)))
        off_joules = 0.0
        for stretch, fit in zip(stretches, self._classes.fit(stretches), strict=True):
            parts, energy_joules, is_missed = stretch.parts, stretch.energy_joules, stretch is self._missed
            if energy_joules is None:
                is_short = sum(part.seconds for part in parts) <= SILENT_SECONDS if is_missed else not is_outage
                fit = self._with_unknown(fit, parts, is_short)
            elif not fit:
                fit = _by_time(energy_joules, parts)
            for key, estimate in fit.items():
                add_estimate(amounts, key, estimate, energy_joules is None and (is_outage or is_missed))
            modelled = [key for key in fit if is_class(key) and (energy_joules is None or key == self._before)]
            own_joules = sum(fit[key].uncertainty_joules for key in modelled)
            off_joules += max(own_joules, self._tail_joules(tail, period_seconds)) if parts is tail else own_joules
            lose(amounts, [part for part in parts if part.key not in fit])
        return off_joules

    def _tail_joules(self, tail: Sequence[Part], period_seconds: float) -> float:
        """Return how far the energy since the latest update can be off: what draws less, or more, is not seen yet."""
        seconds = min(sum(part.seconds for part in tail), period_seconds)
        watts = min(self._classes.mean_watts or 0.0, self._peak_watts)
        return max(watts, self._peak_watts - watts) * seconds

    def _with_unknown(
        self, fit: dict[Hashable, Estimate], parts: Sequence[Part], is_short: bool
    ) -> dict[Hashable, Estimate]:
        """Add classes that were never seen, for a time so short that the highest power bounds their energy."""
        watts = self._classes.mean_watts
        watts = self.power_watts if watts is None else watts
        if not is_short or watts is None:
            return fit
        unknown: dict[Hashable, float] = {}
        for part in parts:
            for key in part.keys:
                if key not in fit:
                    unknown[key] = unknown.get(key, 0.0) + part.seconds
        watts = min(watts, self._peak_watts)
        reach = max(watts, self._peak_watts - watts)
        return {**fit, **{key: Estimate(watts * seconds, reach * seconds) for key, seconds in unknown.items()}}


def _by_time(energy_joules: float, parts: Sequence[Part]) -> dict[Hashable, Estimate]:
    """Divide the energy of the first interval, of which no model tells anything."""
    seconds = sum(part.seconds for part in parts)
    times: dict[Hashable, float] = {}
    for part in parts:
        for key in part.keys:
            times[key] = times.get(key, 0.0) + part.seconds
    shares = {key: energy_joules * time / seconds for key, time in times.items()}
    return {key: Estimate(joules, min(joules, energy_joules - joules)) for key, joules in shares.items()}
