"""Events reported for real engines, over gloo."""

import collections
import inspect
from types import MethodType
from typing import ClassVar

import pytest
import torch
from deepspeed.pipe import LayerSpec
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.runtime.pipe.schedule import TrainSchedule

from tests.deepspeed.engines import (
    MICROBATCHES,
    WIDTH,
    RecordingOptimizer,
    batches,
    make_engine,
    make_module,
    run_engines,
)
from zeus_core.errors import ZeusError
from zeus_deepspeed._engine import PipelineTap, check_engine, release

NAMES = {
    "ForwardPass": "forward",
    "BackwardPass": "backward",
    "SendActivation": "send-activation",
    "RecvActivation": "receive-activation",
    "SendGrad": "send-gradient",
    "RecvGrad": "receive-gradient",
    "ReduceTiedGrads": "all-reduce",
    "ReduceGrads": "all-reduce",
    "OptimizerStep": "optimizer-step",
    "LoadMicroBatch": None,
}


def step_events(stages, stage):
    """Return the events expected of a step, from the schedule itself."""
    commands = [command for step in TrainSchedule(MICROBATCHES, stages, stage) for command in step]
    names = [NAMES[type(command).__name__] for command in commands]
    told = [f"{name} {edge}" for name in names if name for edge in ("begin", "end")]
    return ["step begin", *told, "step end"]


def train_twice(stages, pipelines, is_tapped, module_options, blocks):
    engine = make_engine(make_module(stages, pipelines, **module_options), **blocks)
    observer = RecordingOptimizer()
    if is_tapped:
        PipelineTap(engine, observer)
    data = batches(engine.grid.get_data_parallel_id())
    losses = [engine.train_batch(data).item() for _ in range(2)]
    return engine.stage_id, losses, observer.events


def both(*arguments):
    return train_twice(*arguments[:2], False, *arguments[2:]), train_twice(*arguments[:2], True, *arguments[2:])


CASES = {
    "2 stages": (2, 1, {}, {}),
    "4 stages": (4, 1, {}, {}),
    "2x2": (2, 2, {}, {"zero_optimization": {"stage": 1}}),
    "tied": (2, 1, {"is_tied": True}, {}),
    "checkpointed": (2, 1, {}, {"pipeline": {"use_reentrant": False, "activation_checkpoint_interval": 1}}),
}
if "Stream(" in inspect.getsource(non_reentrant_checkpoint):  # older releases checkpoint activations on GPUs only
    del CASES["checkpointed"]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=[pytest.mark.long] * (name in ("4 stages", "tied")))
        for name, case in CASES.items()
    ],
)
def test_every_instruction_is_told_and_training_stays_the_same(case):
    stages, pipelines, *_ = case
    for untapped, (stage, losses, events) in run_engines(stages * pipelines, both, *case):
        assert events == 2 * step_events(stages, stage)
        assert losses == untapped[1]


def dualpipev_rank():
    from deepspeed.runtime.pipe.dualpipev import DualPipeVModule

    specs = [LayerSpec(torch.nn.Linear, WIDTH, WIDTH) for _ in range(4)]
    module = DualPipeVModule(specs, num_stages=2, loss_fn=torch.nn.functional.mse_loss, partition_method="uniform")
    engine, observer = make_engine(module, gradient_accumulation_steps=4), RecordingOptimizer()
    PipelineTap(engine, observer)
    engine.train_batch(batches())
    trained = observer.take()
    engine.eval_batch(batches())
    return collections.Counter(trained), observer.take()


def test_both_stages_of_a_rank_of_dualpipev_are_told():
    pytest.importorskip("deepspeed.runtime.pipe.dualpipev", reason="this release has no DualPipeV")
    for stages, (counts, evaluation) in zip([(0, 3), (1, 2)], run_engines(2, dualpipev_rank), strict=True):
        for stage in stages:
            assert counts[f"forward of stage {stage} begin"] == counts[f"backward of stage {stage} begin"] == 4
        assert counts["forward end"] == counts["backward end"] == 8
        assert evaluation == ["evaluation begin", "resume"]


class StoppingError(Exception):
    pass


def stop(*_, **__):
    raise StoppingError


def stopped(method, *arguments):
    with pytest.raises(StoppingError):
        method(*arguments)


def attributes_of(engine):
    """The names an engine has of its own, but for the instruction it has run last."""
    return vars(engine).keys() - {"_exec_instr"}


def eventful_rank(folder):
    engine = make_engine(make_module(2))
    engine.train_batch(batches())
    engine.save_checkpoint(folder)
    found, observer, told = attributes_of(engine), RecordingOptimizer(), {}
    tap = PipelineTap(engine, observer)

    def tell(name, method, *arguments):
        method(*arguments)
        told[name] = observer.take()

    tell("first", engine.train_batch, batches())
    tell("evaluation", engine.eval_batch, batches())
    tell("second", engine.train_batch, batches())
    tell("checkpoint", engine.save_checkpoint, folder)
    engine.module.eval = stop
    tell("stopped evaluation", stopped, engine.eval_batch, batches())
    engine.optimizer.step = stop
    tell("stopped step", stopped, engine.train_batch, batches())  # after which DeepSpeed itself trains no more
    assert "_INSTRUCTION_MAP" not in vars(engine)
    tap.detach()
    assert vars(engine).keys() == found
    tell("detached", engine.save_checkpoint, folder)
    return engine.stage_id, told


def test_what_is_not_training_is_a_pause_and_failures_have_no_end(tmp_path):
    for stage, told in run_engines(2, eventful_rank, str(tmp_path)):
        step = step_events(2, stage)
        assert told["first"] == told["second"] == step
        assert told["evaluation"] == told["stopped evaluation"] == ["evaluation begin", "resume"]
        assert told["checkpoint"] == ["checkpoint begin", "resume"]
        assert told["stopped step"] == [*step[: step.index("optimizer-step end")], "idle begin"]
        assert told["detached"] == []


class Command:
    def __init__(self, **kwargs):
        self.kwargs = kwargs


COMMANDS = {name: type(name, (Command,), {}) for name in [*NAMES, "CommitP2P"]}


class FakeEngine:
    """Runs schedules as a `PipelineEngine` does, of instructions that do nothing."""

    stage_id, num_stages = 1, 4
    _INSTRUCTION_MAP: ClassVar = {
        command: lambda self, **kwargs: self.ran.append(kwargs) for command in COMMANDS.values()
    }

    def __init__(self):
        self.ran = []

    def _exec_schedule(self, schedule):
        for command in schedule:
            self._exec_instr = MethodType(self._INSTRUCTION_MAP[type(command)], self)
            self._exec_instr(**command.kwargs)

    def train_batch(self, schedule):
        self._exec_schedule(schedule)

    eval_batch = save_checkpoint = load_checkpoint = destroy = train_batch


def test_each_phase_of_dualpipev_is_told_as_a_stage_of_its_own():
    engine, observer = FakeEngine(), RecordingOptimizer()
    PipelineTap(engine, observer)
    engine.train_batch([COMMANDS["ForwardPass"](buffer_id=3, phase=phase) for phase in (0, 1)])
    forwards = [event for stage in (1, 6) for event in (f"forward of stage {stage} begin", "forward end")]
    assert observer.events == ["step begin", *forwards, "step end"]
    assert engine.ran == [{"buffer_id": 3, "phase": 0}, {"buffer_id": 3, "phase": 1}]


class ForwardOnly(list):
    forward_only = True


def test_what_is_not_known_is_run_and_not_told():
    engine, observer = FakeEngine(), RecordingOptimizer()
    PipelineTap(engine, observer)
    engine.train_batch([COMMANDS["CommitP2P"](), COMMANDS["LoadMicroBatch"](buffer_id=0)])
    assert observer.take() == ["step begin", "step end"]
    engine.train_batch(ForwardOnly([COMMANDS["ForwardPass"]()]))
    assert observer.take() == ["step begin"]
    assert engine.ran == [{}, {"buffer_id": 0}, {}]


class InterruptedOptimizer(RecordingOptimizer):
    def on_instruction_end(self, name):
        raise KeyboardInterrupt


def test_an_interrupt_passes_without_a_change_of_the_engines_map():
    engine = FakeEngine()
    engine._INSTRUCTION_MAP = others = dict(FakeEngine._INSTRUCTION_MAP)
    tap = PipelineTap(engine, InterruptedOptimizer())
    with pytest.raises(KeyboardInterrupt):
        engine.train_batch([COMMANDS["ForwardPass"]()])
    assert engine._INSTRUCTION_MAP is others
    assert tap._observer.take() == ["step begin", "forward begin", "idle begin"], "clocks are to be restored"
    tap.detach()
    assert vars(engine).keys() == {"ran", "_INSTRUCTION_MAP"}


def test_the_deepspeed_in_use_has_all_that_is_hooked_into():
    """It fails for a release that has moved something, and names both."""
    check_engine(object.__new__(PipelineEngine))


def test_what_is_missing_is_named_with_the_release():
    class Moved(FakeEngine):
        _INSTRUCTION_MAP: ClassVar = {command: None for name, command in COMMANDS.items() if name != "SendGrad"}
        _exec_schedule = None

    with pytest.raises(
        ZeusError, match=r"Moved of DeepSpeed 0\.\d+\.\d+ lacks _exec_schedule, .*MAP\[SendGrad\],"
    ) as raised:
        PipelineTap(Moved(), RecordingOptimizer())
    assert release() in str(raised.value)


def shapes_of_rank():
    engine, observer = make_engine(make_module(2)), RecordingOptimizer()
    observer.works = []
    observer.use_work = observer.works.append
    PipelineTap(engine, observer)
    for _ in range(3):
        engine.train_batch(batches())
    return observer.works


def test_the_shapes_of_inputs_are_sent_to_an_observer_accepting_them():
    for works in run_engines(2, shapes_of_rank):
        ((name, shapes),) = works[0].items()
        assert name == "shapes"
        assert shapes.endswith(f"x{WIDTH}")
