"""Where trials of batch sizes and power limits lie among the global batches of a training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

SETTLING_STEPS = 1  # after a change of the split: the ranks have not yet waited for each other as they will


class Trial(NamedTuple):
    """The setting of this rank and the split that some global batches are measured with.

    Attributes:
        number: Its place among all trials.
        setting: Watts of this rank's power limit.
        split: Samples of each rank.
        late: If 0 or 1, ranks with this remainder by 2 keep the others waiting.
    """

    number: int
    setting: int
    split: tuple[int, ...]
    late: int | None = None


def trials_of(settings: Sequence[int], splits: Sequence[tuple[int, ...]]) -> list[Trial]:
    """Return all trials: each split at the first setting, all but the equal one at others, and two with late ranks."""
    pairs = [(setting, split) for number, setting in enumerate(settings) for split in splits[number > 0 :]]
    trials = [Trial(number, *pair) for number, pair in enumerate(pairs)]
    return trials + [Trial(len(trials) + late, settings[0], splits[0], late) for late in (0, 1)]


class TrialSchedule:
    """Trials one behind the other, each for equally many global batches, of which the first is not measured.

    Args:
        trials: The trials.
        length: The global batches of each.
    """

    def __init__(self, trials: Sequence[Trial], length: int) -> None:
        self._trials = list(trials)
        self.length: int = length
        self._origin = 0  # the first global batch of the trials that are left

    def lay_out(self, first: int) -> list[tuple[int, tuple[int, ...]]]:
        """Put the trials that are left behind a global batch; return their splits, each with its first global batch."""
        self._origin = first
        return [(first + place * self.length, trial.split) for place, trial in enumerate(self._trials)]

    @property
    def end(self) -> int:
        """The global batch that follows the last trial."""
        return self._origin + len(self._trials) * self.length

    @property
    def is_over(self) -> bool:
        """Whether no trial is left."""
        return not self._trials

    def begins(self, number: int) -> Trial | None:
        """Return the trial that a global batch is the first of; None if of none."""
        return self._trials[0] if self._trials and number == self._origin else None

    def measures(self, number: int) -> Trial | None:
        """Return the trial that is measured from a global batch on; None if none begins to be."""
        return self.begins(number - SETTLING_STEPS)

    def passes(self, number: int) -> bool:
        """Note that a global batch begins; return whether that ends a trial."""
        if not self._trials or number != self._origin + self.length:
            return False
        self._origin = number
        del self._trials[0]
        return True
