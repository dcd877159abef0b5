"""The measurement of blocks of steps on one rank, each in as many windows as pauses of training make of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from zeus_core.adapters import contained
from zeus_core.device.gpu import read_or_none
from zeus_core.measurement import DeviceEnergy
from zeus_core.monitor import Measurement, ZeusMonitor
from zeus_core.monitor.clock_sampler import ClockSampler
from zeus_core.monitor.reading import Reading
from zeus_core.monitor.windows import synchronize
from zeus_core.optimizer.global_setting.trials import (
    Piece,
    TrialPart,
    finite,
    usual_seconds,
)
from zeus_core.ports import TimeSource
from zeus_core.ports.step_gaps import StepGaps
from zeus_core.search.comparison import standard_deviation

_numbers = itertools.count(1)


@dataclass
class _Span:
    """An unbroken part of a piece."""

    piece: int
    step_seconds: list[float]
    begin: Callable[[], Reading]  # see `ZeusMonitor.begin_reading`
    end: Callable[[], Reading]


class TrialRecorder:
    """Collects the segments of one block after another, and times all steps of a run.

    A segment is an unbroken run of training steps. A window of the monitor, which other windows may overlap, is open as
    long as the segment is.

    Args:
        monitor: Measures the GPUs.
        sets_clocks: Whether SM clocks are searched. Those of limits are sampled too, less often: they explain which
            slowdown a lower limit can cause.
    """

    def __init__(self, monitor: ZeusMonitor, sets_clocks: bool = False) -> None:
        self._monitor = monitor
        self._clocks = ClockSampler(list(monitor.gpus.values()), monitor.time_source, is_seldom=not sets_clocks)
        self._window = f"__zeus_core_power_limit_trial_{next(_numbers)}"
        self.time_source: TimeSource = monitor.time_source
        """The source of the times."""
        self._now = self._time = monitor.time_source.now  # of the steps; see `interrupt`
        self._sets_clocks = sets_clocks
        self._absent_seconds = 0.0  # how far that is behind the time
        self._interrupted_at: float | None = None
        self._has_excess = False
        self._piece_steps = 1
        self._steps = 0  # of the block
        self._spans: list[_Span] = []
        self._segment: list[_Span] = []
        self._begin: Callable[[], Reading] | None = None  # of the span under way
        self._step_ends: list[float] = []  # of the span under way, with its beginning
        self._is_catching_up = False
        self._is_spoiled = False
        self.skips_next_step = False
        """Whether a segment that is opened now leaves out its first step: other ranks may be behind, and delay it."""
        self.temperatures_celsius: list[float] = []
        """The temperature of the hottest GPU of this rank at the end of each block, where it is known."""
        self.run_seconds: float = 0.0
        """The time of all steps of the run, without pauses of training."""
        self._step_began: float | None = None
        self._gaps = StepGaps()

    def beside(self) -> TrialRecorder:
        """Return another recorder of the same GPUs."""
        return TrialRecorder(self._monitor, self._sets_clocks)

    def sample_clocks_often(self) -> None:
        """Take clocks for what is searched, before the first block."""
        self._clocks = ClockSampler(list(self._monitor.gpus.values()), self.time_source)
        self._sets_clocks = True

    def synchronize(self) -> None:
        """Wait until the accelerator has done what it was given."""
        synchronize(self._monitor)

    def interrupt(self) -> None:
        """Note that work of another kind begins within a step, until `resume`. Time and energy are none of the step."""
        if self._interrupted_at is not None:
            return
        self._interrupted_at = at = self._time()
        own_seconds = at - self._absent_seconds
        self._now = lambda: own_seconds
        self._clocks.pause()
        if self._begin is not None:
            self._cut(self._steps // self._piece_steps)

    def resume(self) -> None:
        """Note that the step goes on."""
        if self._interrupted_at is None:
            return
        self._leave_out(self._time() - self._interrupted_at)
        self._interrupted_at = None
        if self._begin is not None:
            self._clocks.start()
            self._begin = self._monitor.begin_reading(sync_execution=False)

    def leave_out(self, seconds: float) -> None:
        """Leave so much out of the time of the step under way: something that is no part of it slowed it down."""
        began = self._step_ends[-1] if self._step_ends else self._step_began
        if began is not None and seconds > 0:
            self._leave_out(min(seconds, max(self._now() - began, 0.0)))
            self._has_excess = True

    def _leave_out(self, seconds: float) -> None:
        self._absent_seconds = absent = self._absent_seconds + seconds
        time = self._time
        self._now = lambda: time() - absent

    def begin_run(self, seconds: float) -> None:
        """Time the steps of another run, which has lasted so long before."""
        self.run_seconds, self._step_began = seconds, None
        self.temperatures_celsius.clear()
        self._gaps = StepGaps()

    @contained(default=lambda: False)
    def is_after_unusual_gap(self, *, begins_step: bool) -> bool:
        """Return whether the time since the latest step is too long to belong to a step, before what follows begins."""
        end_gap = self._gaps.begin_step if begins_step else self._gaps.report
        return end_gap(self._now()) is not None

    def begin_step(self) -> None:
        """Note that a step begins. After a step without a pause it began at the end of that one."""
        if self._step_began is None:
            self._step_began = self._now()

    def end_step(self) -> float:
        """Note that the step has ended; return when."""
        now = self._now()
        if self._step_began is not None:
            self.run_seconds += now - self._step_began
        self._step_began = now
        self._gaps.end_step(now)
        return now

    def pause(self) -> None:
        """Note that no step is under way, and that what follows is none."""
        self._step_began = None
        self._gaps.stop()

    def begin_trial(self, piece_steps: int) -> None:
        """Begin another block, in pieces of so many steps."""
        self.drop_trial()
        self._piece_steps = piece_steps

    def open_segment(self) -> None:
        """Open the window of a segment."""
        self._is_catching_up = self.skips_next_step
        if not self._is_catching_up:
            self._begin_window()

    def end_measured_step(self) -> None:
        """Note that a step of the open segment has ended."""
        now = self.end_step()
        self._steps += 1
        if self._is_catching_up:
            self._is_catching_up = False
            self._begin_window()
            return
        self._step_ends.append(now)
        if self._steps % self._piece_steps == 0:
            self._cut((self._steps - 1) // self._piece_steps)

    def close_segment(self) -> None:
        """Close the window, and keep what it holds."""
        if len(self._step_ends) > 1:
            self._cut((self._steps - 1) // self._piece_steps)
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
        self._spans, self._steps, self._is_spoiled, self._has_excess = [], 0, False, False
        self._clocks.stop()
        self._clocks.take_means_mhz()

    def pieces(self) -> dict[int, Piece]:
        """Close the window, and return this rank's pieces of the block, by number."""
        self.close_segment()
        usual, longest = usual_seconds([seconds for span in self._spans for seconds in span.step_seconds])
        pieces = {}
        for number, spans in itertools.groupby(self._spans, key=lambda span: span.piece):
            measurement = self._measured(parts := list(spans))
            step_seconds = [seconds for span in parts for seconds in span.step_seconds]
            excesses = [seconds - usual for seconds in step_seconds if seconds > longest]
            joules = None if measurement is None else finite(measurement.total_energy)
            uncertainty = 0.0 if measurement is None else measurement.total_uncertainty_joules or 0.0
            steps, seconds = len(step_seconds), math.fsum(step_seconds)
            pieces[number] = Piece(steps, seconds, joules, uncertainty, len(excesses), math.fsum(excesses))
        return pieces

    def finish_trial(self, left_out: Sequence[int] = ()) -> TrialPart:
        """Return this rank's part in the block since the last one, without some pieces."""
        self.close_segment()
        spans = [span for span in self._spans if span.piece not in left_out]
        step_seconds = [seconds for span in spans for seconds in span.step_seconds]
        measurement = self._measured(spans)
        if self._has_excess and measurement is not None:
            measurement = replace(measurement, time=math.fsum(step_seconds))
        part = TrialPart(
            len(step_seconds),
            measurement,
            standard_deviation(step_seconds) if len(step_seconds) > 1 else 0.0,
            self._is_spoiled,
            self.run_seconds,
            self._clocks.take_means_mhz(),
        )
        self.drop_trial()
        celsius = self._monitor.ask(lambda gpu: read_or_none(gpu.read_temperature_celsius), None)
        known_celsius = [value for value in celsius if value is not None]
        self.temperatures_celsius += [max(known_celsius)] if known_celsius else []
        return part

    def _measured(self, spans: Sequence[_Span]) -> Measurement | None:
        """Return the measurement of some spans. Those that follow each other without a gap are measured as one.

        The energy of a GPU that could not be read meanwhile is lost, also where a window of the user's would have it
        estimated: settings are not compared by what was not measured.
        """
        runs: list[list[Callable[[], Reading]]] = []
        for span in spans:
            if runs and runs[-1][1] is span.begin:
                runs[-1][1] = span.end
            else:
                runs.append([span.begin, span.end])
        measurements = []
        for first, last in ((begin(), end()) for begin, end in runs):
            measurement = self._monitor.between(first, last)
            if not last.is_whole_since(first):
                lost = DeviceEnergy.lost("a GPU could not be read during a trial")
                measurement = replace(measurement, devices=dict.fromkeys(measurement.devices, lost))
            measurements.append(measurement)
        return sum(measurements[1:], start=measurements[0]) if measurements else None

    def _begin_window(self) -> None:
        self._monitor.begin_window(self._window, restart=True)  # GPUs without a counter are sampled while it is open
        self._clocks.start()
        self._step_ends = [self._now()]
        self._begin = self._monitor.begin_reading(sync_execution=False)

    def _cut(self, piece: int) -> None:
        """End a span, which is part of a piece, and begin the next one."""
        assert self._begin is not None, "a window was opened before"
        end = self._monitor.begin_reading()
        step_seconds = [after - before for before, after in itertools.pairwise(self._step_ends)]
        self._segment.append(_Span(piece, step_seconds, self._begin, end))
        self._begin, self._step_ends = end, self._step_ends[-1:]

    def _forget_segment(self) -> None:
        self._clocks.pause()
        self._monitor.cancel(self._window)
        self._segment, self._begin, self._step_ends = [], None, []
