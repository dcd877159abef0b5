"""The measurement of one block of steps, in as many windows as pauses of training make of it, on each of the ranks.

A block is cut into pieces of a number of steps, the same on all ranks. Pieces that are not training as it goes on are
left out of it: those with a step that took far too long (a compilation, a stall of the data), and those at its
beginning in which the GPU had not settled yet.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from zeus_core.monitor import Measurement, ZeusMonitor
from zeus_core.monitor._reading import Reading
from zeus_core.optimizer._global_setting._clock_sampler import ClockSampler
from zeus_core.ports._time_source import clock_seconds
from zeus_core.search import Trial
from zeus_core.search._comparison import standard_deviation

__all__ = ["Piece", "TrialPart", "TrialRecorder", "left_out_pieces", "pooled_trial", "trial_from_parts"]

_numbers = itertools.count(1)

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


@dataclass
class _Span:
    """An unbroken part of a piece."""

    piece: int
    step_seconds: list[float]
    begin: Reading
    end: Reading


class TrialRecorder:
    """Collects the segments of one block after another, and times all steps of a run.

    A segment is an unbroken run of training steps. A window of the monitor, which other windows may overlap, is open as
    long as the segment is.

    Args:
        monitor: Measures the GPUs.
        samples_clocks: Whether the SM clocks are sampled too.
    """

    def __init__(self, monitor: ZeusMonitor, samples_clocks: bool = False) -> None:
        self._monitor = monitor
        gpus = list(monitor.gpus.values()) if samples_clocks else []
        self._clocks = ClockSampler(gpus, monitor.time_source) if gpus else None
        self._window = f"__zeus_core_power_limit_trial_{next(_numbers)}"
        self._now = monitor.time_source.now
        self._piece_steps = 1
        self._steps = 0  # of the block
        self._spans: list[_Span] = []
        self._segment: list[_Span] = []
        self._begin: Reading | None = None  # of the span under way
        self._step_ends: list[float] = []  # of the span under way, with its beginning
        self._is_catching_up = False
        self._is_spoiled = False
        self.skips_next_step = False
        """Whether a segment that is opened now leaves out its first step: other ranks may be behind, and delay it."""
        self.run_seconds: float = 0.0
        """The time of all steps of the run, without pauses of training."""
        self._step_began: float | None = None

    def clock_seconds(self) -> float:
        """Return the date and time, in seconds since 1970 (Unix time)."""
        return clock_seconds(self._monitor.time_source)

    def begin_run(self, seconds: float) -> None:
        """Time the steps of another run, which has lasted so long before."""
        self.run_seconds, self._step_began = seconds, None

    def begin_step(self) -> None:
        """Note that a step begins. After a step without a pause it began at the end of that one."""
        if self._step_began is None:
            self._step_began = self._now()

    def end_step(self) -> None:
        """Note that the step has ended."""
        now = self._now()
        if self._step_began is not None:
            self.run_seconds += now - self._step_began
        self._step_began = now

    def pause(self) -> None:
        """Note that no step is under way."""
        self._step_began = None

    def begin_trial(self, piece_steps: int) -> None:
        """Begin another block, in pieces of so many steps."""
        self.drop_trial()
        self._piece_steps = piece_steps

    @property
    def block_seconds(self) -> float:
        """The time measured so far."""
        spans = [seconds for span in (*self._spans, *self._segment) for seconds in span.step_seconds]
        return math.fsum(spans) + (self._step_ends[-1] - self._step_ends[0] if self._step_ends else 0.0)

    def open_segment(self) -> None:
        """Open the window of a segment."""
        self._is_catching_up = self.skips_next_step
        if not self._is_catching_up:
            self._begin_window()

    def mark_step(self) -> None:
        """Note the end of a step of the open segment."""
        self._steps += 1
        if self._is_catching_up:
            self._is_catching_up = False
            self._begin_window()
            return
        self._step_ends.append(self._now())
        if self._steps % self._piece_steps == 0:
            self._cut()

    def close_segment(self) -> None:
        """Close the window, and keep what it holds."""
        if len(self._step_ends) > 1:
            self._cut()
        self._spans += self._segment
        self._forget_segment()

    def drop_segment(self) -> None:
        """Close the window, if it is open, and forget what it holds."""
        self._steps -= sum(len(span.step_seconds) for span in self._segment) + max(len(self._step_ends) - 1, 0)
        self._forget_segment()

    def spoil_trial(self) -> None:
        """Note that the block holds work that is not training."""
        self._is_spoiled = True

    def drop_trial(self) -> None:
        """Forget the block so far."""
        self._forget_segment()
        self._spans, self._steps, self._is_spoiled = [], 0, False
        if self._clocks is not None:
            self._clocks.take_means_mhz()

    def pieces(self) -> dict[int, Piece]:
        """Close the window, and return this rank's pieces of the block, by number."""
        self.close_segment()
        usual, longest = _usual_seconds([seconds for span in self._spans for seconds in span.step_seconds])
        pieces = {}
        for number, spans in itertools.groupby(self._spans, key=lambda span: span.piece):
            measurement = self._measured(parts := list(spans))
            step_seconds = [seconds for span in parts for seconds in span.step_seconds]
            excesses = [seconds - usual for seconds in step_seconds if seconds > longest]
            joules = None if measurement is None else _finite(measurement.total_energy)
            uncertainty = 0.0 if measurement is None else measurement.total_uncertainty_joules or 0.0
            steps, seconds = len(step_seconds), math.fsum(step_seconds)
            pieces[number] = Piece(steps, seconds, joules, uncertainty, len(excesses), math.fsum(excesses))
        return pieces

    def finish_trial(self, left_out: Sequence[int] = ()) -> TrialPart:
        """Return this rank's part in the block since the last one, without some pieces."""
        self.close_segment()
        spans = [span for span in self._spans if span.piece not in left_out]
        step_seconds = [seconds for span in spans for seconds in span.step_seconds]
        part = TrialPart(
            len(step_seconds),
            self._measured(spans),
            standard_deviation(step_seconds) if len(step_seconds) > 1 else 0.0,
            self._is_spoiled,
            self.run_seconds,
            () if self._clocks is None else self._clocks.take_means_mhz(),
        )
        self.drop_trial()
        return part

    def _measured(self, spans: Sequence[_Span]) -> Measurement | None:
        """Return the measurement of some spans. Those that follow each other without a gap are measured as one."""
        runs: list[list[Reading]] = []
        for span in spans:
            if runs and runs[-1][1] is span.begin:
                runs[-1][1] = span.end
            else:
                runs.append([span.begin, span.end])
        measurements = [self._monitor.between(begin, end) for begin, end in runs]
        return sum(measurements[1:], start=measurements[0]) if measurements else None

    def _begin_window(self) -> None:
        self._monitor.begin_window(self._window, restart=True)  # GPUs without a counter are sampled while it is open
        if self._clocks is not None:
            self._clocks.start()
        self._begin = self._monitor.read(sync_execution=False)
        self._step_ends = [self._begin.at]

    def _cut(self) -> None:
        """End a span, and begin the next one."""
        assert self._begin is not None, "a window was opened before"
        end = self._monitor.read()
        step_seconds = [after - before for before, after in itertools.pairwise(self._step_ends)]
        piece = (self._steps - 1) // self._piece_steps
        self._segment.append(_Span(piece, step_seconds, self._begin, end))
        self._begin, self._step_ends = end, self._step_ends[-1:]

    def _forget_segment(self) -> None:
        if self._clocks is not None:
            self._clocks.stop()
        self._monitor.cancel(self._window)
        self._segment, self._begin, self._step_ends = [], None, []


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


def trial_from_parts(setting: int, parts: Sequence[TrialPart]) -> Trial | None:
    """Return the trial that all ranks had a part in; None if energy was lost, or ranks measured different steps.

    It lasted as long as on the slowest rank. Its energy is that of all GPUs, each counted once.
    """
    steps = parts[0].steps
    measurements = [part.measurement for part in parts if part.measurement is not None]
    if not measurements or any(part.steps != steps or part.is_spoiled for part in parts):
        return None
    measurement = Measurement.from_ranks(measurements)
    if _finite(measurement.total_energy) is None or not 0 < measurement.time < math.inf:
        return None
    deviation = max(part.step_seconds_deviation for part in parts)
    clocks_mhz = [clock_mhz for part in parts for clock_mhz in part.clocks_mhz]
    return Trial(setting, steps, measurement, deviation, min(clocks_mhz, default=None), max(clocks_mhz, default=None))


def pooled_trial(trials: Sequence[Trial | None]) -> Trial:
    """Return some trials as one, at the setting of the last; only the last, if they measured different devices.

    The uncertainties of the energies add in squares: they are those of the edges of windows, which are independent, or
    cancel where one window begins at the end of another.

    Args:
        trials: The trials. Those that are None are left out; the last one is not.
    """
    *others, last = [trial for trial in trials if trial is not None]
    devices = last.measurement.devices.keys()
    if not others or any(trial.measurement.devices.keys() != devices for trial in others):
        return last
    pooled = [*others, last]
    freedom = sum(trial.steps - 1 for trial in pooled)
    squares = math.fsum((trial.steps - 1) * trial.step_seconds_deviation**2 for trial in pooled)
    return Trial(
        last.setting,
        sum(trial.steps for trial in pooled),
        _pooled_measurement([trial.measurement for trial in pooled]),
        math.sqrt(squares / freedom) if freedom else 0.0,
        last.lowest_clock_mhz,
        last.highest_clock_mhz,
    )


def _pooled_measurement(measurements: Sequence[Measurement]) -> Measurement:
    total = sum(measurements[1:], start=measurements[0])
    devices = {
        device: replace(
            energy,
            uncertainty_joules=math.hypot(*(one.devices[device].uncertainty_joules or 0.0 for one in measurements)),
        )
        for device, energy in total.devices.items()
    }
    return Measurement(total.time, devices)


def _usual_seconds(step_seconds: Sequence[float]) -> tuple[float, float]:
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


def _finite(joules: float | None) -> float | None:
    return joules if joules is not None and math.isfinite(joules) else None
