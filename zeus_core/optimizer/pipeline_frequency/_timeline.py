"""What one rank of a pipeline has done, and when."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from zeus_core.pipeline import COMPUTE_KINDS, Instruction
from zeus_core.pipeline._kinds import check_kind
from zeus_core.ports import DeviceEvent, DeviceEvents

__all__ = ["WHOLE_STEP", "RecordedStep", "Span", "Timeline"]

WHOLE_STEP = "step"
"""What the span of a whole step is called."""

_KINDS = (*COMPUTE_KINDS, "optimizer-step", "all-reduce")


class Span(NamedTuple):
    """Something that took time, as seen by the device.

    Attributes:
        what: What it was.
        begin_seconds: When it began, on the monitor's clock.
        end_seconds: When it ended.
    """

    what: Hashable
    begin_seconds: float
    end_seconds: float

    @property
    def seconds(self) -> float:
        """Its duration."""
        return self.end_seconds - self.begin_seconds


class _EventSpan(NamedTuple):
    instruction: Instruction
    begin: DeviceEvent
    end: DeviceEvent


class RecordedStep:
    """One iteration of one rank: its instructions in order, without transfers.

    Args:
        begin: When it began.
    """

    def __init__(self, begin: DeviceEvent) -> None:
        self.begin = begin
        self._end: DeviceEvent | None = None
        self._spans: list[_EventSpan] = []

    @property
    def order(self) -> tuple[Instruction, ...]:
        """Its computations, in order."""
        return tuple(span.instruction for span in self._spans if span.instruction.kind in COMPUTE_KINDS)

    def add(self, instruction: Instruction, begin: DeviceEvent, end: DeviceEvent) -> None:
        """An instruction has ended."""
        self._spans.append(_EventSpan(instruction, begin, end))

    def finish(self, end: DeviceEvent) -> None:
        """The iteration has ended."""
        self._end = end

    def wait(self) -> None:
        """Wait until the device has finished it."""
        if self._end is not None:
            self._end.wait()

    @property
    def whole(self) -> Span | None:
        """From its beginning to its end; None until the device has finished it."""
        return _between(WHOLE_STEP, self.begin, self._end)

    @property
    def work_seconds(self) -> float | None:
        """From its beginning to the end of its last computation, including the time it waited.

        None until the device has finished the step.
        """
        last = next((it.end for it in reversed(self._spans) if it.instruction.kind in COMPUTE_KINDS), None)
        span = _between(WHOLE_STEP, self.begin, last)
        return None if span is None or self.whole is None else span.seconds

    def spans(self) -> list[Span]:
        """The span of each instruction, named by it, as far as the device has finished them."""
        found = (_between(*it) for it in self._spans)
        return [span for span in found if span is not None]


def _between(what: Hashable, begin: DeviceEvent, end: DeviceEvent | None) -> Span | None:
    begin_seconds, end_seconds = begin.seconds(), None if end is None else end.seconds()
    if begin_seconds is None or end_seconds is None:
        return None
    return Span(what, begin_seconds, end_seconds)


class Timeline:
    """Turns the reports of one step into a `RecordedStep`.

    Args:
        mark: Marks the current point of the training thread.
        stage: The stage of instructions reported without one.
    """

    def __init__(self, mark: DeviceEvents, stage: int) -> None:
        self._mark = mark
        self._stage = stage
        self.step: RecordedStep | None = None
        """The step under way."""
        self._counts: dict[tuple[str, int], int] = {}
        self._open: tuple[Instruction, DeviceEvent] | None = None

    def begin_step(self) -> None:
        """A step begins; one whose end was not reported is discarded."""
        self._counts.clear()
        self._open = None
        self.step = RecordedStep(self._mark())

    def begin(self, kind: str, stage: int | None, microbatch: int | None) -> Instruction:
        """An instruction begins.

        Raises:
            UsageError: There is no such kind.
        """
        check_kind(kind, _KINDS, "name")
        of_stage = self._stage if stage is None else stage
        count = self._counts.get((kind, of_stage), 0)
        self._counts[kind, of_stage] = count + 1
        instruction = Instruction(kind, of_stage, count if microbatch is None else microbatch)
        self._open = (instruction, self._mark())
        return instruction

    def end(self) -> DeviceEvent | None:
        """The latest instruction has ended; returns when, or None if none had begun."""
        if self._open is None or self.step is None:
            return None
        (instruction, begin), self._open = self._open, None
        end = self._mark()
        self.step.add(instruction, begin, end)
        return end

    def end_step(self) -> RecordedStep | None:
        """The step has ended; returns it, or None if none had begun."""
        step, self.step = self.step, None
        if step is not None:
            step.finish(self._mark())
        return step
