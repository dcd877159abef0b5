"""Levelling where nothing is set: who waits is measured, and what it would save predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from zeus_core.measurement import Measurement
from zeus_core.monitor import ZeusMonitor
from zeus_core.ports.exchange import Exchange
from zeus_core.search.objectives import Energy
from zeus_core.search.trial import Trial

# The power while waiting in a collective, over that of work: 40 to 60 % on measured GPUs, and NCCL spins. The lowest
# and the highest are those of an idle GPU, and of one that takes as much as at work.
_BLOCKING_FRACTION = 0.5
_MIN_BLOCKING_FRACTION = 0.2
_MAX_BLOCKING_FRACTION = 1.0
_STEPS, _STEP_CV = 16, 0.01  # of the steps that were observed, about: the prior counts for more than their scatter
_FIRST_STEPS = 16  # to the first prediction; each further one takes twice as many
_MAX_STEP_FRACTION = 2.0  # of the slowest work: in a longer step something other than training took place
_WINDOW = "zeus-core levelling"


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
    from zeus_core.search.adaptive_search import AdaptiveSearch  # needs numpy

    waiting = max(step_seconds - own_seconds, 0.0) / own_seconds
    place = _lowest(clocks_mhz, clocks_mhz[0] * own_seconds / slowest_seconds)
    if place == 0:
        return PredictedSaving(joules, 0.0, 0.0, 0.0)
    work_joules = joules / (1 + _BLOCKING_FRACTION * waiting)
    search = AdaptiveSearch(clocks_mhz, Energy(), knob="clock")
    measurement = Measurement.from_energies(own_seconds * _STEPS, {0: work_joules * _STEPS})
    search.tell(Trial(clocks_mhz[0], _STEPS, measurement, _STEP_CV * own_seconds))
    prediction = search.prediction(clocks_mhz[place])
    assert prediction is not None, "the search has a trial at the first clock"
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


class WaitObserver:
    """Observes the steps of a rank, and predicts with the others what levelling would save. Sets nothing.

    Args:
        monitor: The monitor of the one GPU of this rank.
        clocks_mhz: The clocks that the GPU could be locked at, highest first; empty if clocks are not what would be
            set.
        because: The reason that nothing is set.
    """

    def __init__(self, monitor: ZeusMonitor, clocks_mhz: Sequence[int], because: str) -> None:
        self._monitor = monitor
        self._clocks_mhz = clocks_mhz
        self._because = because
        self._due_steps = _FIRST_STEPS
        self._predicted: PredictedSaving | None = None
        self._is_open = False
        self._begin()

    def add_step(self, own_seconds: float, slowest_seconds: float) -> None:
        """Add the time of the own work of this rank in a step, and of the slowest one."""
        self._counted += 1
        self._own_seconds += own_seconds
        self._slowest_seconds += slowest_seconds

    def predict(self, exchange: Exchange, steps: int, clock_mhz: float | None) -> None:
        """Predict, if it is time to. Every rank must call this after the same steps, with the steps since before.

        Args:
            exchange: The exchanges with the other ranks.
            steps: The steps since the call before.
            clock_mhz: The clock that the GPU of this rank runs at.
        """
        self._steps += steps
        if self._steps < self._due_steps:
            return
        self._due_steps *= 2
        savings = exchange.gather(lambda: self._own(clock_mhz))
        if None not in savings:
            self._predicted = PredictedSaving(*map(sum, zip(*savings, strict=True)))
        self._begin()

    def rows(self) -> dict[str, str]:
        """Return the result as labelled lines."""
        predicted = self._predicted
        if predicted is None or predicted.joules <= 0:
            return {"levelling": f"nothing is set, as {self._because}"}
        saved, lowest, highest = (joules / predicted.joules for joules in predicted[1:])
        return {
            "levelling": f"nothing is set, as {self._because}; predicted to save {saved:.1%} of the energy, "
            f"{lowest:.1%} to {highest:.1%} in 9 of 10 cases, at the same time"
        }

    def close(self) -> None:
        """End to measure."""
        if self._is_open:
            self._is_open = False
            self._monitor.end_window(_WINDOW, sync_execution=False, cancel=True)

    def _begin(self) -> None:
        self._steps = self._counted = 0
        self._own_seconds = self._slowest_seconds = 0.0
        self._monitor.begin_window(_WINDOW, sync_execution=False, restart=True)
        self._is_open = True

    def _own(self, clock_mhz: float | None) -> PredictedSaving | None:
        """Predict for this rank; None if that is not possible."""
        self._is_open = False
        measurement = self._monitor.end_window(_WINDOW, sync_execution=False)
        (joules,) = measurement.gpu_energy.values()
        step_seconds = measurement.time / self._steps
        if joules is None or clock_mhz is None or not self._counted or not self._clocks_mhz or self._own_seconds <= 0:
            return None
        own_seconds, slowest_seconds = self._own_seconds / self._counted, self._slowest_seconds / self._counted
        if step_seconds > _MAX_STEP_FRACTION * slowest_seconds:
            return None
        clocks_mhz = [round(clock_mhz), *(clock for clock in self._clocks_mhz if clock < round(clock_mhz))]
        return predicted_saving(own_seconds, slowest_seconds, step_seconds, joules / self._steps, clocks_mhz)
