"""What has been measured since something was logged last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
        self._intervals: list[dict[str, float]] = []
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
            self._intervals.append(interval)
        self.learn_evaluation()

    def learn_evaluation(self) -> None:
        """Learn what all processes have taken to evaluate: a collective call."""
        evaluation = self._energy.evaluation()
        if self.has_evaluated:
            self.has_evaluated = False
            self._evaluation = evaluation

    def take(self) -> dict[str, float]:
        """What there is to log; from now on nothing, until something is learned."""
        values = {**joined(self._intervals), **self._evaluation}
        self._intervals, self._evaluation = [], {}
        return values


def joined(intervals: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Successive answers of `TrainingEnergy.log` as one. What is missing in one of them is missing in all."""
    if len(intervals) < 2:
        return dict(intervals[0]) if intervals else {}
    values = {name: value for name, value in intervals[-1].items() if all(it.get(name) for it in intervals)}
    if "energy_j" in values:
        values["energy_j"] = sum(it["energy_j"] for it in intervals)
        for rate in values.keys() & _RATES:  # the seconds, tokens or samples it was divided by add up too
            values[rate] = values["energy_j"] / sum(it["energy_j"] / it[rate] for it in intervals)
    return values
