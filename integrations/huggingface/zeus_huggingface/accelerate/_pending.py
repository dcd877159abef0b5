"""Values measured since the previous log."""

from __future__ import annotations

from collections.abc import Mapping

from zeus_core.training import TrainingEnergy

_RATES = {"power_w", "energy_per_token_j", "energy_per_sample_j"}


class PendingValues:
    """Values for the next log: exchanged where all processes are, taken by the process that logs.

    Args:
        energy: Source of the values.
    """

    def __init__(self, energy: TrainingEnergy) -> None:
        self._energy = energy
        self._interval: dict[str, float] | None = None
        self._evaluation: dict[str, float] = {}
        self.has_stepped = False
        """Whether an optimizer has stepped since the previous exchange."""
        self.has_evaluated = False
        """Whether this process has evaluated since the previous exchange."""

    def exchange(self) -> None:
        """Update the values: a collective call."""
        interval = self._energy.log()
        if self.has_stepped:
            self.has_stepped = False
            self._interval = interval if self._interval is None else joined(self._interval, interval)
        self.exchange_evaluation()

    def exchange_evaluation(self) -> None:
        """Update the values of the evaluation: a collective call."""
        evaluation = self._energy.evaluation()
        if self.has_evaluated:
            self.has_evaluated = False
            self._evaluation = evaluation

    def take(self) -> dict[str, float]:
        """Return the values to log, once."""
        values = {**(self._interval or {}), **self._evaluation}
        self._interval, self._evaluation = None, {}
        return values


def joined(earlier: Mapping[str, float], later: Mapping[str, float]) -> dict[str, float]:
    """Join two successive results of `TrainingEnergy.log`. A value that one of them lacks is left out."""
    both = {name for name in later if later[name] and earlier.get(name)}
    if "energy_j" not in both:
        return {name: later[name] for name in both - _RATES}
    joules = earlier["energy_j"] + later["energy_j"]
    rates = {  # the divisors (seconds, tokens, samples) add up too
        rate: joules / (earlier["energy_j"] / earlier[rate] + later["energy_j"] / later[rate]) for rate in both & _RATES
    }
    return {**{name: later[name] for name in both}, "energy_j": joules, **rates}
