"""Schedules: what they contain, how long they take, and how faults are named."""

import numpy as np
import pytest

from tests.pipeline.planner.instances import SECONDS
from zeus_core.errors import UsageError
from zeus_core.pipeline import PipelineProfile, schedules
from zeus_core.pipeline.planner.clock_options import MeasuredOption
from zeus_core.pipeline.planner.dependencies import DependencyGraph
from zeus_core.pipeline.planner.pipeline_profile import InstructionProfile
from zeus_core.pipeline.planner.pipeline_schedule import Instruction, Schedule

UNIT = {"forward": 1.0, "backward": 2.0, "backward-input": 1.0, "backward-weight": 1.0}


def span(schedule):
    """Iteration time with unit durations."""
    graph = DependencyGraph.from_schedule(schedule)
    durations = np.array([UNIT[instruction.kind] for instruction in graph.instructions])
    return float((graph.earliest_starts(np.zeros(len(graph.arc_from)), durations) + durations).max())


def short(order):
    letters = {"forward": "F", "backward": "B", "backward-input": "I", "backward-weight": "W"}
    return " ".join(f"{letters[instruction.kind]}{instruction.microbatch}" for instruction in order)


def test_1f1b_is_as_published():
    first, _, _, last = schedules.one_f_one_b(4, 5).ranks
    assert short(first) == "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4"
    assert short(last) == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4"


@pytest.mark.parametrize("microbatches", [4, 8, 12])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_the_bubbles_are_those_of_the_papers(stages, microbatches):
    busy = 3.0 * microbatches
    assert span(schedules.gpipe(stages, microbatches)) == busy + 3 * (stages - 1)
    assert span(schedules.one_f_one_b(stages, microbatches)) == busy + 3 * (stages - 1)
    assert span(schedules.zb_h1(stages, microbatches)) == busy + (stages - 1)
    assert span(schedules.interleaved(stages, microbatches, 2)) == 2 * busy + 3 * (stages - 1)
    assert span(schedules.zbv(stages, microbatches)) <= 2 * busy + 1.5 * (stages - 1)


@pytest.mark.parametrize("microbatches", range(1, 9))
@pytest.mark.parametrize("stages", range(1, 6))
def test_all_sizes_are_complete(stages, microbatches):
    """Constructing a schedule checks that it is complete and free of cycles."""
    made = [make(stages, microbatches) for make in (schedules.gpipe, schedules.one_f_one_b, schedules.zb_h1)]
    made += [schedules.zbv(stages, microbatches), schedules.interleaved(stages, stages * microbatches, 3)]
    for schedule in made[:3]:
        assert (schedule.stages, schedule.microbatches) == (stages, microbatches)
    assert made[3].rank_of_stage == (*range(stages), *reversed(range(stages)))
    assert made[4].stages == 3 * stages


@pytest.mark.parametrize("make", [schedules.gpipe, schedules.one_f_one_b, schedules.zb_h1, schedules.zbv])
@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "4"])
def test_bad_sizes_are_named(make, wrong):
    with pytest.raises(UsageError, match="microbatches is"):
        make(2, wrong)
    with pytest.raises(UsageError, match=r"(stages|ranks) is"):
        make(wrong, 2)


def test_interleaved_needs_a_multiple():
    with pytest.raises(UsageError, match=r"microbatches is 6; .* multiple of the 4 ranks"):
        schedules.interleaved(4, 6)


F0, B0, F1, B1 = (Instruction(kind, 0, microbatch) for microbatch in (0, 1) for kind in ("forward", "backward"))


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([], "the schedule is empty"),
        ([[F0, B0], []], "rank 1 has no instructions"),
        ([[F0]], "no backward of stage 0, microbatch 0"),
        ([[B0]], "no forward pass"),
        ([[F0, B0, F1]], "no backward of stage 0, microbatch 1"),
        ([[F0, B0, B0]], "instruction 2: backward of stage 0, microbatch 0 is in the schedule twice"),
        ([[F0, B0, B1]], "backward of stage 0, microbatch 1, but no forward"),
        ([[B0, F0]], "on rank 0, backward of stage 0, microbatch 0 waits for forward of stage 0, microbatch 0"),
        ([[("sleep", 0, 0)]], "instruction 0: 'sleep' is not a kind"),
        ([[("communication", 0, 0)]], "'communication' is not a kind"),
        ([[("forward", -1, 0)]], "stage -1"),
        ([[("forward", 0, 0.5)]], "microbatch 0.5"),
        ([[F0, B0, ("forward", 2, 0), ("backward", 2, 0)]], "no instruction of stage 1"),
        ([[F0], [B0]], "stage 0 is on rank 0; a stage belongs to one rank"),
        ([[F0, B0, ("backward-input", 0, 0)]], "both a whole backward of stage 0, microbatch 0 and a part"),
        ([[F0, ("backward-input", 0, 0)]], "no backward-weight of stage 0, microbatch 0"),
        ([["F"]], "rank 0 has an instruction that is not"),
    ],
)
def test_faults_are_named(ranks, message):
    with pytest.raises(UsageError, match=message):
        schedules.from_instruction_lists(ranks)


def with_transfers(*, without=None):
    ranks = [
        [
            *[("forward", 0, 0), ("send-activation", 0, 0)],
            *[("receive-gradient", 0, 0), ("backward", 0, 0)],
        ],
        [
            *[("receive-activation", 1, 0), ("forward", 1, 0)],
            *[("backward", 1, 0), ("send-gradient", 1, 0)],
        ],
    ]
    return [[instruction for instruction in order if instruction[:2] != without] for order in ranks]


def test_sends_and_receives_carry_what_crosses_ranks():
    schedule = schedules.from_instruction_lists(with_transfers())
    graph = DependencyGraph.from_schedule(schedule)
    crossing = graph.arc_from[graph.arc_is_transfer]
    assert {graph.instructions[node].kind for node in crossing} == {"send-activation", "send-gradient"}


@pytest.mark.parametrize(
    ("without", "message"),
    [
        (("send-activation", 0), "receive-activation of stage 1, microbatch 0 has no send"),
        (("receive-activation", 1), "send-activation of stage 0, microbatch 0 has no receive"),
        (("send-gradient", 1), "receive-gradient of stage 0, microbatch 0 has no send"),
        (("receive-gradient", 0), "send-gradient of stage 1, microbatch 0 has no receive"),
    ],
)
def test_every_receive_has_a_send(without, message):
    with pytest.raises(UsageError, match=message):
        schedules.from_instruction_lists(with_transfers(without=without))


def test_a_cycle_between_ranks_is_named():
    ranks = [list(order) for order in schedules.one_f_one_b(2, 2).ranks]
    ranks[0] = [instruction for instruction in ranks[0] if instruction != F1]
    ranks[0].append(F1)  # stage 1 cannot go on to what the last backward of stage 0 needs
    with pytest.raises(UsageError, match="in a cycle"):
        Schedule("custom", tuple(map(tuple, ranks)))


def deepspeed_streams(stages, microbatches):
    """Return the instructions of DeepSpeed's TrainSchedule, as far as the names of its commands go."""
    kinds = {
        kind: type(kind, (), {})
        for kind in (
            *("ForwardPass", "BackwardPass", "SendActivation", "RecvActivation", "SendGrad", "RecvGrad"),
            *("LoadMicroBatch", "ReduceGrads", "ReduceTiedGrads", "OptimizerStep"),
        )
    }
    streams = []
    for stage, order in enumerate(schedules.one_f_one_b(stages, microbatches).ranks):
        steps = []
        for instruction in order:
            if instruction.kind == "forward":
                names = ["RecvActivation"] * (stage > 0) + ["LoadMicroBatch"] * (stage in (0, stages - 1))
                names += ["ForwardPass"] + ["SendActivation"] * (stage < stages - 1)
            else:
                names = ["RecvGrad"] * (stage < stages - 1) + ["BackwardPass"] + ["SendGrad"] * (stage > 0)
            steps.append([kinds[name]() for name in names])
        streams.append([*steps, [kinds[name]() for name in ("ReduceTiedGrads", "ReduceGrads", "OptimizerStep")]])
    return streams


def test_deepspeeds_streams_are_read():
    schedule = schedules.from_deepspeed(deepspeed_streams(3, 4))
    assert span_of_compute(schedule) == span(schedules.one_f_one_b(3, 4))
    full = schedules.from_deepspeed(deepspeed_streams(3, 4), has_fixed=True)
    assert full.ranks[0][-2:] == (Instruction("all-reduce", 0, 0), Instruction("optimizer-step", 0, 0))
    with pytest.raises(UsageError, match="stage 0: str is not known"):
        schedules.from_deepspeed([[["ForwardPass"]]])


def span_of_compute(schedule):
    graph = DependencyGraph.from_schedule(schedule)
    durations = np.array([UNIT.get(instruction.kind, 0.0) for instruction in graph.instructions])
    return float((graph.earliest_starts(np.zeros(len(graph.arc_from)), durations) + durations).max())


def test_torchs_orders_are_read():
    orders = {0: ["0F0", "0F1", None, "0B0", "0B1"], 1: [None, "1F0", "1I0", "1W0", "1F1", "1B1", ""]}
    schedule = schedules.from_torch(orders)
    assert short(schedule.ranks[1]) == "F0 I0 W0 F1 B1"
    sends = {
        0: ["0F0", "0SEND_F0", "0RECV_B0", "0B0"],
        1: ["1UNSHARD", "1RECV_F0", "1F0", "1B0", "1SEND_B0", "1REDUCE_GRAD"],
    }
    assert schedules.from_torch(sends).has_transfers
    with pytest.raises(UsageError, match="rank 0, action 1: '0X0' is not known"):
        schedules.from_torch({0: ["0F0", "0X0"]})
    with pytest.raises(UsageError, match="one for each rank"):
        schedules.from_torch({1: ["0F0"]})


def test_the_kinds_of_the_instances_are_known():
    assert set(SECONDS) == set(UNIT)


@pytest.mark.timeout(60)
def test_a_stage_number_that_is_far_too_large_is_told_at_once():
    order = [("forward", 0, 0), ("backward", 0, 0), ("forward", 10**12, 0), ("backward", 10**12, 0)]
    with pytest.raises(UsageError, match="no instruction of stage 1, but one of stage 1000000000000"):
        schedules.from_instruction_lists([order])
    options = (MeasuredOption(1410, 0.1, 10.0), MeasuredOption(1200, 0.2, 5.0))
    with pytest.raises(UsageError, match="no instruction of stage 1, but one of stage 1000000000000"):
        PipelineProfile([InstructionProfile(stage, "forward", options) for stage in (0, 10**12)], 80.0)
