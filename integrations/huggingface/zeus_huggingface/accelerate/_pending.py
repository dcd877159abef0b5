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
        self._evaluation_joules = 0.0
        self.has_stepped = False
        """Whether an optimizer has stepped since the previous exchange."""
        self.has_evaluated = False
        """Whether this process has evaluated since the values were taken last."""

    def exchange(self) -> None:
        """Update the values: a collective call."""
        if self.has_stepped:
            self.has_stepped, interval = False, self._energy.log()
            self._interval = interval if self._interval is None else joined(self._interval, interval)
        self._evaluation_joules += self._energy.log_evaluation().get("eval_energy_j", 0.0)

    def take(self) -> dict[str, float]:
        """Return the values to log, once."""
        values, self._interval = self._interval or {}, None
        if self.has_evaluated and self._evaluation_joules > 0:
            values["eval_energy_j"], self._evaluation_joules, self.has_evaluated = self._evaluation_joules, 0.0, False
        return values

    def take_last(self, last_log: Mapping[str, float]) -> dict[str, float]:
        """Return all values that were not logged yet.

        Args:
            last_log: See `TrainingSummary.last_log`.
        """
        rest = {**last_log, "eval_energy_j": last_log.get("eval_energy_j", 0.0) + self._evaluation_joules}
        values, self._interval = self._interval or {}, None
        values |= {name: values.get(name, 0.0) + joules for name, joules in rest.items() if joules}
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
