"""Where trials of batch sizes and power limits lie among the global batches, and the limits that a rank tries."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from zeus_core.device import Gpu
from zeus_core.errors import DeviceError
from zeus_core.process.deadline import CALL_SECONDS
from zeus_core.process.parallel import ParallelCalls
from zeus_core.settings.limit_knob import PowerLimitKnob

SETTLING_STEPS = 1  # after a change of the split: the ranks have not yet waited for each other as they will


class LimitTrial(NamedTuple):
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


def trials_of(settings: Sequence[int], splits: Sequence[tuple[int, ...]]) -> list[LimitTrial]:
    """Return all trials: each split at the first setting, all but the equal one at others, and two with late ranks."""
    pairs = [(setting, split) for number, setting in enumerate(settings) for split in splits[number > 0 :]]
    trials = [LimitTrial(number, *pair) for number, pair in enumerate(pairs)]
    return trials + [LimitTrial(len(trials) + late, settings[0], splits[0], late) for late in (0, 1)]


class TrialSchedule:
    """Trials one behind the other, each for equally many global batches, of which the first is not measured.

    Args:
        trials: The trials.
        length: The global batches of each.
    """

    def __init__(self, trials: Sequence[LimitTrial], length: int) -> None:
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

    def begins(self, number: int) -> LimitTrial | None:
        """Return the trial that a global batch is the first of; None if of none."""
        return self._trials[0] if self._trials and number == self._origin else None

    def measures(self, number: int) -> LimitTrial | None:
        """Return the trial that is measured from a global batch on; None if none begins to be."""
        return self.begins(number - SETTLING_STEPS)

    def passes(self, number: int) -> bool:
        """Note that a global batch begins; return whether that ends a trial."""
        if not self._trials or number != self._origin + self.length:
            return False
        self._origin = number
        del self._trials[0]
        return True


_STEP_WATTS = 5  # of the knob: limits are rounded to it, which moves no optimum that anybody could measure

_logger = logging.getLogger(__name__)


class TriedLimits:
    """The limits of one GPU; without the right to set any, the one in force under each of them.

    Args:
        gpu: The GPU of this rank.
        fractions: The limits, as fractions of the original one.
    """

    def __init__(self, gpu: Gpu, fractions: Sequence[float]) -> None:
        self._knob: PowerLimitKnob | None = None
        self.settings: list[int] = [_limit_in_force(gpu)] * len(fractions)
        """Watts, in the order of the fractions."""
        try:
            original = _limit_watts(gpu)
            self._knob = PowerLimitKnob([gpu], _STEP_WATTS)
            self._knob.apply(self._knob.settings[0])
        except DeviceError as error:
            self.restore()
            self._knob = None
            if len(fractions) > 1:
                _logger.warning("this rank cannot set power limits, and gets a batch alone: %s", error)
        else:
            self.settings = [max(self._knob.settings[-1], round(original * fraction)) for fraction in fractions]

    def apply(self, setting: int) -> None:
        """Set a limit, if this rank may.

        Raises:
            DeviceError: The driver refuses.
        """
        if self._knob is not None:
            self._knob.apply(min(setting, self._knob.settings[0]))

    def restore(self) -> None:
        """Restore the original limit."""
        if self._knob is not None:
            self._knob.restore()


def _limit_watts(gpu: Gpu) -> float:
    return ParallelCalls().call_one_within(CALL_SECONDS, 0, gpu.read_power_limit_watts)


def _limit_in_force(gpu: Gpu) -> int:
    try:
        return max(1, round(_limit_watts(gpu)))
    except DeviceError:
        return 1  # one setting; its name does not matter
