"""The time since the latest settled knot, and that before the first one: told anew until it is settled. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from zeus_core.monitor._parts._amount import Amount, add_estimate, is_class, lose
from zeus_core.monitor._parts._class_energy import ClassEnergy
from zeus_core.monitor._parts._part import Estimate, Part, seconds_by_key
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
        self._missed: list[tuple[Sequence[Part], Sequence[Sampled | None]]] = []
        self.power_watts: float | None = None

    def miss(self, parts: Sequence[Part], sampled: Sequence[Sampled | None]) -> None:
        """Note a time of which nothing was counted, before anything is known.

        Args:
            parts: All of it.
            sampled: The energies that samples of the power tell of each.
        """
        self._missed.append((parts, sampled))

    def add_to(
        self,
        amounts: dict[Hashable, Amount],
        intervals: Sequence[tuple[Sequence[Part], float]],
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
            intervals: The parts and energy between knots that are not settled.
            tail: The parts since the latest knot.
            sampled: The energies that samples of the power tell of each of these; nothing if there are none.
            period_seconds: The time between two updates.
            is_outage: Whether that is longer ago than a counter can stand still.
            is_last: Whether no more will be told.
        """
        off_joules = 0.0
        for (parts, joules), fit in zip(intervals, self._classes.divide(intervals), strict=True):
            divided = fit or _by_time(joules, parts)
            for key, estimate in divided.items():
                add_estimate(amounts, key, estimate, is_estimated=False)
            if self._before in divided:
                off_joules += divided[self._before].uncertainty_joules
        for parts, powers in self._missed:
            is_short = sum(part.seconds for part in parts) <= SILENT_SECONDS
            fit = self._with_unknown(self._classes.tell(parts, powers, do_follow=False), parts, is_short)
            off_joules += self._add_told(amounts, parts, fit, is_estimated=True)
        if is_outage and not is_last:
            lose(amounts, tail)
            return off_joules
        fit = self._with_unknown(self._classes.tell(tail, sampled, do_follow=True), tail, not is_outage)
        own_joules = self._add_told(amounts, tail, fit, is_estimated=is_outage)
        return off_joules + max(own_joules, self._tail_joules(tail, period_seconds))

    def _add_told(
        self,
        amounts: dict[Hashable, Amount],
        parts: Sequence[Part],
        told: dict[Hashable, Estimate],
        *,
        is_estimated: bool,
    ) -> float:
        for key, estimate in told.items():
            add_estimate(amounts, key, estimate, is_estimated)
        lose(amounts, [part for part in parts if part.key not in told])
        return sum(estimate.uncertainty_joules for key, estimate in told.items() if is_class(key))

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
        unknown = {key: seconds for key, seconds in seconds_by_key(parts).items() if key not in fit}
        watts = min(watts, self._peak_watts)
        reach = max(watts, self._peak_watts - watts)
        return {**fit, **{key: Estimate(watts * seconds, reach * seconds) for key, seconds in unknown.items()}}


def _by_time(energy_joules: float, parts: Sequence[Part]) -> dict[Hashable, Estimate]:
    """Divide the energy of the first interval, of which no model tells anything."""
    seconds = sum(part.seconds for part in parts)
    shares = {key: energy_joules * time / seconds for key, time in seconds_by_key(parts).items()}
    return {key: Estimate(joules, min(joules, energy_joules - joules)) for key, joules in shares.items()}
