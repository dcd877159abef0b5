"""Evaluations that a plain loop does not announce, on a simulated GPU in virtual time."""

import contextlib
import copy
import gc
import io
import pickle
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from zeus_core.adapters._forward_taps import ForwardTaps
from zeus_core.device import Work
from zeus_core.events import Activity
from zeus_core.optimizer import Energy, GlobalPowerLimitOptimizer
from zeus_core.pytorch import SimulatedCompute
from zeus_core.search import GridSearch
from zeus_core.training import TrainingEnergy

FORWARD = Work(0.3, 484.9, 0.938, 0.744)
BACKWARD = Work(0.6, 484.9, 0.938, 0.744)
BATCH = torch.ones(2, 3)


class Model(torch.nn.Module):
    """With a part that its owner may freeze."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)
        self.head = torch.nn.Linear(3, 1)

    def forward(self, batch):
        return self.head(self.norm(batch)).square().mean()


@pytest.fixture
def model(gpu):
    model = Model()
    SimulatedCompute(model, gpu, FORWARD, BACKWARD)
    return model


def step(energy, model, passes=1):
    with energy.step(samples=len(BATCH)):
        for _ in range(passes):
            model(BATCH).backward()


def evaluate(model, gradients=torch.no_grad, passes=8):
    model.eval()
    with gradients():
        for _ in range(passes):
            model(BATCH)
    model.train()


def joules(energy, activity):
    activities = energy.summary.account.activities
    return activities[activity].energy_joules if activity in activities else 0.0


def passes_joules(gpu, forward, backward=0):
    points = [gpu.preset.physics.operating_point(work, 350).energy_joules for work in (FORWARD, BACKWARD)]
    return forward * points[0] + backward * points[1]


@pytest.mark.parametrize("gradients", [torch.no_grad, torch.inference_mode, contextlib.nullcontext])
@pytest.mark.parametrize("when", ["between steps", "at the end of an epoch", "at the end"])
def test_an_evaluation_that_is_not_announced_is_one(monitor, gpu, model, gradients, when):
    with TrainingEnergy(monitor) as energy:
        for index in range(12):
            step(energy, model, passes=2)
            if when == "between steps" and index % 5 == 4:
                evaluate(model, gradients)
            if when == "at the end of an epoch" and index % 6 == 5:
                energy.on_epoch_end()
                evaluate(model, gradients)
                energy.on_epoch_begin()
        if when == "at the end":
            evaluate(model, gradients)
            evaluate(model, gradients)
    assert joules(energy, Activity.EVALUATION) == pytest.approx(passes_joules(gpu, 16), rel=0.05)
    assert joules(energy, Activity.STEPS) == pytest.approx(passes_joules(gpu, 24, 24), rel=0.02)
    assert energy.summary.detected_evaluations == 2
    assert "evaluations detected by their forward passes: 2" in str(energy.summary)


def test_passes_without_gradients_are_an_evaluation_in_training_mode_too(monitor, gpu, model):
    with TrainingEnergy(monitor) as energy:
        model.train()
        step(energy, model)
        with torch.no_grad():
            for _ in range(8):
                model(BATCH)
        step(energy, model)
    assert joules(energy, Activity.EVALUATION) == pytest.approx(passes_joules(gpu, 8), rel=0.05)
    assert energy.summary.detected_evaluations == 1


@pytest.mark.parametrize("scope", [torch.no_grad, torch.inference_mode])
def test_a_loop_that_switches_no_mode_is_understood_too(monitor, gpu, model, scope):
    metric = torch.nn.Linear(1, 1).requires_grad_(False)
    average = torch.optim.swa_utils.AveragedModel(torch.nn.Linear(1, 1))

    @scope()
    def evaluate():
        with torch.no_grad():
            metric(torch.ones(1))
        for _ in range(8):
            model(BATCH)

    torch._dynamo.utils.counters.clear()  # of other tests, which compile
    hooks = torch.nn.modules.module._global_forward_pre_hooks
    with TrainingEnergy(monitor) as energy:
        for _ in range(3):
            step(energy, model)
            with torch.no_grad():
                average.update_parameters(torch.nn.Linear(1, 1))
            assert not hooks
            evaluate()
            assert not hooks
    assert joules(energy, Activity.EVALUATION) == pytest.approx(passes_joules(gpu, 24), rel=0.05)
    assert energy.summary.detected_evaluations == 3


def test_an_evaluation_that_is_announced_counts_once(monitor, gpu, model):
    with TrainingEnergy(monitor) as energy:
        step(energy, model)
        with energy.during(Activity.EVALUATION):
            evaluate(model)
        evaluate(model)
        with energy.during(Activity.CHECKPOINT):
            model(BATCH)
    assert joules(energy, Activity.EVALUATION) == pytest.approx(passes_joules(gpu, 16), rel=0.05)
    assert joules(energy, Activity.CHECKPOINT) == pytest.approx(passes_joules(gpu, 1), rel=0.3)
    assert energy.summary.detected_evaluations == 1


def test_what_happens_within_a_step_is_the_step(monitor, gpu, model):
    """Reference models, frozen parts, text generated for the step."""
    reference = Model().requires_grad_(False)
    with TrainingEnergy(monitor) as energy:
        for _ in range(5):
            model.train()
            model.norm.eval()
            reference.eval()
            with energy.step():
                with torch.no_grad():
                    reference(BATCH)
                evaluate(model, passes=2)
                model(BATCH).backward()
    assert joules(energy, Activity.EVALUATION) == 0
    assert energy.summary.detected_evaluations == 0


def test_a_loop_that_does_not_report_where_steps_begin_is_left_alone(monitor, model):
    with TrainingEnergy(monitor) as energy:
        for _ in range(3):
            model.train()
            model.norm.eval()
            model(BATCH).backward()
            energy.on_step_end()
    assert energy.summary.detected_evaluations == 0


def test_detection_can_be_declined(monitor, model):
    with TrainingEnergy(monitor, detects_evaluations=False) as energy:
        step(energy, model)
        evaluate(model)
    assert joules(energy, Activity.EVALUATION) == 0


def test_a_search_measures_no_evaluation(monitor, gpu, model):
    search = GlobalPowerLimitOptimizer(
        monitor, Energy(), warmup_steps=1, profile_steps=8, pl_step=50, search=GridSearch
    )
    with TrainingEnergy(monitor, search) as energy:
        for index in range(120):
            step(energy, model)
            if index % 7 == 6:
                evaluate(model)
    assert len(search.trials) == 6
    for trial in search.trials:
        points = [gpu.preset.physics.operating_point(work, trial.setting) for work in (FORWARD, BACKWARD)]
        assert trial.seconds_per_step == pytest.approx(sum(point.seconds for point in points), rel=1e-9)


def test_nothing_is_left_on_models_and_torch(monitor, model):
    train, enter = torch.nn.Module.train, torch.no_grad.__enter__
    found = dict(vars(model))

    def interrupted():
        with TrainingEnergy(monitor) as energy:
            step(energy, model)
            evaluate(model)
            assert vars(model).keys() > found.keys(), "it is watched"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert vars(model).keys() == found.keys()
    assert (torch.nn.Module.train, torch.no_grad.__enter__) == (train, enter)
    assert not torch.nn.modules.module._global_forward_pre_hooks


# The taps.


class Listener:
    def __init__(self):
        self.passes, self.modes = [], []

    def on_pass(self, module, has_gradients):
        self.passes.append((module, has_gradients))

    def on_mode(self, module):
        self.modes.append((module, module.training))


@pytest.fixture
def listener():
    return Listener()


@pytest.fixture
def taps(listener):
    taps = ForwardTaps(listener)
    yield taps
    taps.remove()


def test_passes_and_modes_are_reported_once(listener, taps):
    model = Model()
    taps.add(model), taps.add(model), taps.add(model.head)
    model.eval()
    with torch.inference_mode():
        model(BATCH)
    model.train()
    model(BATCH)
    taps.remove()
    model.eval()(BATCH)
    assert listener.passes == [(model, False), (model, True)]
    assert listener.modes == [(model, False), (model, True)]
    assert "_compiled_call_impl" not in vars(model)


def saved_and_loaded(model):
    file = io.BytesIO()
    torch.save(model, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, copy.copy, lambda model: pickle.loads(pickle.dumps(model)), saved_and_loaded],
    ids=["deepcopy", "copy", "pickle", "torch.save"],
)
def test_copies_of_a_tapped_module_are_not_tapped(taps, copied):
    model = Model()
    before, state = vars(model).keys(), model.state_dict().keys()
    found = set(before)
    taps.add(model)
    assert vars(copied(model)).keys() == found
    assert model.state_dict().keys() == state
    attributes = dict(vars(model))  # as DistributedDataParallel pickles itself
    assert pickle.loads(pickle.dumps(attributes))["_compiled_call_impl"] is None
    assert copy.deepcopy(attributes)["_compiled_call_impl"] is None


def test_a_tapped_module_compiles_as_before(listener, taps):
    model, compiled_in_place = Model(), Model()
    compiled_in_place.compile(backend="eager", fullgraph=True)
    taps.add(model), taps.add(compiled_in_place)
    around = torch.compile(lambda batch: model(batch) + 1, backend="eager", fullgraph=True)
    assert around(BATCH) == model(BATCH) + 1
    compiled_in_place(BATCH)

    @torch.compile(backend="eager", fullgraph=True)
    def without_gradients(batch):
        with torch.no_grad():
            return batch + 1

    assert not without_gradients(torch.ones(1, requires_grad=True)).requires_grad
    assert [module for module, _ in listener.passes] == [model, compiled_in_place]
    torch.compile(model, backend="eager", fullgraph=True)(BATCH)
    compiled = vars(compiled_in_place)["_compiled_call_impl"]._earlier
    taps.remove()
    assert vars(compiled_in_place)["_compiled_call_impl"] is compiled


SCOPES = [torch.no_grad, torch.inference_mode]


def python_calls(action):
    """The calls of Python functions that an action makes, which take its time on any machine."""
    calls = []
    sys.setprofile(lambda frame, event, argument: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("scope", SCOPES)
def test_a_scope_within_a_step_makes_two_calls_more(taps, listener, scope):
    def enter_and_leave():
        with scope():
            pass

    taps.want_any_pass(False)
    with_taps = len(python_calls(enter_and_leave))
    taps.remove()
    assert with_taps == len(python_calls(enter_and_leave)) + 2


@pytest.mark.parametrize("is_wanted", [False, True])
@pytest.mark.parametrize("scope", SCOPES)
def test_scopes_do_the_same_as_before(taps, scope, is_wanted):
    taps.want_any_pass(is_wanted)
    modes = []

    @scope()
    def decorated(depth=0):
        modes.append(torch.is_grad_enabled())
        return depth if depth == 2 else decorated(depth + 1)

    @scope()
    def generated():
        modes.append(torch.is_grad_enabled())
        yield 1
        modes.append(torch.is_grad_enabled())

    assert decorated() == 2
    for _ in generated():
        assert torch.is_grad_enabled(), "outside of a generator that is suspended"
    with pytest.raises(KeyError), scope():
        raise KeyError
    with ThreadPoolExecutor(1) as pool, scope():
        assert pool.submit(torch.is_grad_enabled).result(), "another thread has gradients"
        assert pool.submit(decorated).result() == 2
        modes.append(torch.is_grad_enabled())
    assert isinstance(pickle.loads(pickle.dumps(scope())), scope)
    assert (modes, torch.is_grad_enabled()) == ([False] * 9, True)
    with torch.no_grad(), torch.enable_grad():
        assert torch.is_grad_enabled()
    taps.remove()
    assert decorated() == 2
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_a_module_tapped_twice_is_left_as_it_was_in_any_order(listener):
    for is_first_removed_first in (True, False):
        model, (first, second) = Model(), (ForwardTaps(listener), ForwardTaps(listener))
        first.add(model), second.add(model)
        model(BATCH)
        for taps in (first, second) if is_first_removed_first else (second, first):
            taps.remove()
        del listener.passes[:]
        model(BATCH)
        assert listener.passes == []


def test_copies_that_share_attributes_are_called_themselves(taps):
    """As those that DataParallel makes for its threads."""
    model = Model()
    taps.add(model)
    replica = model._replicate_for_data_parallel()
    replica.head = torch.nn.Linear(3, 7)
    replica.forward = lambda batch: replica.head(batch)
    with ThreadPoolExecutor(1) as executor:
        assert executor.submit(replica, BATCH).result().shape == (2, 7)


def test_a_tap_keeps_nothing_alive(listener):
    train = torch.nn.Module.train
    taps, model = ForwardTaps(listener), Model()
    taps.add(model)
    gone = weakref.ref(model)
    gc.disable()
    try:
        del model
        assert gone() is None
        assert torch.nn.Module.train is not train
        del taps
        assert torch.nn.Module.train is train
    finally:
        gc.enable()
