"""The gain of following a signal: a training beside the same at full power, and at settings that do not follow it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zeus_core.carbon._signal_replay import Mixture, Replayed, best_mixture, replay
from zeus_core.carbon.operating_points import TrainingPoint
from zeus_core.electricity import Signal
from zeus_core.search.comparison import percentage
from zeus_core.units import amount_text, energy_text


@dataclass(frozen=True)
class RunSpent:
    """Energy of a training so far, over all its processes, and its emissions or cost.

    Attributes:
        begun_seconds: Its begin, in seconds since 1970; None before that.
        energy_joules: The energy of its steps and pauses.
        amount: Its emissions (g) or cost.
        uncertainty: How far the amount can be off.
    """

    begun_seconds: float | None = None
    energy_joules: float = 0.0
    amount: float = 0.0
    uncertainty: float = 0.0


@dataclass(frozen=True)
class Credit:
    """A training beside what it would have been.

    Attributes:
        spent: Its energy, and its emissions or cost.
        unit: The unit of the amounts: "g", or a currency.
        full: The same steps at the original setting, without pauses.
        static: The same steps at the one setting, or two in turn, that emit or cost least and end no later, by
            any signal. Two in turn are finer than the settings of a search: without them, going from one to the other
            would count as a gain of following the signal, also of one that never changes.
        full_error: How far the energy of a step at the original setting can be off, as a fraction.
        static_error: The same of `static`.
        setting_unit: The unit of the settings.
    """

    spent: RunSpent
    unit: str
    full: Replayed
    static: Mixture
    full_error: float
    static_error: float
    setting_unit: str

    @property
    def saving_fraction(self) -> float:
        """The saving, as a fraction of the emissions or cost at full power."""
        return 1 - self.spent.amount / self.full.amount

    @property
    def gain_fraction(self) -> float:
        """The same of those of `static`: the gain of following the signal."""
        return 1 - self.spent.amount / self.static.replayed.amount

    def rows(self) -> dict[str, str]:
        """Return it as labelled lines."""
        spent = self.spent
        label = "emissions" if self.unit == "g" else "cost"
        own = amount_text(spent.amount, spent.uncertainty, self.unit)
        if min(self.full.amount, self.static.replayed.amount) <= 0:
            return {label: own}
        saved = percentage(self.saving_fraction, self._error(self.saving_fraction, self.full_error))
        gained = percentage(self.gain_fraction, self._error(self.gain_fraction, self.static_error))
        full, static = (amount_text(way.amount, 0.0, self.unit) for way in (self.full, self.static.replayed))
        settings = " and ".join(f"{point.setting}" for point in reversed(self.static.points))
        turns = " in turn" if len(self.static.points) > 1 else ""
        return {
            label: f"{own} for {energy_text(spent.energy_joules, 0.0)} in steps and pauses",
            "at full power": f"{full}; saved {saved}",
            f"at {settings} {self.setting_unit}{turns} all the time": f"{static}; gained beyond it {gained}",
        }

    def _error(self, fraction: float, other_error: float) -> float:
        own_error = self.spent.uncertainty / self.spent.amount if self.spent.amount > 0 else 0.0
        return (1 - fraction) * math.hypot(own_error, other_error)


def credit_of(
    spent: RunSpent,
    original: TrainingPoint,
    others: Sequence[TrainingPoint],
    errors: Mapping[int, float],
    signal: Signal,
    steps: int,
    now_seconds: float,
    setting_unit: str,
) -> Credit:
    """Compare a training with what it would have been, by the steps that it has measured and the signal as it was.

    Args:
        spent: Its energy, its emissions or cost, and its begin.
        original: The point measured at the original setting.
        others: The points measured, or predicted, at others.
        errors: How far the energy of a step can be off, as a fraction, by setting.
        signal: The signal.
        steps: The steps so far.
        now_seconds: When they were done, in seconds since 1970.
        setting_unit: The unit of the settings.
    """
    begin = now_seconds if spent.begun_seconds is None else spent.begun_seconds
    static = best_mixture([original, *others], signal, begin, steps, now_seconds)
    return Credit(
        spent,
        signal.facts.amount_unit,
        replay(lambda now, left: original, signal, begin, steps),
        static,
        errors.get(original.setting or 0, 0.0),
        static.error_fraction(errors),
        setting_unit,
    )
