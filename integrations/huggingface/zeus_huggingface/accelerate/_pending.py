"""What has been measured since something was logged last."""

from __future__ import annotations

from collections.abc import Mapping

from zeus_core.training import TrainingEnergy

__all__ = ["PendingValues", "joined"]

_RATES = {"power_w", "energy_per_token_j", "energy_per_sample_j"}


class PendingValues:
    """What the next log is to get: learned where all processes are, taken by whichever of them logs.

    Args:
        energy: What is asked.
    """

    def __init__(self, energy: TrainingEnergy) -> None:
        self._energy = energy
        self._interval: dict[str, float] | None = None
        self._evaluation: dict[str, float] = {}
        self.has_stepped = False
        """Whether an optimizer has stepped since this process learned last."""
        self.has_evaluated = False
        """Whether this process has evaluated since it learned last."""

    def learn(self) -> None:
        """Learn what all processes have taken: a collective call."""
        interval = self._energy.log()
        if self.has_stepped:
            self.has_stepped = False
            self._interval = interval if self._interval is None else joined(self._interval, interval)
        self.learn_evaluation()

    def learn_evaluation(self) -> None:
        """Learn what all processes have taken to evaluate: a collective call."""
        evaluation = self._energy.evaluation()
        if self.has_evaluated:
            self.has_evaluated = False
            self._evaluation = evaluation

    def take(self) -> dict[str, float]:
        """What there is to log; from now on nothing, until something is learned."""
        values = {**(self._interval or {}), **self._evaluation}
        self._interval, self._evaluation = None, {}
        return values


def joined(earlier: Mapping[str, float], later: Mapping[str, float]) -> dict[str, float]:
    """Two successive answers of `TrainingEnergy.log` as one. What is missing in one of them is missing."""
    both = {name for name in later if later[name] and earlier.get(name)}
    if "energy_j" not in both:
        return {name: later[name] for name in both - _RATES}
    joules = earlier["energy_j"] + later["energy_j"]
    rates = {  # the seconds, tokens or samples that the energy was divided by add up as well
        rate: joules / (earlier["energy_j"] / earlier[rate] + later["energy_j"] / later[rate]) for rate in both & _RATES
    }
    return {**{name: later[name] for name in both}, "energy_j": joules, **rates}
