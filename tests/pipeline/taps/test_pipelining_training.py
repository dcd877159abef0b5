"""The schedules of torch.distributed.pipelining from the first step to the deployed plan, in virtual time."""

import pytest
import torch
import torch.distributed
from torch.distributed.pipelining import PipelineStage, schedules

from tests.support.ranks import run_ranks
from tests.support.virtual_time import A100, Run, SharedTimes, computing_optimizer, true_profile
from zeus_core.pipeline.taps.pipelining import PipelineScheduleTap

MICROBATCHES, WIDTH, STEPS = 8, 4, 62
STAGES = {
    "Schedule1F1B": {0: (0,), 1: (1,)},
    "ScheduleInterleavedZeroBubble": {0: (0, 2), 1: (1, 3)},
    "ScheduleZBVZeroBubble": {0: (0, 3), 1: (1, 2)},
    "ScheduleDualPipeV": {0: (0, 3), 1: (1, 2)},
}


def make_schedule(name, own_stages, count):
    made = []
    for stage in own_stages:
        torch.manual_seed(stage)
        module = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())
        made.append(PipelineStage(module, stage, count, torch.device("cpu")))
    schedule_class = getattr(schedules, name)
    is_of_one = issubclass(schedule_class, schedules.PipelineScheduleSingle)
    return schedule_class(made[0] if is_of_one else made, MICROBATCHES, loss_fn=torch.nn.functional.mse_loss), made


def train(name, times, has_perseus):
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    torch.set_num_threads(1)
    stages_by_rank = STAGES[name]
    count = sum(map(len, stages_by_rank.values()))
    schedule, stages = make_schedule(name, stages_by_rank[rank], count)
    if not has_perseus:
        return step_all(schedule, stages, count)
    optimizer = computing_optimizer(times)
    PipelineScheduleTap(schedule, optimizer)
    optimizer.record.losses = step_all(schedule, stages, count)
    optimizer.close()
    return optimizer.record


def step_all(schedule, stages, count):
    parameters = [parameter for stage in stages for parameter in stage.submod.parameters()]
    torch_optimizer = torch.optim.SGD(parameters, lr=0.01)
    generator = torch.Generator().manual_seed(0)
    all_losses = []
    for _ in range(STEPS):
        inputs, targets = (torch.randn(MICROBATCHES, WIDTH, generator=generator) for _ in range(2))
        indices = {stage.stage_index for stage in stages}
        arguments = (inputs,) if 0 in indices else ()
        losses = []
        options = {"target": targets, "losses": losses} if count - 1 in indices else {}
        schedule.step(*arguments, **options)
        torch_optimizer.step()
        torch_optimizer.zero_grad()
        all_losses.append([loss.item() for loss in losses])
    return all_losses


@pytest.mark.long  # in the default suite, with a schedule written by hand: tests/plain_torch
@pytest.mark.parametrize("name", STAGES)
def test_a_plan_is_found_and_keeps_what_it_promises(name):
    count = sum(map(len, STAGES[name].values()))
    times = SharedTimes(count, MICROBATCHES)
    run = Run(run_ranks(2, train, name, times, True))
    halves = {"backward-input", "backward-weight"}
    kinds = {instruction.kind for instruction in run.records[0].latest["profile"].instructions}
    assert (name == "Schedule1F1B") == (not kinds & halves)
    run.check_against(true_profile(count, A100, kinds=sorted(kinds)), run.records[0].latest["schedule"])
    assert [record.losses for record in run.records] == run_ranks(2, train, name, times, False)
