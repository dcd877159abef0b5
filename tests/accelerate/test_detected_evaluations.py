"""Evaluations that a loop written with accelerate does not announce, on a simulated GPU in virtual time."""

import contextlib
import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.accelerate.loop import BACKWARD, FORWARD, Loop
from tests.support.untouched_torch import parts_of_torch
from zeus_core.device import Work
from zeus_core.events import Activity
from zeus_core.optimizer import Energy
from zeus_core.pytorch import SimulatedCompute
from zeus_core.search import GridSearch
from zeus_huggingface.accelerate import PowerLimitOptimizer, ZeusAccelerate
from zeus_huggingface.accelerate._pass_rules import PassKind, PassRules

ONE = torch.ones(1, 3)


def passes_joules(gpu, forward, backward=0, limit_watts=350):
    points = [gpu.preset.physics.operating_point(work, limit_watts).energy_joules for work in (FORWARD, BACKWARD)]
    return forward * points[0] + backward * points[1]


def joules(energy, activity):
    activities = energy.summary.account.activities
    return activities[activity].energy_joules if activity in activities else 0.0


def evaluate(model, passes=8, gradients=torch.no_grad):
    model.eval()
    with gradients():
        for _ in range(passes):
            model(ONE)
    model.train()


@pytest.mark.parametrize("gradients", [torch.no_grad, torch.inference_mode, contextlib.nullcontext])
@pytest.mark.parametrize("accumulation", [1, 4])
def test_an_evaluation_that_is_not_announced_is_told_apart(tmp_path, monitor, gpu, gradients, accumulation):
    loop = Loop(tmp_path, gpu, gradient_accumulation_steps=accumulation)
    with ZeusAccelerate(loop.accelerator, monitor) as energy:
        for step in loop.train(12):
            if step % 4 == 0:  # after 16 batches: the end of an epoch, where batches accumulate
                evaluate(loop.model, gradients=gradients)
    assert joules(energy, Activity.EVALUATION) == pytest.approx(passes_joules(gpu, 24), rel=0.05)
    assert joules(energy, Activity.STEPS) == pytest.approx(
        passes_joules(gpu, 12 * accumulation, 12 * accumulation), rel=0.03
    )
    assert (energy.summary.steps, energy.summary.detected_evaluations) == (12, 3)
    assert "evaluations detected by their forward passes: 3" in str(energy.summary)


def test_it_is_in_the_next_log(loop, monitor, gpu):
    with ZeusAccelerate(loop.accelerator, monitor):
        loop.train_and_log(10, every=10)
        loop.model.eval()
        with torch.no_grad():
            for _ in range(20):
                loop.model(ONE)
        loop.accelerator.log({"eval_loss": 1.0}, step=10)
        loop.model.train()
        loop.train_and_log(10, every=10)
    training, evaluation, more, end = loop.logged()
    assert evaluation["eval_energy_j"] == pytest.approx(passes_joules(gpu, 20), rel=0.05)
    assert not any("eval_energy_j" in line for line in (training, more, end))
    assert more["energy_j"] == pytest.approx(passes_joules(gpu, 10, 10), rel=0.05)


def test_passes_without_gradients_in_training_mode_are_one_too(loop, monitor, gpu):
    with ZeusAccelerate(loop.accelerator, monitor) as energy:
        for _ in loop.train(6):
            with torch.no_grad():
                for _ in range(4):
                    loop.model(ONE)
    assert joules(energy, Activity.EVALUATION) == pytest.approx(passes_joules(gpu, 24), rel=0.05)
    assert energy.summary.detected_evaluations == 6


def test_an_evaluation_between_the_batches_of_a_step_is_one(tmp_path, monitor, gpu):
    loop = Loop(tmp_path, gpu, gradient_accumulation_steps=4)
    with ZeusAccelerate(loop.accelerator, monitor) as energy:
        for index, (inputs, targets) in enumerate(loop.batches):
            loop.train_batch(inputs, targets)
            if index % 4 == 1:
                evaluate(loop.model)
    assert joules(energy, Activity.EVALUATION) == pytest.approx(passes_joules(gpu, 32), rel=0.05)
    assert joules(energy, Activity.STEPS) == pytest.approx(passes_joules(gpu, 16, 16), rel=0.03)
    assert (energy.summary.steps, energy.summary.detected_evaluations) == (4, 4)


def test_one_that_is_announced_counts_once(loop, monitor, gpu):
    with ZeusAccelerate(loop.accelerator, monitor) as energy:
        loop.train_and_log(3)
        with energy.evaluation():
            evaluate(loop.model)
        evaluate(loop.model)
        loop.accelerator.save_state(loop.folder / "checkpoint")
    assert joules(energy, Activity.EVALUATION) == pytest.approx(passes_joules(gpu, 16), rel=0.05)
    assert energy.summary.detected_evaluations == 1


# Passes that are no evaluation.


def step_with(loop, *actions):
    """One step of two batches: before, between and after the passes of the first one, something happens."""
    before, between, after = actions
    for inputs, targets in (next(iter(loop.batches)), next(iter(loop.batches))):
        before()
        loss = torch.nn.functional.mse_loss(loop.model(inputs), targets)
        between()
        loop.accelerator.backward(loss)
        after()
        before = between = after = nothing
    loop.optimizer.step()
    loop.optimizer.zero_grad()


def nothing():
    pass


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_reference_model_does_not_turn_a_step_into_an_evaluation(loop, monitor, gpu, place, is_prepared):
    reference = torch.nn.Linear(3, 1).eval()
    SimulatedCompute(reference, gpu, FORWARD, BACKWARD)
    if is_prepared:
        reference = loop.accelerator.prepare_model(reference, evaluation_mode=True)

    @torch.no_grad()
    def refer():
        reference(ONE)

    with ZeusAccelerate(loop.accelerator, monitor) as energy:
        for _ in range(5):
            step_with(loop, *[refer if index == place else nothing for index in range(3)])
    assert joules(energy, Activity.EVALUATION) == 0
    assert joules(energy, Activity.STEPS) + joules(energy, Activity.IDLE) == pytest.approx(
        passes_joules(gpu, 15, 10), rel=0.03
    )
    assert (energy.summary.steps, energy.summary.detected_evaluations) == (5, 0)


def test_a_pass_between_forward_and_backward_is_part_of_the_step(loop, monitor, gpu):
    def look():
        evaluate(loop.model, passes=1)

    with ZeusAccelerate(loop.accelerator, monitor) as energy:
        for _ in range(5):
            step_with(loop, nothing, look, nothing)
    assert joules(energy, Activity.EVALUATION) == 0
    assert joules(energy, Activity.STEPS) == pytest.approx(passes_joules(gpu, 15, 10), rel=0.03)


def test_frozen_parts_change_nothing(tmp_path, monitor, gpu):
    loop = Loop(tmp_path, None)
    norm = torch.nn.BatchNorm1d(3)
    model = torch.nn.Sequential(norm, torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop.accelerator._models.clear(), loop.accelerator._optimizers.clear()
    loop.model, loop.optimizer = loop.accelerator.prepare(model, optimizer)
    with ZeusAccelerate(loop.accelerator, monitor) as energy:
        for _ in loop.train(5):
            loop.model.train()
            norm.eval()
            norm(torch.ones(2, 3))
    assert (energy.summary.steps, energy.summary.detected_evaluations) == (5, 0)


def test_a_model_that_is_trained_in_evaluation_mode_is_trained(loop, monitor, gpu):
    loop.model.eval()
    with ZeusAccelerate(loop.accelerator, monitor) as energy:
        loop.train_and_log(10)
        evaluate(loop.model)
        loop.model.eval()
        loop.train_and_log(10)
    assert joules(energy, Activity.STEPS) == pytest.approx(passes_joules(gpu, 19, 20), rel=0.03)
    assert energy.summary.detected_evaluations == 1


def test_a_pass_without_gradients_before_each_step_becomes_part_of_it(loop, monitor, gpu):
    """An adapted model as its own reference, or the generator of a pair."""

    @torch.no_grad()
    def refer():
        loop.model(ONE)

    with ZeusAccelerate(loop.accelerator, monitor) as energy:
        for _ in range(10):
            step_with(loop, refer, nothing, nothing)
        evaluate(loop.model)
    assert energy.summary.detected_evaluations == 3
    assert joules(energy, Activity.EVALUATION) == pytest.approx(passes_joules(gpu, 10), rel=0.1)


# The search, and what is left behind.


@pytest.mark.parametrize("accumulation", [1, 2])
def test_no_trial_holds_an_evaluation(tmp_path, monitor, gpu, accumulation):
    loop = Loop(tmp_path, gpu, gradient_accumulation_steps=accumulation)
    arguments = {"warmup_steps": 2, "profile_steps": 10}
    with PowerLimitOptimizer(loop.accelerator, monitor, Energy(), **arguments, search=GridSearch) as search:
        for step in loop.train(200):
            if step % 7 == 0:
                evaluate(loop.model)
    assert len(search.optimizer.trials) == 11
    for trial in search.optimizer.trials:
        points = [gpu.preset.physics.operating_point(work, trial.setting) for work in (FORWARD, BACKWARD)]
        assert trial.seconds_per_step == pytest.approx(accumulation * sum(point.seconds for point in points), rel=1e-9)
    assert search.detected_evaluations == 28


def test_a_trial_is_not_measured_in_half_steps(tmp_path, monitor, gpu):
    loop = Loop(tmp_path, gpu, gradient_accumulation_steps=4)
    arguments = {"warmup_steps": 2, "profile_steps": 10}
    with PowerLimitOptimizer(loop.accelerator, monitor, Energy(), **arguments, search=GridSearch) as search:
        for index in range(800):
            loop.train_batch(torch.ones(4, 3), torch.ones(4, 1))
            if index % 50 == 1:
                evaluate(loop.model)
    assert len(search.optimizer.trials) >= 8
    for trial in search.optimizer.trials:
        points = [gpu.preset.physics.operating_point(work, trial.setting) for work in (FORWARD, BACKWARD)]
        assert trial.seconds_per_step == pytest.approx(4 * sum(point.seconds for point in points), rel=1e-9)


def test_copies_of_a_model_report_nothing(tmp_path, monitor):
    loop = Loop(tmp_path, None)
    state = loop.model.state_dict().keys()
    with ZeusAccelerate(loop.accelerator, monitor) as energy:
        loop.train_and_log(2)
        assert loop.model.state_dict().keys() == state
        for copied in (copy.deepcopy(loop.model), pickle.loads(pickle.dumps(loop.model))):
            hooks = [*copied._forward_pre_hooks.values()]
            assert not any(type(hook).__module__.startswith("zeus") for hook in hooks)
            evaluate(copied)
            assert torch.equal(copied(ONE), loop.model(ONE))
    assert energy.summary.detected_evaluations == 0


def test_nothing_is_left_on_models(tmp_path, monitor):
    loop = Loop(tmp_path, None)

    def interrupted():
        with ZeusAccelerate(loop.accelerator, monitor):
            loop.train_and_log(2)
            assert loop.model._forward_pre_hooks, "it is watched"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not loop.model._forward_pre_hooks


def test_losses_are_identical_to_the_last_bit_and_torch_is_unchanged(tmp_path, monitor, gpu):
    untouched = parts_of_torch()

    def trained(loop):
        for step in loop.train(60):
            if step % 20 == 0:
                evaluate(loop.model)
                assert parts_of_torch() == untouched
        return loop.losses

    plain = trained(Loop(tmp_path / "plain", None))
    with ZeusAccelerate((loop := Loop(tmp_path, gpu)).accelerator, monitor) as energy:
        assert trained(loop) == plain
    account = energy.summary.account
    assert energy.summary.detected_evaluations == 3
    assert sum(tally.energy_joules for tally in account.activities.values()) == account.total.energy_joules


def test_passes_of_another_thread_are_none_of_the_loop(loop, monitor):
    with ZeusAccelerate(loop.accelerator, monitor) as energy:
        loop.train_and_log(2)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(evaluate, loop.model).result()
        loop.train_and_log(2)
    assert (energy.summary.steps, energy.summary.detected_evaluations) == (4, 0)


def test_a_model_that_accelerate_compiles_is_trained_as_before(tmp_path, monitor, gpu):
    loop = Loop(tmp_path, None, dynamo_backend="eager")
    assert isinstance(loop.model, torch._dynamo.eval_frame.OptimizedModule)
    loop.model._orig_mod.register_forward_hook(lambda *_: None)
    torch._dynamo.utils.counters.clear()
    loop.train_and_log(2)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs > 0
    with ZeusAccelerate(loop.accelerator, monitor) as energy:
        for _ in loop.train(4):
            gpu.execute(Work(0.3, 400.0, 0.9, 0.5))
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs, "nothing is compiled again"
        evaluate(loop.model)
    assert not torch._dynamo.utils.counters["graph_break"]
    assert (energy.summary.steps, energy.summary.detected_evaluations) == (4, 1)
    assert not loop.model._forward_pre_hooks


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(3, 1)

    def forward(self, batch):
        return self.head(batch) + 1


def test_models_that_a_loop_compiles_hold_nothing_of_ours(tmp_path, monitor):
    """In place, before and after; and a function around one, in one graph."""
    loop = Loop(tmp_path, None)
    before, after = Net(), Net()
    optimizer = torch.optim.SGD([*before.parameters(), *after.parameters()], lr=0.1)
    loop.accelerator._models.clear(), loop.accelerator._optimizers.clear()
    before, after, _ = loop.accelerator.prepare(before, after, optimizer)
    before.compile(backend="eager", fullgraph=True)
    before(ONE)
    counters = torch._dynamo.utils.counters
    with ZeusAccelerate(loop.accelerator, monitor):
        counters.clear()
        before(ONE)
        assert not counters["stats"], "it is not compiled again"
        after.compile(backend="eager", fullgraph=True)
        after(ONE)
        torch.compile(lambda batch: before(batch) + after(batch), backend="eager", fullgraph=True)(ONE)
        graphs = counters["stats"]["unique_graphs"]
    before(ONE), after(ONE)
    assert counters["stats"]["unique_graphs"] == graphs, "nor after the end"
    assert not counters["graph_break"]


def test_passes_in_evaluation_mode_never_become_a_habit():
    rules = PassRules()
    for _ in range(5):
        assert rules.kind_of(is_in_training_mode=False, has_gradients=False) is PassKind.EVALUATION
        assert rules.kind_of(is_in_training_mode=True, has_gradients=True) is PassKind.TRAINING
        assert rules.kind_of(is_in_training_mode=False, has_gradients=False) is PassKind.PART
        assert not rules.on_backward()
        rules.on_step_end()
