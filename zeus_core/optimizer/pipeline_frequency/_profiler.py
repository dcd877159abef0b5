"""Time and energy of one rank's instructions at several clocks, measured during training."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles, stdev
from typing import Any, NamedTuple, cast

from zeus_core.device import Gpu
from zeus_core.errors import DeviceError
from zeus_core.optimizer.pipeline_frequency._attribution import WAITING, MeanPower, mean_powers
from zeus_core.optimizer.pipeline_frequency._counter_watch import POLL_SECONDS, CounterStep, CounterWatch
from zeus_core.optimizer.pipeline_frequency._timeline import RecordedStep, Span
from zeus_core.pipeline import COMPUTE_KINDS, Instruction
from zeus_core.ports import Background, TimeSource

__all__ = ["LEAST_COUNTER_STEPS", "InstructionRow", "Profiler", "RankProfile"]

_TO_THE_MEDIAN = math.sqrt(math.pi / 2)  # its standard error over that of the mean, for many normal values
_SHORT = 0.05  # of a step
_SETTLING_SECONDS = 0.05  # of a clock that was set, with a margin
_SURE = 0.01  # of an energy
_NEGLIGIBLE = 0.02  # of the time at a clock
_HELD_UP = 1.25  # of the usual duration
_FENCE = 3.0  # of the range of the middle half of durations, above it
_MOST_DOUBT = 0.1  # of the power of waiting
LEAST_COUNTER_STEPS = 15
"""The minimum number of energy-counter steps for which a clock is measured."""


@dataclass(frozen=True)
class InstructionRow:
    """What one kind of instruction of a stage took at one clock.

    Attributes:
        stage: Its stage.
        kind: Its kind.
        clock_mhz: The clock; None for the original clock.
        time_seconds: Median duration.
        time_error_seconds: Its standard error.
        energy_joules: Energy over that duration; None if it could not be determined.
        energy_error_joules: Its standard error; 0.0 if the energy is unknown.
    """

    stage: int
    kind: str
    clock_mhz: int | None
    time_seconds: float
    time_error_seconds: float
    energy_joules: float | None
    energy_error_joules: float


class _Name(NamedTuple):
    stage: int
    kind: str
    clock_mhz: int | None


@dataclass(frozen=True)
class RankProfile:
    """Everything one rank has measured.

    Attributes:
        rows: One for each kind at each clock.
        waiting_watts: The power while it waits; None if it waited too little to tell.
        switch_seconds: The median time the driver took to set a clock; 0.0 if none was set.
    """

    rows: tuple[InstructionRow, ...]
    waiting_watts: float | None
    switch_seconds: float = 0.0

    def is_sure(self, clock_mhz: int | None) -> bool:
        """Whether the energies at a clock are known closely, all in proportion to the greatest of them."""
        rows = [it for it in self.rows if it.kind in COMPUTE_KINDS and it.clock_mhz == clock_mhz]
        most_joules = max((it.energy_joules or 0.0 for it in rows), default=0.0)
        return all(it.energy_joules is not None and it.energy_error_joules <= _SURE * most_joules for it in rows)

    def to_json(self) -> dict[str, Any]:
        """In JSON types."""
        rows = [list(asdict(row).values()) for row in self.rows]
        return {"rows": rows, "waiting_watts": self.waiting_watts, "switch_seconds": self.switch_seconds}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> RankProfile:
        """What `to_json` made.

        Raises:
            ValueError: A value is of the wrong type or out of its range.
            TypeError: A row has the wrong number of values.
            KeyError: A field is missing.
        """
        rows = tuple(InstructionRow(*row) for row in fields["rows"])
        for row in rows:
            _check_types(row)
        waiting_watts, switch_seconds = fields["waiting_watts"], fields["switch_seconds"]
        if waiting_watts is not None and not _is_amount(waiting_watts):
            raise ValueError(f"waiting_watts is {waiting_watts!r}")
        if not _is_amount(switch_seconds):
            raise ValueError(f"switch_seconds is {switch_seconds!r}")
        return cls(rows, waiting_watts, switch_seconds)


class Profiler:
    """Derives the time and energy of one rank's instructions from its steps.

    Args:
        gpu: The GPU it runs on.
        time_source: The monitor's clock.
        background: Watches the GPU.
        period_seconds: The period of its energy counter.
    """

    def __init__(self, gpu: Gpu, time_source: TimeSource, background: Background, period_seconds: float) -> None:
        self._watch = CounterWatch(gpu, time_source, period_seconds)
        self._background = background
        self._period_seconds = period_seconds
        self._stop_watching: Callable[[], None] | None = None
        self._counter_steps: list[CounterStep] = []
        self._spans: list[Span] = []
        self._known: list[Span] = []
        self._durations: dict[_Name, list[float]] = {}
        self._seconds_at: dict[int | None, float] = {}
        self._switch_seconds: list[float] = []

    def begin(self) -> None:
        """Measure from now on."""
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
                settled_seconds = max(spans[0].end_seconds, spans[0].begin_seconds + _SETTLING_SECONDS)
            self._seconds_at[clock_mhz] = self._seconds_at.get(clock_mhz, 0.0) + whole.seconds
            settled = [span for span in spans if span.begin_seconds >= settled_seconds]
            for span in settled:
                self._add_span(span, clock_mhz)
            if settled:
                is_whole = len(settled) == len(spans)
                begin_seconds = whole.begin_seconds if is_whole else settled[0].begin_seconds
                self._extend_known(whole._replace(begin_seconds=begin_seconds), is_new=not is_whole)

    @property
    def fault(self) -> DeviceError | None:
        """What the GPU has said last, if it has refused to tell its energy."""
        return self._watch.fault

    def is_enough(self, work: Iterable[Instruction], clock_mhz: int | None, instructions: int) -> bool:
        """Whether at least so many instructions of each kind were measured at a clock, and for long enough."""
        names = {_Name(it.stage, it.kind, clock_mhz) for it in work}
        is_long = self._seconds_at.get(clock_mhz, 0.0) >= LEAST_COUNTER_STEPS * self._period_seconds
        return is_long and all(len(self._durations.get(name, ())) >= instructions for name in names)

    def profile(self) -> RankProfile:
        """What has been measured so far; for work whose clock is not chosen, at the highest clock."""
        self._counter_steps += self._watch.take()[1 if self._counter_steps else 0 :]
        longest_seconds = {name: _longest_seconds(durations) for name, durations in self._durations.items()}
        # As when the machine stalls: the GPU waited in them.
        held_up = [span for span in self._spans if span.seconds > longest_seconds[cast(_Name, span.what)]]
        powers = mean_powers(self._counter_steps, self._spans, self._known, held_up)
        rows = [
            _row(name, [it for it in durations if it <= longest_seconds[name]], self._power_of(name, powers))
            for name, durations in self._durations.items()
            if name.kind in COMPUTE_KINDS or name.clock_mhz == self._highest_clock(name)
        ]
        return RankProfile(tuple(rows), _sure_watts(powers.get(WAITING)), median(self._switch_seconds or [0.0]))

    def _power_of(self, name: _Name, powers: Mapping[Hashable, MeanPower]) -> MeanPower | None:
        """Of work that takes next to no time, which no counter can show, that of the other work at its clock."""
        power = powers.get(name)
        if power is not None and power.watts > 2 * power.error_watts:
            return power
        if sum(self._durations[name]) > _NEGLIGIBLE * self._seconds_at[name.clock_mhz]:
            return power
        others = [it for it in self._durations if it != name and it.clock_mhz == name.clock_mhz and it in powers]
        seconds = sum(sum(self._durations[it]) for it in others)
        joules = sum(powers[it].watts * sum(self._durations[it]) for it in others)
        return MeanPower(joules / seconds, joules / seconds) if seconds > 0 else None

    def _highest_clock(self, name: _Name) -> int | None:
        clocks = [it.clock_mhz for it in self._durations if (it.stage, it.kind) == (name.stage, name.kind)]
        return None if None in clocks else max(filter(None, clocks))

    def _add_span(self, span: Span, clock_mhz: int | None) -> None:
        kind, stage, _ = cast(Instruction, span.what)
        if kind == "all-reduce":  # waiting, mostly
            return
        name = _Name(stage, kind, clock_mhz)
        self._spans.append(span._replace(what=name))
        self._durations.setdefault(name, []).append(span.seconds)

    def _extend_known(self, whole: Span, is_new: bool) -> None:
        """Extend the known time by a step. A short gap between two steps counts as waiting."""
        gap_seconds = whole.begin_seconds - self._known[-1].end_seconds if self._known else math.inf
        if not is_new and gap_seconds < _SHORT * whole.seconds:
            whole = whole._replace(begin_seconds=self._known.pop().begin_seconds)
        self._known.append(whole)


def _check_types(row: InstructionRow) -> None:
    is_right = {
        "stage": type(row.stage) is int and row.stage >= 0,
        "kind": isinstance(row.kind, str),
        "clock_mhz": row.clock_mhz is None or (type(row.clock_mhz) is int and row.clock_mhz > 0),
        "time_seconds": _is_amount(row.time_seconds),
        "time_error_seconds": _is_amount(row.time_error_seconds),
        "energy_joules": row.energy_joules is None or _is_amount(row.energy_joules),
        "energy_error_joules": _is_amount(row.energy_error_joules),
    }
    for name, holds in is_right.items():
        if not holds:
            raise ValueError(f"{name} is {getattr(row, name)!r}")


def _is_amount(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf  # type: ignore[operator]


def _sure_watts(power: MeanPower | None) -> float | None:
    """A power; None if it is too uncertain."""
    if power is None or not power.error_watts <= _MOST_DOUBT * power.watts:
        return None
    return power.watts


def _row(name: _Name, durations: Sequence[float], power: MeanPower | None) -> InstructionRow:
    stage, kind, clock_mhz = name if name.kind in COMPUTE_KINDS else name._replace(clock_mhz=None)
    seconds, error = _median_and_error(durations)
    if power is None or power.watts <= 0:
        return InstructionRow(stage, kind, clock_mhz, seconds, error, None, 0.0)
    joules = power.watts * seconds
    joules_error = math.hypot(power.error_watts * seconds, power.watts * error)
    return InstructionRow(stage, kind, clock_mhz, seconds, error, joules, joules_error)


def _longest_seconds(durations: Sequence[float]) -> float:
    """The maximum duration that is no outlier (Tukey's outer fence)."""
    if len(durations) < 2:
        return math.inf
    lower, middle, upper = quantiles(durations, method="inclusive")
    return max(_HELD_UP * middle, upper + _FENCE * (upper - lower))


def _median_and_error(durations: Sequence[float]) -> tuple[float, float]:
    error = stdev(durations) / math.sqrt(len(durations)) if len(durations) > 1 else 0.0
    return median(durations), _TO_THE_MEDIAN * error
