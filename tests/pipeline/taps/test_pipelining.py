"""Real schedules of torch.distributed.pipelining, on two processes over gloo and on one."""

import copy
from collections import Counter
from types import FunctionType, SimpleNamespace

import pytest
import torch
import torch.distributed
from torch.distributed.pipelining import PipelineStage, schedules

from tests.support.ranks import run_ranks
from zeus_core.errors import UsageError
from zeus_core.events import Activity
from zeus_core.pipeline.optimizer import PipelineFrequencySettings, PipelineRank
from zeus_core.pipeline.optimizer.frequency_phases import PlanningPhase
from zeus_core.pipeline.planner.pipeline_schedule import Instruction
from zeus_core.pipeline.schedules import gpipe, one_f_one_b
from zeus_core.pipeline.taps import pipelining
from zeus_core.pipeline.taps.pipelining import PipelineScheduleTap, attach, check_schedule
from zeus_core.ports.device_events import HostEvents
from zeus_core.ports.world import SoloWorld
from zeus_core.pytorch import torch_world

MICROBATCHES = 8
WIDTH = 4
IN_TURN = {0: (0, 2), 1: (1, 3)}
AS_A_V = {0: (0, 3), 1: (1, 2)}
STAGES = {
    "ScheduleGPipe": {0: (0,), 1: (1,)},
    "Schedule1F1B": {0: (0,), 1: (1,)},
    "ScheduleInterleaved1F1B": IN_TURN,
    "ScheduleLoopedBFS": IN_TURN,
    "ScheduleInterleavedZeroBubble": IN_TURN,
    "ScheduleZBVZeroBubble": AS_A_V,
    "ScheduleDualPipeV": AS_A_V,
}
NO_EVALUATION = {"ScheduleZBVZeroBubble", "ScheduleDualPipeV"}  # torch 2.13 fails in the `eval` of these, tap or not
KINDS = {"F": "forward", "B": "backward", "I": "backward-input", "W": "backward-weight"}
STEP = ["step begin", "step end"]


class Recorder:
    """Keeps what it is told, in order."""

    def __init__(self):
        self.told = []
        self.running = None

    def on_step_begin(self):
        self.told.append("step begin")
        self.running = None

    def on_step_end(self):
        assert self.running is None, "instructions end before their step"
        self.told.append("step end")

    def on_instruction_begin(self, name, stage=None, microbatch=None):
        assert self.running is None, "instructions do not nest"
        self.running = name
        self.told.append(Instruction(name, stage, microbatch))

    def on_instruction_end(self, name):
        assert self.running == name
        self.running = None

    def on_pause(self, activity=Activity.IDLE):
        self.told.append(activity)

    def on_resume(self):
        self.told.append("resume")

    def close(self):
        self.told.append("close")

    @property
    def instructions(self):
        return [event for event in self.told if isinstance(event, Instruction)]


def make_schedule(name, stages, count):
    """A schedule of small stages, each always with the same weights."""
    made = []
    for index in stages:
        torch.manual_seed(index)
        layers = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH))
        made.append(PipelineStage(layers, index, count, torch.device("cpu")))
    kind = getattr(schedules, name)
    is_single = issubclass(kind, schedules.PipelineScheduleSingle)
    return kind(made[0] if is_single else made, MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)


def stages_of(schedule):
    return getattr(schedule, "_stages", None) or [schedule._stage]


def data():
    torch.manual_seed(100)
    return torch.randn(2 * MICROBATCHES, WIDTH), torch.randn(2 * MICROBATCHES, WIDTH)


def run_step(schedule, run):
    """One iteration; returns all it has computed, as bytes."""
    inputs, target = data()
    stages, losses = stages_of(schedule), []
    arguments = (inputs,) if any(stage.is_first for stage in stages) else ()
    has_last = any(stage.is_last for stage in stages)
    output = run(*arguments, **({"target": target, "losses": losses} if has_last else {}))
    gradients = [parameter.grad for stage in stages for parameter in stage.submod.parameters()]
    tensors = [output, *losses, *gradients]
    return [None if tensor is None else tensor.detach().numpy().tobytes() for tensor in tensors]


def listed(schedule, rank):
    """Return the schedule's own list of a rank, in the words of an observer."""
    for action in filter(None, schedule.pipeline_order[rank]):
        for part in action.sub_actions or (action,):
            if part.computation_type.value in KINDS:
                yield Instruction(KINDS[part.computation_type.value], part.stage_index, part.microbatch_index)


def run_all_schedules():
    """On each rank: every schedule without the tap, with it, in evaluation, and after it is detached."""
    torch.distributed.init_process_group("gloo")
    return {name: run_schedule(name, stages) for name, stages in STAGES.items()}


def run_schedule(name, stages_by_rank):
    rank, count = torch.distributed.get_rank(), sum(map(len, stages_by_rank.values()))
    plain, tapped = (make_schedule(name, stages_by_rank[rank], count) for _ in range(2))
    recorder, told, is_same = Recorder(), [], []
    tap = PipelineScheduleTap(tapped, recorder)

    def run(method):
        computed = [run_step(schedule, getattr(schedule, method)) for schedule in (plain, tapped)]
        is_same.append(computed[0] == computed[1])
        told.append(recorder.told)
        recorder.told = []

    run("step")
    if name not in NO_EVALUATION:
        run("eval")
    run("step")
    tap.detach()
    run("step")
    owners = (tapped, *stages_of(tapped))
    left = [
        name
        for owner in owners
        for name in vars(owner)
        if name in {"step", "_maybe_compute_loss"} or "one_chunk" in name
    ]
    return SimpleNamespace(told=told, is_same=is_same, listed=list(listed(tapped, rank)), left=left)


@pytest.fixture(scope="module")
def answers():
    return run_ranks(2, run_all_schedules)


@pytest.fixture(params=[(name, rank) for name in STAGES for rank in (0, 1)], ids=lambda place: f"{place[0]}-{place[1]}")
def answer(request, answers):
    name, rank = request.param
    return answers[rank][name]


@pytest.mark.parametrize(("name", "ours"), [("ScheduleGPipe", gpipe), ("Schedule1F1B", one_f_one_b)])
@pytest.mark.parametrize("rank", [0, 1])
def test_the_instructions_are_those_of_the_schedule_of_that_name(answers, name, ours, rank):
    assert answers[rank][name].told[0] == [STEP[0], *ours(2, MICROBATCHES).ranks[rank], STEP[1]]


@pytest.mark.parametrize("name", sorted(STAGES.keys() - {"Schedule1F1B"}))  # its list is off by one, in torch 2.13
@pytest.mark.parametrize("rank", [0, 1])
def test_the_instructions_are_told_in_the_order_of_the_schedules_own_list(answers, name, rank):
    answer = answers[rank][name]
    assert answer.told[0] == [STEP[0], *answer.listed, STEP[1]]


def test_what_is_computed_stays_the_same_bit_by_bit(answer):
    assert set(answer.is_same) == {True}


def test_evaluation_is_a_pause_and_training_goes_on_after_it(answer):
    first, *evaluation, again, _ = answer.told
    assert evaluation in ([], [[Activity.EVALUATION, "resume"]])
    assert again == first


def test_detaching_leaves_nothing(answer):
    assert (answer.told[-1], answer.left) == ([], [])


def test_halves_of_the_backward_pass_are_told_apart(answers):
    told = answers[0]["ScheduleDualPipeV"].told[0]
    assert {instruction.kind for instruction in told[1:-1]} == set(KINDS.values())


def run_custom_functions():
    """On each rank: schedules whose passes run by functions, as GraphPP's do, without the tap and with it."""
    torch.distributed.init_process_group("gloo")
    found = {}
    for name in ("ScheduleInterleaved1F1B", "ScheduleInterleavedZeroBubble", "ScheduleZBVZeroBubble"):
        rank = torch.distributed.get_rank()
        plain, tapped = (make_schedule(name, STAGES[name][rank], 4) for _ in range(2))
        recorder, receives = Recorder(), []
        recorder.works = []
        recorder.use_work = recorder.works.append
        tap = PipelineScheduleTap(tapped, recorder)
        for schedule in (plain, tapped):  # after the tap: torchtitan registers them late
            register_functions(schedule, recorder, receives)
        own = tapped._comp_type_to_function_map.functions
        is_same = run_step(plain, plain.step) == run_step(tapped, tapped.step)
        told, recorder.told = recorder.told, []
        for _ in range(3):  # shapes are told once they are the same for three steps
            run_step(plain, plain.step)
            run_step(tapped, tapped.step)
        recorder.told = []
        tap.detach()
        is_restored = tapped._comp_type_to_function_map is own and set(map(type, own.values())) == {FunctionType}
        is_same = is_same and run_step(plain, plain.step) == run_step(tapped, tapped.step)
        answer = {
            "works": recorder.works,
            "told": told,
            "is_same": is_same,
            "is_restored": is_restored and not recorder.told,
        }
        found[name] = SimpleNamespace(**answer, waited_while=Counter(receives), listed=list(listed(tapped, rank)))
    return found


def register_functions(schedule, recorder, receives):
    """Register functions that never call the methods of a stage that the tap wraps."""

    def wait(pending, action):
        for work in pending.pop((action.stage_index, action.microbatch_index), []):
            receives.append(recorder.running)
            work.wait()

    def local(schedule, index):
        return {stage.stage_index: stage for stage in schedule._stages}.get(index)

    def forward(action, context):
        schedule, at = context.schedule_ref, action.microbatch_index
        wait(schedule.fwd_recv_ops, action)
        stage = local(schedule, action.stage_index)
        run = type(stage).forward_one_chunk
        output = run(stage, at, context.arg_mbs[at], context.kwarg_mbs[at], save_forward_output=True)
        type(schedule)._maybe_compute_loss(schedule, stage, output, context.target_mbs, at)
        if after := local(schedule, action.stage_index + 1):
            after.set_local_fwd_input(output, at)

    def backward(action, context):
        schedule, at = context.schedule_ref, action.microbatch_index
        wait(schedule.bwd_recv_ops, action)
        stage, is_full = local(schedule, action.stage_index), action.computation_type.value == "B"
        schedule.backward_counter[action.stage_index] += is_full
        is_last = schedule.backward_counter[action.stage_index] == MICROBATCHES
        run, loss = type(stage).backward_one_chunk, schedule._maybe_get_loss(stage, at)
        run(stage, at, loss=loss, full_backward=is_full, last_backward=is_full and is_last)
        if before := local(schedule, action.stage_index - 1):
            before.set_local_bwd_input(stage.get_local_bwd_output(at), at)

    def backward_weight(action, context):
        schedule = context.schedule_ref
        stage = local(schedule, action.stage_index)
        schedule.backward_counter[action.stage_index] += 1
        is_last = schedule.backward_counter[action.stage_index] == MICROBATCHES
        type(stage).backward_weight_one_chunk(stage, action.microbatch_index, last_backward=is_last)

    kinds = schedules._ComputationType
    for kind, function in (
        *((kinds.FORWARD, forward), (kinds.FULL_BACKWARD, backward)),
        *((kinds.BACKWARD_INPUT, backward), (kinds.BACKWARD_WEIGHT, backward_weight)),
    ):
        schedule.register_custom_function(kind, function)


@pytest.mark.long
def test_passes_that_functions_of_their_own_run_are_told_without_their_waits():
    for rank, found in enumerate(run_ranks(2, run_custom_functions)):
        for answer in found.values():
            assert bool(answer.works) == (rank == 0), "the rank of the first stage knows the shapes"
            assert answer.told == [STEP[0], *answer.listed, STEP[1]]
            assert (answer.is_same, answer.is_restored) == (True, True)
            assert set(answer.waited_while) == {None}, "no pass runs while its input is waited for"


def test_a_custom_function_that_calls_its_stages_methods_is_one_pass(schedule):
    looped, recorder = make_schedule("ScheduleLoopedBFS", [0], 1), Recorder()
    tap = PipelineScheduleTap(looped, recorder)

    def forward(action, context):
        at = action.microbatch_index
        output = looped._stages[0].forward_one_chunk(at, context.arg_mbs[at], {}, save_forward_output=True)
        looped._maybe_compute_loss(looped._stages[0], output, context.target_mbs, at)

    looped.register_custom_function(schedules._ComputationType.FORWARD, forward)
    run_step(looped, looped.step)
    kinds = Counter(instruction.kind for instruction in recorder.instructions)
    assert kinds == {"forward": MICROBATCHES, "backward": MICROBATCHES}
    tap.detach()
    assert looped._comp_type_to_function_map == {schedules._ComputationType.FORWARD: forward}


@pytest.fixture
def alone(tmp_path):
    """A process group of this process."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def schedule(alone):
    return make_schedule("Schedule1F1B", [0], 1)


class Broken(torch.nn.Module):
    """Fails in its third forward or backward pass, once it is told to."""

    def __init__(self, where):
        super().__init__()
        self.where, self.is_broken, self.calls = where, False, 0
        self.layer = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs):
        output = self.layer(inputs)
        if self.where == "forward":
            self.fail()
        elif output.requires_grad:
            output.register_hook(lambda gradient: self.fail())
        return output

    def fail(self):
        self.calls += self.is_broken
        if self.calls == 3:
            raise ArithmeticError("the third")


@pytest.mark.parametrize(
    ("where", "told"),
    [("forward", [*(2 * ["forward", "backward"]), "forward"]), ("backward", 3 * ["forward", "backward"])],
)
def test_an_exception_passes_and_the_step_ends_in_a_pause(alone, where, told):
    module, recorder = Broken(where), Recorder()
    stage = PipelineStage(module, 0, 1, torch.device("cpu"))
    schedule = schedules.Schedule1F1B(stage, MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)
    PipelineScheduleTap(schedule, recorder)
    run_step(schedule, schedule.step)
    recorder.told.clear()
    module.is_broken = True
    with pytest.raises((RuntimeError, ArithmeticError)) as raised:
        run_step(schedule, schedule.step)
    assert isinstance(raised.value.__cause__ or raised.value, ArithmeticError)
    assert recorder.told[0] == STEP[0]
    assert [instruction.kind for instruction in recorder.told[1:-1]] == told
    assert recorder.told[-1] is Activity.IDLE, "clocks are to be restored"


def test_the_step_after_a_failed_one_is_told_whole(schedule):
    recorder = Recorder()
    PipelineScheduleTap(schedule, recorder)
    with pytest.raises(AssertionError, match="smaller than num_chunks"):
        schedule.step(data()[0], target=torch.zeros(1, WIDTH))
    assert recorder.told == [STEP[0], Activity.IDLE]
    recorder.told.clear()
    run_step(schedule, schedule.step)
    assert (recorder.told[0], recorder.told[-1]) == tuple(STEP)


def test_the_loss_belongs_to_the_forward_pass(schedule):
    recorder, running = Recorder(), []
    loss = schedule._loss_fn
    run_step(schedule, schedule.step)  # torch asks for a loss to learn its shape
    schedule._loss_fn = lambda *tensors: running.append(recorder.running) or loss(*tensors)
    PipelineScheduleTap(schedule, recorder)
    run_step(schedule, schedule.step)
    assert running == ["forward"] * MICROBATCHES


def test_a_schedule_without_a_loss_only_evaluates(alone):
    stage = PipelineStage(torch.nn.Linear(WIDTH, WIDTH), 0, 1, torch.device("cpu"))
    schedule, recorder = schedules.ScheduleGPipe(stage, MICROBATCHES), Recorder()
    PipelineScheduleTap(schedule, recorder)
    schedule.step(data()[0])
    assert recorder.told == [Activity.EVALUATION, "resume"]


def test_two_taps_do_not_disturb_each_other(schedule):
    first, second = Recorder(), Recorder()
    tap = PipelineScheduleTap(schedule, first)
    PipelineScheduleTap(schedule, second)
    run_step(schedule, schedule.step)
    tap.detach()
    run_step(schedule, schedule.step)
    assert second.told == 2 * first.told


def test_what_is_no_schedule_is_refused(schedule):
    with pytest.raises(UsageError, match="such as Schedule1F1B"):
        PipelineScheduleTap(schedule._stage, Recorder())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda schedule: delattr(schedule, "_has_backward"), "_has_backward"),
        (lambda schedule: delattr(schedule, "_stage"), "_stage, _stages"),
        (lambda schedule: delattr(schedule._stage, "group_rank"), "stage.group_rank"),
        (lambda schedule: setattr(schedule._stage, "backward_one_chunk", lambda chunk: None), "full_backward"),
    ],
)
def test_another_torch_is_refused_by_what_it_lacks(schedule, change, named):
    changed = copy.copy(schedule)
    changed._stage = copy.copy(schedule._stage)
    change(changed)
    with pytest.raises(UsageError, match=rf"torch {torch.__version__.split('+')[0]}.* lacks .*{named}"):
        check_schedule(changed)


class FakeOptimizer(Recorder):
    """Keeps what it is made of."""

    def __init__(self, monitor, pipeline_rank, settings, *, world, identity, device_events):
        super().__init__()
        self.made_of = (monitor, pipeline_rank, settings, world, identity, type(device_events))


def test_attaching_makes_an_optimizer_for_the_place_of_the_stages(schedule, monitor, monkeypatch):
    monkeypatch.setattr(pipelining, "PipelineFrequencyOptimizer", FakeOptimizer)
    attached = attach(schedule, monitor, pipeline=2)
    *made_of, world, identity, device_events = attached.optimizer.made_of
    assert made_of == [monitor, PipelineRank(0, 2), None]
    assert (type(world), identity, device_events) == (SoloWorld, None, HostEvents)
    run_step(schedule, schedule.step)
    assert len(attached.optimizer.instructions) == 2 * MICROBATCHES
    attached.detach()
    run_step(schedule, schedule.step)
    assert len(attached.optimizer.instructions) == 2 * MICROBATCHES
    assert attached.optimizer.told[-1] == "close"


def test_what_the_caller_says_of_the_rank_holds(schedule, monitor, monkeypatch):
    monkeypatch.setattr(pipelining, "PipelineFrequencyOptimizer", FakeOptimizer)
    settings, world = PipelineFrequencySettings(slowdown_factor=1.1), torch_world()
    attached = attach(schedule, monitor, settings, rank=3, world=world, identity={"model": "tiny"})
    assert attached.optimizer.made_of[:-1] == (monitor, PipelineRank(3), settings, world, {"model": "tiny"})


def test_attaching_the_optimizer_itself_changes_nothing_that_is_computed(schedule, monitor):
    plain = make_schedule("Schedule1F1B", [0], 1)
    attached = attach(schedule, monitor)
    assert run_step(schedule, schedule.step) == run_step(plain, plain.step)
    attached.detach()
    assert attached.optimizer.phase is PlanningPhase.RESTING


def test_the_shapes_of_passes_are_sent_to_an_observer_accepting_them(schedule):
    recorder = Recorder()
    recorder.works = []
    recorder.use_work = recorder.works.append
    PipelineScheduleTap(schedule, recorder)
    for _ in range(4):
        run_step(schedule, schedule.step)
    (inputs, _) = data()
    assert recorder.works == 2 * [{"shapes": f"{len(inputs) // MICROBATCHES}x{WIDTH}"}]
