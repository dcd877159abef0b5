"""The measurement of one block of steps, in as many windows as pauses of training make of it, on one rank."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from zeus_core._step_gaps import StepGaps
from zeus_core.adapters import contained
from zeus_core.monitor import Measurement, ZeusMonitor
from zeus_core.monitor._reading import Reading
from zeus_core.optimizer._global_setting._clock_sampler import ClockSampler
from zeus_core.optimizer._global_setting._pieces import Piece, usual_seconds
from zeus_core.optimizer._global_setting._trial_parts import TrialPart, finite
from zeus_core.ports._time_source import clock_seconds
from zeus_core.search._comparison import standard_deviation

__all__ = ["TrialRecorder"]

_numbers = itertools.count(1)


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
        self._gaps = StepGaps()

    def clock_seconds(self) -> float:
        """Return the date and time, in seconds since 1970 (Unix time)."""
        return clock_seconds(self._monitor.time_source)

    def begin_run(self, seconds: float) -> None:
        """Time the steps of another run, which has lasted so long before."""
        self.run_seconds, self._step_began = seconds, None
        self._gaps = StepGaps()

    @contained(default=lambda: False)
    def is_after_unusual_gap(self) -> bool:
        """Return whether the time since the latest step is too long to belong to a step; before the next one begins."""
        return self._gaps.begin_step(self._now()) is not None

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
        self._gaps.end_step(now)

    def pause(self) -> None:
        """Note that no step is under way, and that what follows is none."""
        self._step_began = None
        self._gaps.stop()

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
