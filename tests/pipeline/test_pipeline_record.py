"""The trace of a pipeline."""

import pytest

from zeus_core.events import Activity
from zeus_core.pipeline.optimizer.frequency_phases import PlanningPhase
from zeus_core.pipeline.pipeline_record import RecordedPipeline
from zeus_core.ports.device_events import HostEvents
from zeus_core.tracing.trace_file import read_trace
from zeus_core.training import TrainingEnergy


class Observer:
    """In the place of an optimizer that plans clocks: notes what it is told."""

    clocks_mhz = (1200, None, 900, 1410)

    phase = PlanningPhase.REPLAYING

    def __init__(self):
        self.told = []

    def __getattr__(self, name):
        return lambda *arguments: self.told.append((name, *arguments))


class LateEvents(HostEvents):
    """Events that the device reaches a while after the program has made them, if it ever does."""

    def __init__(self, time_source):
        super().__init__(time_source)
        self.time_source, self.is_stuck = time_source, False

    def __call__(self):
        event, at, is_stuck = super().__call__(), self.time_source.now(), self.is_stuck
        known = lambda: None if is_stuck or self.time_source.now() < at + 0.15 else event.seconds()  # noqa: E731
        return type("Event", (), {"seconds": staticmethod(known)})


def train(pipeline, time_source, steps):
    for _ in range(steps):
        pipeline.on_step_begin()
        for kind in ("forward", "receive-gradient", "backward") * 2:
            pipeline.on_instruction_begin(kind)
            time_source.advance(0.05)
            pipeline.on_instruction_end(kind)
        pipeline.on_step_end()


@pytest.mark.parametrize("make_events", [HostEvents, LateEvents])
def test_instructions_have_their_clocks(monitor, time_source, tmp_path, make_events):
    observer = Observer()
    energy = TrainingEnergy(monitor, trace=tmp_path, quiet=True)
    pipeline = RecordedPipeline(observer, energy, make_events(time_source))
    train(pipeline, time_source, 3)
    pipeline.on_pause(Activity.EVALUATION)
    time_source.advance(1.0)
    pipeline.on_resume()
    pipeline.close()
    trace = read_trace(tmp_path / "trace-0.json.gz")
    instructions = [event for event in trace.events if event["ph"] == "X" and "microbatch" in event.get("args", {})]
    assert len(instructions) == 18
    assert [(event["name"], event["args"].get("clock_mhz")) for event in instructions[:6]] == [
        *(("forward", 1200), ("receive-gradient", None), ("backward", None)),
        *(("forward", 900), ("receive-gradient", None), ("backward", 1410)),
    ]
    assert [event["args"]["microbatch"] for event in instructions[:6]] == [0, 0, 0, 1, 1, 1]
    assert all(event["dur"] == pytest.approx(50_000, abs=1) for event in instructions)
    marks = [(event["name"], event["args"]["why"]) for event in trace.events if event["ph"] == "i"]
    assert ("clocks: replaying", "the plan is in force") in marks
    assert any(event["name"] == "evaluation" for event in trace.events)
    assert trace.ranks[0].steps == 3


def test_the_optimizer_is_told_all_that_it_was_told_without_a_trace(monitor, time_source, tmp_path):
    observer, energy = Observer(), TrainingEnergy(monitor, trace=tmp_path, quiet=True)
    pipeline = RecordedPipeline(observer, energy, HostEvents(time_source))
    train(pipeline, time_source, 1)
    pipeline.on_pause(Activity.CHECKPOINT)
    pipeline.on_resume()
    pipeline.use_work({"shape": "8"})
    pipeline.close()
    names = [name for name, *_ in observer.told]
    assert names[0] == "on_step_begin"
    assert names[-4:] == ["on_step_end", "on_pause", "on_resume", "use_work"]
    assert observer.told[1] == ("on_instruction_begin", "forward", None, None)
    assert observer.told[2] == ("on_instruction_end", "forward")


def test_instructions_that_the_device_never_finishes_are_left_out(monitor, time_source, tmp_path):
    events = LateEvents(time_source)
    energy = TrainingEnergy(monitor, trace=tmp_path, quiet=True)
    pipeline = RecordedPipeline(Observer(), energy, events)
    train(pipeline, time_source, 1)
    events.is_stuck = True
    train(pipeline, time_source, 1)
    pipeline.close()
    trace = read_trace(tmp_path / "trace-0.json.gz")
    assert sum("microbatch" in event.get("args", {}) for event in trace.events) == 6
