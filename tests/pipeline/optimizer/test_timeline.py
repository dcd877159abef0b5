"""The timeline of a rank, from the events it reports."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_core.errors import UsageError
from zeus_core.pipeline.planner.pipeline_schedule import COMPUTE_KINDS, Instruction
from zeus_core.pipeline.profile.step_timeline import StepTimeline
from zeus_core.ports.device_events import HostEvents
from zeus_core.testing import VirtualTime


@pytest.fixture
def timeline(time_source):
    return StepTimeline(HostEvents(time_source), stage=2)


def work(timeline, time_source, kind, seconds=1.0, stage=None, microbatch=None):
    timeline.begin(kind, stage, microbatch)
    time_source.advance(seconds)
    timeline.end()


def test_a_step_is_its_instructions_and_when_they_ran(timeline, time_source):
    timeline.begin_step()
    work(timeline, time_source, "forward", 1.0)
    time_source.advance(0.5)
    work(timeline, time_source, "backward", 2.0)
    work(timeline, time_source, "optimizer-step", 4.0)
    step = timeline.end_step()
    assert step.order == (Instruction("forward", 2, 0), Instruction("backward", 2, 0))
    assert [(span.label.kind, span.begin_seconds - 1000, span.seconds) for span in step.spans()] == [
        ("forward", 0.0, 1.0),
        ("backward", 1.5, 2.0),
        ("optimizer-step", 3.5, 4.0),
    ]
    assert step.whole.seconds == 7.5
    assert step.work_seconds == 3.5, "up to the last computation"


def test_microbatches_are_counted_by_stage_and_kind_unless_they_are_said(timeline, time_source):
    timeline.begin_step()
    for kind, stage, microbatch in [
        ("forward", None, None),
        ("forward", None, None),
        ("forward", 5, None),
        ("backward", None, None),
        ("backward", None, 7),
        ("backward", None, None),
    ]:
        work(timeline, time_source, kind, stage=stage, microbatch=microbatch)
    assert [tuple(instruction)[1:] for instruction in timeline.end_step().order] == [
        (2, 0),
        (2, 1),
        (5, 0),
        (2, 0),
        (2, 7),
        (2, 2),
    ]


def test_each_step_counts_anew(timeline, time_source):
    for _ in range(2):
        timeline.begin_step()
        work(timeline, time_source, "forward")
        assert timeline.end_step().order == (Instruction("forward", 2, 0),)


def test_a_step_whose_end_was_not_reported_is_forgotten(timeline, time_source):
    timeline.begin_step()
    timeline.begin("forward", None, None)
    timeline.begin_step()
    assert timeline.end() is None
    work(timeline, time_source, "forward")
    assert len(timeline.end_step().order) == 1


def test_ends_without_a_beginning_are_nothing(timeline):
    assert timeline.end_step() is None
    assert timeline.end() is None
    timeline.begin("forward", None, None)
    assert timeline.end() is None, "outside of a step"
    timeline.begin_step()
    assert timeline.end() is None
    assert timeline.end_step().work_seconds is None


def test_of_what_the_device_has_not_done_yet_nothing_is_told(time_source):
    reached = []

    class LaterMark:
        def __init__(self):
            self._number = len(marks)
            marks.append(self)

        def seconds(self):
            return float(self._number) if self._number in reached else None

        def wait(self):
            reached.extend(range(self._number + 1))

    marks = []
    timeline = StepTimeline(LaterMark, stage=0)
    timeline.begin_step()
    work(timeline, time_source, "forward")
    work(timeline, time_source, "backward")
    step = timeline.end_step()
    assert (step.whole, step.work_seconds, step.spans()) == (None, None, [])
    assert len(step.order) == 2
    reached.extend([0, 1, 2])
    assert [span.label.kind for span in step.spans()] == ["forward"]
    assert step.work_seconds is None
    step.wait()
    assert (step.whole.seconds, step.work_seconds) == (5.0, 4.0)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["begin step", "end step", "begin", "end", "pass"]),
            st.sampled_from([*COMPUTE_KINDS, "optimizer-step", "all-reduce"]),
        )
    )
)
def test_spans_of_any_reports_are_in_order_within_the_step_without_overlap(reports):
    time_source = VirtualTime()
    timeline, steps = StepTimeline(HostEvents(time_source), stage=0), []
    for what, kind in reports:
        time_source.advance(0.1)
        if what == "begin step":
            timeline.begin_step()
        elif what == "end step":
            steps.append(timeline.end_step())
        elif what == "begin":
            timeline.begin(kind, None, None)
        elif what == "end":
            timeline.end()
    for step in filter(None, steps):
        edges = [edge for span in step.spans() for edge in span[1:]]
        edges = [step.whole.begin_seconds, *edges, step.whole.end_seconds]
        assert edges == sorted(edges)
        assert len({span.label for span in step.spans()}) == len(step.spans())


def test_a_kind_that_does_not_exist_is_named(timeline):
    timeline.begin_step()
    with pytest.raises(UsageError, match="'fwd' is not a kind of instruction; use one of forward, backward, "):
        timeline.begin("fwd", None, None)
