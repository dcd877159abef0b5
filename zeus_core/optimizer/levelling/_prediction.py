"""The saving of levelling on a rank where nothing is set, predicted from the knowledge of GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from zeus_core.measurement import Measurement
from zeus_core.search._objectives import Energy
from zeus_core.search._trial import Trial

__all__ = ["PredictedSaving", "predicted_saving"]

# The power while waiting in a collective, over that of work: 40 to 60 % on measured GPUs, and NCCL spins. The lowest
# and the highest are those of an idle GPU, and of one that takes as much as at work.
_BLOCKING_FRACTION = 0.5
_MIN_BLOCKING_FRACTION = 0.2
_MAX_BLOCKING_FRACTION = 1.0
_STEPS, _STEP_CV = 16, 0.01  # of the steps that were observed, about: the prior counts for more than their scatter


class PredictedSaving(NamedTuple):
    """Energy of a step in joules: what it takes now, and what levelling would save, with the ends of an interval."""

    joules: float
    saved_joules: float
    lowest_joules: float
    highest_joules: float


def predicted_saving(
    own_seconds: float, slowest_seconds: float, step_seconds: float, joules: float, clocks_mhz: Sequence[int]
) -> PredictedSaving:
    """Predict the saving on one rank at the clock that makes it as slow as the slowest one.

    Work takes less energy at a lower clock, by what is known of other GPUs; and it takes the place of waiting, whose
    power is known least. The interval holds both.

    Args:
        own_seconds: The time of its own work in a step.
        slowest_seconds: That of the slowest rank.
        step_seconds: The time of a step, with the exchange of gradients.
        joules: The energy of a step.
        clocks_mhz: The clock that it runs at, and then the lower ones.
    """
    from zeus_core.search._adaptive_search import AdaptiveSearch  # needs numpy

    waiting = max(step_seconds - own_seconds, 0.0) / own_seconds
    place = _lowest(clocks_mhz, clocks_mhz[0] * own_seconds / slowest_seconds)
    if place == 0:
        return PredictedSaving(joules, 0.0, 0.0, 0.0)
    work_joules = joules / (1 + _BLOCKING_FRACTION * waiting)
    search = AdaptiveSearch(clocks_mhz, Energy(), knob="clock")
    measurement = Measurement.from_energies(own_seconds * _STEPS, {0: work_joules * _STEPS})
    search.tell(Trial(clocks_mhz[0], _STEPS, measurement, _STEP_CV * own_seconds))
    prediction = search.prediction(clocks_mhz[place])
    assert prediction is not None, "the first clock was told"
    stretch = min(prediction.slowdown_factor, slowest_seconds / own_seconds) - 1

    def saved(blocking_fraction: float, saving_fraction: float) -> float:
        own_joules = joules / (1 + blocking_fraction * waiting)
        return own_joules * (saving_fraction + blocking_fraction * stretch)

    lowest, highest = prediction.saving_interval
    return PredictedSaving(
        joules,
        saved(_BLOCKING_FRACTION, prediction.saving_fraction),
        saved(_MIN_BLOCKING_FRACTION, lowest),
        saved(_MAX_BLOCKING_FRACTION, highest),
    )


def _lowest(clocks_mhz: Sequence[int], enough_mhz: float) -> int:
    return max(place for place, clock_mhz in enumerate(clocks_mhz) if place == 0 or clock_mhz >= enough_mhz)
