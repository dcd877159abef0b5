"""Measurements: the pieces of a block, the parts of the ranks in it, and the trials that all blocks make. Pure.

A block is cut into pieces of a number of steps, the same on all ranks. Pieces that are not training as it goes on are
left out of it: those with a step that took far too long (a compilation, a stall of the data), and those at its
beginning in which the GPU had not settled yet.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from zeus_core.kinds import Kind
from zeus_core.measurement import Measurement
from zeus_core.optimizer.search_state import MeasuredBlock
from zeus_core.search import Trial
from zeus_core.search.comparison import Comparison, standard_deviation
from zeus_core.search.objectives import PowerLimitMeasurement
from zeus_core.search.run.visits import Visits
from zeus_core.search.trial import pooled_by_setting, pooled_trial

# A step this many times as long as the median one, and this many robust standard deviations longer, is an outlier.
# Ragged batches differ by less than the first (20 % spread), and quiet loops scatter by less than the second.
_OUTLIER_FACTOR = 2.0
_OUTLIER_DEVIATIONS = 8.0
_DEVIATION_OF_MEDIAN = 1.4826  # standard deviations of a normal variable in its median absolute deviation
_MIN_STEPS_TO_COMPARE = 5
_MAX_LEFT_OUT = 0.5  # of the pieces; beyond, long steps are part of the work

# A piece has settled if its steps and its power are as those of the second half of the block, as far as these scatter.
_MIN_PIECES_TO_SETTLE = 4
_SETTLED_DEVIATIONS = 4.0
_SETTLED_FRACTION = 0.03  # smaller differences are the work's own: between pieces of 0.3 s the power differs by as much


@dataclass(frozen=True)
class Piece:
    """A piece of a block, on one rank.

    Attributes:
        steps: Its steps.
        seconds: Their time.
        joules: The energy of the GPUs; None if it was lost.
        joules_uncertainty: How far it can be off.
        outliers: How many of the steps took far too long.
        excess_seconds: How much longer than the median step.
    """

    steps: int
    seconds: float
    joules: float | None
    joules_uncertainty: float
    outliers: int
    excess_seconds: float


def left_out_pieces(ranks: Sequence[dict[int, Piece]], is_settling: bool) -> list[int]:
    """Return the numbers of the pieces that are left out of a block on all ranks. Pure.

    Args:
        ranks: The pieces of each rank.
        is_settling: Whether the setting was changed before the block.
    """
    numbers = sorted({number for pieces in ranks for number in pieces})
    with_outliers = [number for number in numbers if any(_piece(pieces, number).outliers for pieces in ranks)]
    if len(with_outliers) > _MAX_LEFT_OUT * len(numbers):
        with_outliers = []
    usual = [number for number in numbers if number not in with_outliers]
    if not is_settling or len(usual) < _MIN_PIECES_TO_SETTLE:
        return with_outliers
    pieces_of_ranks = [[_piece(pieces, number) for pieces in ranks] for number in usual]
    seconds = [(max(_quotient(piece.seconds, piece.steps) for piece in pieces), 0.0) for pieces in pieces_of_ranks]
    unsettled = max(_unsettled_count(seconds), _unsettled_count([_watts(pieces) for pieces in pieces_of_ranks]))
    return sorted({*with_outliers, *usual[:unsettled]})


def usual_seconds(step_seconds: Sequence[float]) -> tuple[float, float]:
    """Return how long the median step lasts, and how long one may last that is no outlier."""
    if len(step_seconds) < _MIN_STEPS_TO_COMPARE:
        return 0.0, math.inf
    middle = _median(step_seconds)
    deviation = _DEVIATION_OF_MEDIAN * _median([abs(seconds - middle) for seconds in step_seconds])
    return middle, max(_OUTLIER_FACTOR * middle, middle + _OUTLIER_DEVIATIONS * deviation)


def _unsettled_count(values: Sequence[tuple[float, float]]) -> int:
    """Return how many of the first values, each with its uncertainty, differ from those of the second half.

    None do if one of them is not known.
    """
    if not all(math.isfinite(value) for value, _ in values):
        return 0
    early, late = values[: len(values) // 2], [value for value, _ in values[len(values) // 2 :]]
    middle = _median(late)
    reach = max(_SETTLED_DEVIATIONS * standard_deviation(late), _SETTLED_FRACTION * middle)
    different = [abs(value - middle) > reach + uncertainty for value, uncertainty in early]
    return max((place + 1 for place, is_different in enumerate(different) if is_different), default=0)


def _watts(pieces: Sequence[Piece]) -> tuple[float, float]:
    """Return the power of all ranks together, and how far it can be off."""
    watts = math.fsum(_quotient(math.nan if piece.joules is None else piece.joules, piece.seconds) for piece in pieces)
    return watts, math.fsum(_quotient(piece.joules_uncertainty, piece.seconds) for piece in pieces)


def _median(values: Sequence[float]) -> float:
    """Return the middle one of some values; `statistics` takes 3 ms to import."""
    return sorted(values)[len(values) // 2]


def _quotient(dividend: float, divisor: float) -> float:
    return dividend / divisor if divisor > 0 else math.nan


def _piece(pieces: dict[int, Piece], number: int) -> Piece:
    return pieces.get(number, Piece(0, 0.0, None, 0.0, 0, 0.0))


@dataclass(frozen=True)
class TrialPart:
    """The part of one rank in a block.

    Attributes:
        steps: The steps it measured.
        measurement: Their time, and the energy of its GPUs; None without steps.
        step_seconds_deviation: Standard deviation of the duration of one step, in seconds.
        is_spoiled: Whether the part holds work that is not training.
        run_seconds: The time of all steps since training began, without pauses.
        clocks_mhz: Mean SM clocks under load, of its GPUs where they are known.
    """

    steps: int
    measurement: Measurement | None
    step_seconds_deviation: float
    is_spoiled: bool
    run_seconds: float
    clocks_mhz: tuple[float, ...] = ()


def trial_from_parts(setting: int, parts: Sequence[TrialPart]) -> Trial | None:
    """Return the trial that all ranks had a part in; None if energy was lost, or ranks measured different steps.

    It lasted as long as on the slowest rank. Its energy is that of all GPUs, each counted once.
    """
    steps = parts[0].steps
    measurements = [part.measurement for part in parts if part.measurement is not None]
    if not measurements or any(part.steps != steps or part.is_spoiled for part in parts):
        return None
    measurement = Measurement.from_ranks(measurements)
    if finite(measurement.total_energy) is None or not 0 < measurement.time < math.inf:
        return None
    deviation = max(part.step_seconds_deviation for part in parts)
    clocks_mhz = [clock_mhz for part in parts for clock_mhz in part.clocks_mhz]
    return Trial(setting, steps, measurement, deviation, min(clocks_mhz, default=None), max(clocks_mhz, default=None))


def finite(joules: float | None) -> float | None:
    """Return an energy; None if it is not finite."""
    return joules if joules is not None and math.isfinite(joules) else None


class SearchBlocks:
    """All blocks of a search. Those at one setting make one trial, and so do all those at its choices.

    Args:
        known: Blocks that were measured before.
        original: The original setting.
        kind: The kind of setting.
    """

    def __init__(self, known: Sequence[MeasuredBlock], original: int, kind: Kind) -> None:
        self.blocks: list[MeasuredBlock] = list(known)
        """All that was reported to the search, in this order."""
        self.trials: dict[int, Trial] = pooled_by_setting(block.trial for block in self.blocks)
        """All that was measured during the search, by setting."""
        self.confirmation: Trial | None = None
        """The steps measured at the latest choice that was measured; None until then, and if their energy was lost."""
        self._original, self._kind = original, kind
        earlier = [(block.trial, block.run_steps) for block in known if block.run_steps]
        self.lacks_original: bool = any(trial.setting == original for trial, _ in earlier)
        """Whether the original setting is measured anew before others: in another process, or for work nobody named."""
        self._visits = Visits(original, kind, earlier)
        self._confirmed: dict[int, Trial] = {}  # measured at each choice
        self._after: Trial | None = None  # the steps at the choices that are compared
        self._compared: Counter[int] = Counter()  # how many of them are at each

    def comparison(self, chosen: int | None) -> Comparison | None:
        """Compare steps at the original setting and at the choices; None if they are one, or one was not measured."""
        if chosen == self._original or self._after is None:
            return None
        return self._visits.comparison(self._after, self._compared, self.trials.get(self._original))

    @property
    def at_choices(self) -> Mapping[int, Trial]:
        """All that was measured since a setting was chosen, by setting."""
        return dict(self._confirmed)

    def run_slowdown(self, run_steps: int, setting: int) -> tuple[float, float] | None:
        """Return the slowdown of the whole run; see `Visits.run_slowdown`."""
        return self._visits.run_slowdown(run_steps, setting)

    def continue_after(self, other: SearchBlocks, steps: int) -> None:
        """Compare with the blocks of an earlier training of this process, which had so many steps of the same work."""
        if not self.lacks_original:
            self._visits.continue_after(other._visits, steps)

    def take_over(self, other: SearchBlocks) -> None:
        """Add the blocks of another search at its original setting, if there are none here."""
        if self._original not in self.trials:
            self.blocks += [
                replace(block, trial=replace(block.trial, setting=self._original))
                for block in other.blocks
                if block.trial.setting == other._original
            ]
            self._visits.take_over(other._visits)
            self.trials = pooled_by_setting(block.trial for block in self.blocks)

    def add_trial(self, block: MeasuredBlock) -> None:
        """Add a block of the search."""
        trial = block.trial
        self.trials[trial.setting] = pooled_trial([self.trials.get(trial.setting), trial])
        self.blocks.append(block)
        self._visits.add(trial, block.run_steps)

    def add_reference(self, block: MeasuredBlock) -> None:
        """Add a block at the original setting that the search did not ask for."""
        self._visits.add(block.trial, block.run_steps)

    def add_confirmation(self, block: MeasuredBlock, is_fixed: bool) -> None:
        """Add a block at the choice. A search of fixed trials (`is_fixed`) asks for it again when it is resumed."""
        trial = block.trial
        self.confirmation = self._confirmed[trial.setting] = pooled_trial([self._confirmed.get(trial.setting), trial])
        self._visits.add(trial, block.run_steps)
        if trial.setting != self._original:
            others = [] if is_fixed else [self._after]  # those before it are over in a search of fixed trials
            self._after = pooled_trial([*others, self.confirmation if is_fixed else trial])
            self._compared = Counter() if is_fixed else self._compared
            self._compared[trial.setting] += trial.steps
        if not is_fixed:
            self.blocks.append(block)

    def forget(self) -> None:
        """Forget all blocks."""
        self.blocks, self.trials, self._visits = [], {}, Visits(self._original, self._kind)

    def measurements(self, settings: Sequence[int], chosen: int | None, steps: int) -> list[PowerLimitMeasurement]:
        """Return the trials within the settings, and the choice, for this number of steps, as selectors see them."""
        choice = {setting: trial for setting, trial in self._confirmed.items() if setting == chosen}
        trials = sorted({**choice, **self.trials}.values(), key=lambda trial: -trial.setting)
        return [
            PowerLimitMeasurement.from_trial(trial, steps)
            for trial in trials
            if settings[-1] <= trial.setting <= settings[0]
        ]

    def sorted_trials(self) -> list[Trial]:
        """Return the trials so far, the highest setting first."""
        return sorted(self.trials.values(), key=lambda trial: -trial.setting)
