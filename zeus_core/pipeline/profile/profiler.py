"""Time and energy of one rank's instructions at several clocks, measured during training."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from statistics import median, quantiles, stdev
from typing import NamedTuple, cast

from zeus_core.attribution.updates import Knot
from zeus_core.device import Gpu
from zeus_core.errors import DeviceError
from zeus_core.pipeline.planner.pipeline_schedule import COMPUTE_KINDS, Instruction
from zeus_core.pipeline.profile._attribution import WAITING, WAITING_SLOPE, MeanPower, mean_powers
from zeus_core.pipeline.profile._counter_updates import POLL_SECONDS, CounterWatch
from zeus_core.pipeline.profile.rank_profile import InstructionRow, RankProfile
from zeus_core.pipeline.profile.step_timeline import RecordedStep, Span
from zeus_core.ports import Background, TimeSource

# The standard error of a median over that of the mean, for many normal values.
_MEDIAN_STDERR_FACTOR = math.sqrt(math.pi / 2)

# A gap between two steps, as a fraction of a step, in which the GPU waits: training does nothing else in so short a
# time. Longer gaps may hold other work, whose power is not that of waiting.
_MAX_GAP_FRACTION = 0.05

SETTLING_SECONDS = 0.05
"""The time after a clock was set in which the GPU may still run at another, with a margin: instructions that begin in
it do not count. A longer time costs measurements."""

# Fraction of the time at a clock below which an energy counter cannot show the power of one kind of work, and the error
# of a guess hardly matters.
_NEGLIGIBLE_FRACTION = 0.02

# An instruction that takes this multiple of the median was held up, if it is also beyond Tukey's outer fence. The
# factor alone decides where instructions hardly scatter, so that ordinary jitter is kept.
_MIN_HELD_UP_FACTOR = 1.25

# Tukey's outer fence: this multiple of the range of the middle half, above it (Tukey, Exploratory Data Analysis, 1977).
_OUTER_FENCE = 3.0

# Relative standard error of the power of waiting up to which it is used; above it, that of other ranks is.
_MAX_BLOCKING_POWER_STDERR_FRACTION = 0.1

# By how much the power of waiting has to fall from the highest measured clock to the lowest for plans to use that: less
# is hardly worth a switch. It also has to be this multiple of its standard error, as chance is then excluded.
_MIN_BLOCKING_FALL_FRACTION = 0.05
_MIN_BLOCKING_FALL_STDERRS = 3.0

MIN_COUNTER_UPDATES = 15
"""The minimum number of updates of the energy counter for which a clock is measured: the regression needs several for
each kind of work. More of them are awaited where the energies are not precise yet."""


class _Name(NamedTuple):
    stage: int
    kind: str
    clock_mhz: int | None


class Profiler:
    """Derives the time and energy of one rank's instructions from its steps.

    Args:
        gpu: The GPU it runs on.
        time_source: The monitor's clock.
        background: Watches the GPU.
        period_seconds: The update period of its energy counter.
    """

    def __init__(self, gpu: Gpu, time_source: TimeSource, background: Background, period_seconds: float) -> None:
        self._watch = CounterWatch(gpu, time_source, period_seconds)
        self._background = background
        self._period_seconds = period_seconds
        self._stop_watching: Callable[[], None] | None = None
        self._counter_updates: list[Knot] = []
        self._spans: list[Span] = []
        self._known: list[Span] = []
        self._durations: dict[_Name, list[float]] = {}
        self._seconds_at: dict[int | None, float] = {}
        self._switch_seconds: list[float] = []

    def begin(self) -> None:
        """Begin to measure."""
        if self._stop_watching is None:
            self._stop_watching = self._background.repeatedly(self._watch.poll, POLL_SECONDS)

    def end(self) -> None:
        """Stop measuring."""
        if self._stop_watching is not None:
            self._stop_watching()
            self._stop_watching = None

    def add_switch(self, seconds: float) -> None:
        """Add the time the driver took to set a clock, in seconds."""
        self._switch_seconds.append(seconds)

    def add(self, steps: Sequence[RecordedStep], clock_mhz: int | None, is_settled: bool) -> None:
        """Add consecutive steps at one clock, all of which the device has finished.

        Args:
            steps: The steps.
            clock_mhz: The clock; None for the original clock.
            is_settled: Whether the GPU ran at that clock before them. If not, the first instruction does not count, nor
                do those that begin within 0.05 s: the clock may not have settled.
        """
        settled_seconds = -math.inf if is_settled else None  # when that moment is over
        for step in steps:
            whole, spans = step.whole, step.spans()
            if whole is None or not spans:
                continue
            if settled_seconds is None:
                settled_seconds = max(spans[0].end_seconds, spans[0].begin_seconds + SETTLING_SECONDS)
            self._seconds_at[clock_mhz] = self._seconds_at.get(clock_mhz, 0.0) + whole.seconds
            settled = [span for span in spans if span.begin_seconds >= settled_seconds]
            for span in settled:
                self._add_span(span, clock_mhz)
            if settled:
                is_whole = len(settled) == len(spans)
                begin_seconds = whole.begin_seconds if is_whole else settled[0].begin_seconds
                known = Span(clock_mhz, begin_seconds, whole.end_seconds)
                self._extend_known(known, is_new=not is_whole)

    @property
    def fault(self) -> DeviceError | None:
        """The latest error of the GPU when its energy was read; None without one."""
        return self._watch.fault

    def is_enough(self, work: Iterable[Instruction], clock_mhz: int | None, instructions: int) -> bool:
        """Return whether enough instructions of each kind were measured at a clock, for long enough."""
        names = {_Name(instruction.stage, instruction.kind, clock_mhz) for instruction in work}
        is_long = self._seconds_at.get(clock_mhz, 0.0) >= MIN_COUNTER_UPDATES * self._period_seconds
        return is_long and all(len(self._durations.get(name, ())) >= instructions for name in names)

    def profile(self) -> RankProfile:
        """Return the measurements so far; for work whose clock is not chosen, those at the highest clock."""
        self._counter_updates += self._watch.take()[1 if self._counter_updates else 0 :]
        longest_seconds = {name: _longest_seconds(durations) for name, durations in self._durations.items()}
        # The GPU waited in these, as when the machine stalls.
        held_up = [span for span in self._spans if span.seconds > longest_seconds[cast(_Name, span.label)]]
        powers = mean_powers(self._counter_updates, self._spans, self._known, held_up)
        by_clock = self._powers_with_waiting_by_clock(held_up)
        powers = by_clock or powers
        rows = [
            _row(
                name,
                [seconds for seconds in durations if seconds <= longest_seconds[name]],
                self._power_of(name, powers),
            )
            for name, durations in self._durations.items()
            if name.kind in COMPUTE_KINDS or name.clock_mhz == self._highest_clock(name)
        ]
        watts, switch_seconds = _certain_watts(powers.get(WAITING)), median(self._switch_seconds or [0.0])
        if not by_clock or watts is None:
            return RankProfile(tuple(rows), watts, switch_seconds)
        highest, lowest = self._clock_range()
        lower_watts = watts + by_clock[WAITING_SLOPE].watts * (1 - lowest / highest)
        return RankProfile(tuple(rows), watts, switch_seconds, ((highest, watts), (lowest, lower_watts)))

    def _clock_range(self) -> tuple[int, int]:
        """Return the highest and the lowest clock so far; 0 without any."""
        clocks = [cast(int, span.label) for span in self._known if span.label is not None]
        return max(clocks, default=0), min(clocks, default=0)

    def _powers_with_waiting_by_clock(self, held_up: Sequence[Span]) -> Mapping[Hashable, MeanPower]:
        """Return the powers if that of waiting falls with the clock for certain; else nothing."""
        highest, lowest = self._clock_range()
        if highest == lowest:
            return {}
        units = [1 - cast(int, span.label or highest) / highest for span in self._known]
        powers = mean_powers(self._counter_updates, self._spans, self._known, held_up, units)
        waiting, slope = powers.get(WAITING), powers.get(WAITING_SLOPE)
        if waiting is None or slope is None:
            return {}
        fall_watts = -slope.watts * (1 - lowest / highest)
        is_certain = -slope.watts > _MIN_BLOCKING_FALL_STDERRS * slope.stderr_watts
        is_large = _MIN_BLOCKING_FALL_FRACTION * waiting.watts < fall_watts < waiting.watts
        return powers if is_certain and is_large else {}

    def _power_of(self, name: _Name, powers: Mapping[Hashable, MeanPower]) -> MeanPower | None:
        """Return the power of work; for work too short to show in a counter, the others' mean power at its clock."""
        power = powers.get(name)
        if power is not None and power.watts > 2 * power.stderr_watts:
            return power
        if sum(self._durations[name]) > _NEGLIGIBLE_FRACTION * self._seconds_at[name.clock_mhz]:
            return power
        others = [
            other
            for other in self._durations
            if other != name and other.clock_mhz == name.clock_mhz and other in powers
        ]
        seconds = sum(sum(self._durations[other]) for other in others)
        joules = sum(powers[other].watts * sum(self._durations[other]) for other in others)
        return MeanPower(joules / seconds, joules / seconds) if seconds > 0 else None

    def _highest_clock(self, name: _Name) -> int | None:
        clocks = [other.clock_mhz for other in self._durations if other[:2] == name[:2]]
        return None if None in clocks else max(filter(None, clocks))

    def _add_span(self, span: Span, clock_mhz: int | None) -> None:
        kind, stage, _ = cast(Instruction, span.label)
        if kind == "all-reduce":  # waiting, mostly
            return
        name = _Name(stage, kind, clock_mhz)
        self._spans.append(span._replace(label=name))
        self._durations.setdefault(name, []).append(span.seconds)

    def _extend_known(self, whole: Span, is_new: bool) -> None:
        """Extend the known time by a step. A short gap between two steps counts as waiting."""
        gap_seconds = whole.begin_seconds - self._known[-1].end_seconds if self._known else math.inf
        is_new = is_new or (bool(self._known) and self._known[-1].label != whole.label)
        if not is_new and gap_seconds < _MAX_GAP_FRACTION * whole.seconds:
            whole = whole._replace(begin_seconds=self._known.pop().begin_seconds)
        self._known.append(whole)


def _certain_watts(power: MeanPower | None) -> float | None:
    """Return a power, or None if it is too uncertain."""
    if power is None or not power.stderr_watts <= _MAX_BLOCKING_POWER_STDERR_FRACTION * power.watts:
        return None
    return power.watts


def _row(name: _Name, durations: Sequence[float], power: MeanPower | None) -> InstructionRow:
    stage, kind, clock_mhz = name if name.kind in COMPUTE_KINDS else name._replace(clock_mhz=None)
    seconds, stderr = _median_and_stderr(durations)
    if power is None or power.watts <= 0:
        return InstructionRow(stage, kind, clock_mhz, seconds, stderr, None, 0.0)
    joules = power.watts * seconds
    joules_stderr = math.hypot(power.stderr_watts * seconds, power.watts * stderr)
    return InstructionRow(stage, kind, clock_mhz, seconds, stderr, joules, joules_stderr)


def _longest_seconds(durations: Sequence[float]) -> float:
    """Return the maximum duration that is no outlier (Tukey's outer fence)."""
    if len(durations) < 2:
        return math.inf
    lower, middle, upper = quantiles(durations, method="inclusive")
    return max(_MIN_HELD_UP_FACTOR * middle, upper + _OUTER_FENCE * (upper - lower))


def _median_and_stderr(durations: Sequence[float]) -> tuple[float, float]:
    stderr = stdev(durations) / math.sqrt(len(durations)) if len(durations) > 1 else 0.0
    return median(durations), _MEDIAN_STDERR_FACTOR * stderr
