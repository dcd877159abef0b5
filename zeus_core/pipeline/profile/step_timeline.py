"""The work of one rank of a pipeline, step by step, and its times."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from zeus_core.pipeline.planner.pipeline_schedule import COMPUTE_KINDS, Instruction, check_kind
from zeus_core.ports import DeviceEvent, DeviceEvents

WHOLE_STEP = "step"
"""The label of the span of a whole step."""

_KINDS = (*COMPUTE_KINDS, "optimizer-step", "all-reduce")


class Span(NamedTuple):
    """Something that took time, as seen by the device.

    Attributes:
        label: Its name.
        begin_seconds: When it began, by the monitor's time source.
        end_seconds: When it ended.
    """

    label: Hashable
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
        """Add an instruction that has ended."""
        self._spans.append(_EventSpan(instruction, begin, end))

    def finish(self, end: DeviceEvent) -> None:
        """End the iteration."""
        self._end = end

    def wait(self) -> None:
        """Wait until the device has finished it."""
        if self._end is not None:
            self._end.wait()

    @property
    def whole(self) -> Span | None:
        """The span from its beginning to its end; None until the device has finished it."""
        return _between(WHOLE_STEP, self.begin, self._end)

    @property
    def work_end(self) -> DeviceEvent | None:
        """The end of its last computation; None if it has none."""
        return next((span.end for span in reversed(self._spans) if span.instruction.kind in COMPUTE_KINDS), None)

    @property
    def work_seconds(self) -> float | None:
        """The time from its beginning to the end of its last computation, including waiting.

        None until the device has finished the step.
        """
        work = _between(WHOLE_STEP, self.begin, self.work_end)
        return None if work is None or self.whole is None else work.seconds

    def spans(self) -> list[Span]:
        """Return the span of each instruction, labelled by it, as far as the device has finished them."""
        spans = (_between(*span) for span in self._spans)
        return [span for span in spans if span is not None]


def _between(label: Hashable, begin: DeviceEvent, end: DeviceEvent | None) -> Span | None:
    begin_seconds, end_seconds = begin.seconds(), None if end is None else end.seconds()
    if begin_seconds is None or end_seconds is None:
        return None
    return Span(label, begin_seconds, end_seconds)


class StepTimeline:
    """Turns the reports of one step into a `RecordedStep`.

    Args:
        make_event: Makes a device event at the current point of the training thread.
        stage: The stage of instructions reported without one.
    """

    def __init__(self, make_event: DeviceEvents, stage: int) -> None:
        self._make_event = make_event
        self._stage = stage
        self.step: RecordedStep | None = None
        """The step under way."""
        self._counts: dict[tuple[str, int], int] = {}
        self._open: tuple[Instruction, DeviceEvent] | None = None

    def begin_step(self) -> None:
        """Begin a step; one whose end was not reported is discarded."""
        self._counts.clear()
        self._open = None
        self.step = RecordedStep(self._make_event())

    def begin(self, kind: str, stage: int | None, microbatch: int | None) -> tuple[Instruction, DeviceEvent]:
        """Begin an instruction. Returns it, and its beginning.

        Raises:
            UsageError: There is no such kind.
        """
        check_kind(kind, _KINDS, "name")
        of_stage = self._stage if stage is None else stage
        count = self._counts.get((kind, of_stage), 0)
        self._counts[kind, of_stage] = count + 1
        instruction = Instruction(kind, of_stage, count if microbatch is None else microbatch)
        self._open = (instruction, self._make_event())
        return self._open

    def end(self) -> DeviceEvent | None:
        """End the latest instruction; return its end, or None if none had begun."""
        if self._open is None or self.step is None:
            return None
        (instruction, begin), self._open = self._open, None
        end = self._make_event()
        self.step.add(instruction, begin, end)
        return end

    def end_step(self) -> RecordedStep | None:
        """End the step; return it, or None if none had begun."""
        step, self.step = self.step, None
        if step is not None:
            step.finish(self._make_event())
        return step
