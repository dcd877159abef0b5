"""Loops that report nothing, by the steps of their optimizers, on a simulated GPU in virtual time."""

import os
import sys
import threading
from types import ModuleType, SimpleNamespace

import pytest
import torch

from tests.support.result_boxes import boxes, rows
from zeus_core.device import Work
from zeus_core.errors import UsageError
from zeus_core.events import Activity
from zeus_core.optimizer import GlobalPowerLimitOptimizer, MaxSlowdownConstraint
from zeus_core.pytorch import SimulatedCompute, TorchtuneLogger, follow_optimizers, follow_ultralytics
from zeus_core.pytorch.followed.followed_optimizers import followed_energy, stop_following
from zeus_core.search import GridSearch
from zeus_core.training import TrainingEnergy
from zeus_core.units import duration_text, energy_text

FORWARD = Work(0.3, 484.9, 0.938, 0.744)
BACKWARD = Work(0.6, 484.9, 0.938, 0.744)


class Loop:
    """A loop in plain PyTorch."""

    def __init__(self, gpu, make=torch.optim.SGD, **options):
        torch.manual_seed(0)
        self.gpu = gpu
        self.model = torch.nn.Linear(3, 1)
        self.optimizer = make(self.model.parameters(), lr=0.01, **options)
        self.losses = []
        SimulatedCompute(self.model, gpu, FORWARD, BACKWARD)

    def backward(self):
        loss = (self.model(torch.randn(2, 3)) - 1).square().mean()
        loss.backward()
        self.losses.append(loss.item())

    def train(self, steps):
        for _ in range(steps):
            self.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    @torch.no_grad()
    def evaluate(self, passes=8):
        self.model.eval()
        for _ in range(passes):
            self.model(torch.ones(2, 3))
        self.model.train()


@pytest.fixture
def followed(monitor, monkeypatch):
    monkeypatch.setattr("zeus_core.monitor.no_monitor.training_monitor", lambda *_: monitor)
    monkeypatch.delenv("ZEUS_SAVE", raising=False)
    follow_optimizers()
    yield
    stop_following()


@pytest.fixture
def loop(gpu, followed):
    return Loop(gpu)


def ended(capsys):
    """The account, and the lines of the box at the end."""
    energy = followed_energy()
    stop_following()
    return energy.summary, rows("".join(boxes(capsys)))


def joules(gpu, forward, backward=0):
    points = [gpu.preset.physics.operating_point(work, 350).energy_joules for work in (FORWARD, BACKWARD)]
    return forward * points[0] + backward * points[1]


def counted(take_steps):
    """The steps counted while a function takes some."""
    take_steps()
    energy = followed_energy()
    stop_following()
    follow_optimizers()
    return 0 if energy is None else energy.summary.steps


def test_a_loop_is_measured_from_its_first_step_on(loop, gpu, capsys):
    loop.train(40)
    summary, box = ended(capsys)
    assert summary.steps == 40
    # The passes of the first step were before it.
    assert summary.account.training.energy_joules == pytest.approx(joules(gpu, 39, 39), rel=0.01)
    assert box["steps"].startswith("40: ")
    assert box["steps"].endswith(" s each")


def test_losses_are_those_of_a_loop_that_nobody_follows(loop, gpu):
    loop.train(20)
    stop_following()
    plain = Loop(gpu)
    plain.train(20)
    assert plain.losses == loop.losses


def test_evaluations_are_between_steps_and_the_passes_after_them_are_not(loop, gpu, capsys):
    for _ in range(5):
        loop.train(20)
        loop.evaluate()
    summary, _ = ended(capsys)
    between, steps = (summary.account.activities[activity] for activity in (Activity.BETWEEN_STEPS, Activity.STEPS))
    assert between.energy_joules == pytest.approx(joules(gpu, 40), rel=0.02)  # the last one, too, is no idling
    assert steps.energy_joules == pytest.approx(joules(gpu, 99, 99), rel=0.02)
    total = sum(tally.energy_joules for tally in summary.account.activities.values())
    assert total == summary.account.total.energy_joules


def test_minutes_between_two_steps_are_in_no_step(loop, gpu, capsys):
    loop.train(20)
    gpu.execute(Work(300.0, 200.0))
    loop.train(20)
    summary, _ = ended(capsys)
    between = summary.account.activities[Activity.BETWEEN_STEPS]
    assert between.energy_joules == pytest.approx(300 * 200, rel=0.02)
    assert summary.account.activities[Activity.STEPS].energy_joules == pytest.approx(joules(gpu, 39, 39), rel=0.03)


def test_a_step_after_gradients_of_several_batches_is_one(loop):
    def train():
        for number in range(12):
            loop.backward()
            if number % 4 == 3:
                loop.optimizer.step()

    assert counted(train) == 3


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}, {}], ids=str)
def test_each_kind_of_a_step_is_one(gpu, followed, options):
    loop = Loop(gpu, torch.optim.Adam, **options)
    assert counted(lambda: loop.train(7)) == 7


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_a_scaler_skips_is_none(gpu, followed, fused):
    loop = Loop(gpu, torch.optim.Adam, fused=fused)
    scaler = torch.amp.GradScaler("cpu")

    def train():
        for number in range(10):
            loss = loop.model(torch.randn(2, 3)).square().mean() * (float("inf") if number % 5 == 2 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(loop.optimizer)
            scaler.update()
            loop.optimizer.zero_grad()

    assert counted(train) == 8


class Lookahead(torch.optim.Optimizer):
    """Steps another optimizer twice in each of its own steps."""

    def __init__(self, optimizer):
        super().__init__(optimizer.param_groups, {})
        self.inner = optimizer

    def step(self, closure=None):
        self.inner.step()
        self.inner.step()


class Facade:
    """As that of accelerate: an optimizer that torch's hooks do not see."""

    def __init__(self, optimizer):
        self.inner = optimizer

    def step(self):
        self.inner.step()


@pytest.mark.parametrize("wrapper", [Lookahead, Facade, lambda optimizer: Lookahead(Lookahead(optimizer))])
def test_a_step_of_a_wrapper_is_one(loop, wrapper):
    outer = wrapper(loop.optimizer)

    def train():
        for _ in range(6):
            loop.backward()
            outer.step()

    assert counted(train) == 6


def test_a_step_that_raises_is_none_and_hides_no_other(loop):
    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            if len(loop.losses) == 3:
                raise ValueError("out of memory")
            super().step()

    optimizer = Failing(loop.model.parameters())

    def train():
        for _ in range(6):
            loop.backward()
            try:
                optimizer.step()
            except ValueError:
                continue

    assert counted(train) == 5


def test_closures_that_step_again_and_again_are_one_step(gpu, followed):
    loop = Loop(gpu, torch.optim.LBFGS)

    def closure():
        loop.optimizer.zero_grad()
        loss = loop.model(torch.ones(2, 3)).square().mean()
        loss.backward()
        return loss

    assert counted(lambda: [loop.optimizer.step(closure) for _ in range(4)]) == 4


def test_of_several_optimizers_the_one_that_steps_most_seldom_counts(loop, gpu, capsys):
    critic = torch.optim.Adam(torch.nn.Linear(2, 2).parameters())
    for number in range(60):
        loop.backward()
        critic.step()
        if number % 3 == 2:
            loop.optimizer.step()
    _, box = ended(capsys)
    assert box["steps"].startswith("20: ")
    assert box["a step is"] == "one of SGD, that of 2 optimizers which steps most seldom"


def test_two_optimizers_that_step_in_turn_are_one_step(loop):
    other = torch.optim.Adam(torch.nn.Linear(2, 2).parameters())

    def train():
        for _ in range(50):
            loop.backward()
            loop.optimizer.step()
            other.step()

    assert counted(train) == 50


@pytest.mark.parametrize("inner_steps", [1, 2, 3, 5])
def test_optimizers_made_anew_for_inner_loops_are_no_steps(loop, inner_steps, capsys):
    for _ in range(40):
        inner = torch.optim.Adam(torch.nn.Linear(2, 2).parameters())
        for _ in range(inner_steps):
            loop.backward()
            inner.step()
        loop.optimizer.step()
    assert ended(capsys)[1]["steps"].startswith("40: ")


def test_trainings_one_after_another_are_counted_in_full(gpu, followed, capsys):
    for _ in range(3):
        Loop(gpu).train(30)
    _, box = ended(capsys)
    assert box["steps"].startswith("90: ")
    assert "a step is" not in box


def phases(*lengths):
    """Optimizers that each step so often in a row."""
    return [number for number, length in enumerate(lengths) for _ in range(length)]


@pytest.mark.parametrize(
    ("order", "steps"),
    [
        (phases(300, 40), 340),  # pretraining, then fine-tuning with a new optimizer
        (phases(30, 5), 35),
        ((phases(20) + [1] * 40) * 10, 600),  # the PPO of spinning-up
        ((phases(20) + [1] * 5) * 4, 100),
        (phases(*[50] * 5), 250),  # an ensemble
        (phases(*[4] * 5), 20),
        (phases(*[1] * 12) * 50, 50),  # one for each parameter, as in optimizers within the backward pass
        (([0] * 5 + [1]) * 40, 40),  # a GAN, whose critic comes first
        (([1] + [0] * 5) * 40, 40),
        (([0] * 5 + [1]) * 40 + [2] * 60, 100),
        ([0] * 40 + [1, 2] * 30, 70),
    ],
)
def test_the_steps_are_those_of_the_program(loop, order, steps, capsys):
    optimizers = [torch.optim.SGD(torch.nn.Linear(1, 1).parameters()) for _ in range(max(order) + 1)]
    for number in order:
        optimizers[number].step()
    assert ended(capsys)[1]["steps"].startswith(f"{steps}: ")


def test_the_steps_of_several_gans_add_up(followed, gpu, capsys):
    for _ in range(3):
        critic, generator = (torch.optim.SGD(torch.nn.Linear(1, 1).parameters()) for _ in range(2))
        for _ in range(8):
            for optimizer in (critic, critic, generator):
                optimizer.step()
        del critic, generator, optimizer
    assert ended(capsys)[1]["steps"].startswith("24: ")


def test_few_long_steps_have_the_time_of_those_that_were_seen_whole(loop, gpu, capsys):
    loop.train(4)
    box = ended(capsys)[1]
    each = joules(gpu, 1, 1)
    seconds = sum(gpu.preset.physics.operating_point(work, 350).seconds for work in (FORWARD, BACKWARD))
    assert box["steps"] == f"4: {energy_text(each)} and {duration_text(seconds)} each"
    assert box["first step"].startswith("its end alone was seen: ")


def test_an_optimizer_that_steps_no_more_leaves_its_place_to_others(loop):
    once = torch.optim.Adam(torch.nn.Linear(2, 2).parameters())

    def train():
        loop.train(10)
        once.step()
        loop.train(200)

    assert 100 < counted(train) <= 211


def in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def test_steps_of_another_thread_are_not_those_of_the_loop_and_the_box_says_so(loop, capsys):
    other = torch.optim.Adam(torch.nn.Linear(2, 2).parameters())
    loop.train(3)
    in_thread(other.step)
    loop.train(3)
    box = ended(capsys)[1]
    assert box["steps"].startswith("6: ")
    assert box["threads"] == "1 more took steps, which are not counted; their energy is in these"


def test_threads_that_end_while_the_first_step_is_prepared_are_named_too(loop, monitor, monkeypatch, capsys):
    other = torch.optim.Adam(torch.nn.Linear(2, 2).parameters())

    def prepared(*_):
        in_thread(other.step)
        return monitor

    monkeypatch.setattr("zeus_core.monitor.no_monitor.training_monitor", prepared)
    loop.train(3)
    assert ended(capsys)[1]["threads"] == "1 more took steps, which are not counted; their energy is in these"


def test_threads_one_after_another_are_counted_in_full(loop, capsys):
    for _ in range(3):
        in_thread(lambda: loop.train(5))
    box = ended(capsys)[1]
    assert box["steps"].startswith("15: ")
    assert "threads" not in box


class Plain(torch.optim.Optimizer):
    """One whose step may be part of a graph: those of torch break it."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    def step(self, closure=None):
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.sub_(parameter.grad, alpha=self.param_groups[0]["lr"])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("make", "fullgraph"), [(torch.optim.Adam, False), (Plain, True)])
def test_a_compiled_step_is_one_and_a_whole_graph_stays_one(gpu, followed, make, fullgraph):
    loop = Loop(gpu, make)
    torch.compiler.reset()
    step = torch.compile(lambda: loop.optimizer.step(), backend="eager", fullgraph=fullgraph)

    def train():
        for _ in range(12):
            loop.backward()
            step()

    assert counted(train) == (0 if fullgraph else 12)


def test_a_training_that_measures_itself_is_left_alone(loop, monitor, capsys):
    with TrainingEnergy(monitor, quiet=True) as energy:
        loop.train(5)
        assert followed_energy() is None
    loop.train(5)
    assert followed_energy().summary.not_measured is not None
    assert energy.summary.not_measured is None
    with TrainingEnergy(monitor, quiet=True):
        loop.train(5)
    assert followed_energy() is None
    assert rows("".join(boxes(capsys)))["steps"].startswith("5: ")


def test_a_search_runs_on_followed_steps_and_restores_the_limit(loop, gpu, capsys):
    stop_following()
    made = []

    def make(monitor):
        selector = MaxSlowdownConstraint(factor=1.2)
        made.append(GlobalPowerLimitOptimizer(monitor, selector, profile_steps=4, pl_step=50, search=GridSearch))
        return made[0]

    follow_optimizers(make)
    for _ in range(4):
        loop.train(30)
        loop.evaluate()
    assert made[0].chosen_limit_watts < 350
    assert gpu.read_power_limit_watts() == made[0].chosen_limit_watts
    stop_following()
    assert gpu.read_power_limit_watts() == 350
    trials = {trial.setting: trial for trial in made[0].trials}
    truth = gpu.preset.physics
    seconds = {
        limit: sum(truth.operating_point(work, limit).seconds for work in (FORWARD, BACKWARD)) for limit in trials
    }
    for limit, trial in trials.items():
        assert trial.measurement.time / trial.steps == pytest.approx(seconds[limit], rel=0.02)
    assert "power limit" in rows("".join(boxes(capsys)))


@pytest.mark.parametrize(("value", "searches"), [("10%", True), ("0.5 %", True), ("", False), ("-1%", False)])
def test_a_variable_asks_for_the_search(loop, monkeypatch, caplog, value, searches):
    monkeypatch.setenv("ZEUS_SAVE", value)
    loop.train(3)
    optimizer = followed_energy().optimizer
    assert (optimizer is not None) == searches
    assert [record.message for record in caplog.records if "ZEUS_SAVE" in record.message] == (
        ["nothing is saved: ZEUS_SAVE is '-1%'; it must be a slowdown from 0% to 100%, such as 10%"] * (value == "-1%")
    )


def test_a_search_that_cannot_be_made_costs_one_message_and_no_step(loop, caplog):
    def fail(monitor):
        raise ValueError("of the user")

    follow_optimizers(fail)
    loop.train(5)
    assert len(loop.losses) == 5
    assert [record.message for record in caplog.records if "of the user" in record.message] == [
        "loops of this process are followed no more; training continues: of the user"
    ]


def test_a_forked_child_leaves_the_loop_to_its_parent(loop, capsys):
    loop.train(5)
    child = os.fork()
    if child == 0:
        os._exit(followed_energy() is not None)
    assert os.waitpid(child, 0)[1] == 0
    loop.train(5)
    assert ended(capsys)[0].steps == 10


class Trainer:
    """The events of a trainer of ultralytics, in the order of its release 8.4."""

    def __init__(self, callbacks):
        self.callbacks = callbacks
        self.stop = False

    def run(self, *events):
        for event in events:
            for callback in self.callbacks[event]:
                callback(self)


def test_validations_and_saves_of_ultralytics_are_those_of_its_trainer(loop, gpu, monkeypatch, capsys):
    callbacks = {"on_train_epoch_end": [], "on_val_start": [], "on_val_end": [], "on_fit_epoch_end": [], "teardown": []}
    for name in ("ultralytics", "ultralytics.utils", "ultralytics.utils.callbacks"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, f"{name}.base", SimpleNamespace(default_callbacks=callbacks))
    follow_ultralytics()
    follow_ultralytics()
    trainer = Trainer(callbacks)
    trainer.run("on_val_start", "on_val_end")  # a validation of its own
    for epoch in range(3):
        loop.train(4)
        trainer.run("on_train_epoch_end", "on_val_start")
        loop.evaluate()
        trainer.run("on_val_end")
        gpu.execute(Work(10.0, 100.0))
        trainer.stop = epoch == 2
        trainer.run("on_fit_epoch_end")
    gpu.execute(Work(20.0, 100.0))  # the best weights
    trainer.run("on_val_start")
    loop.evaluate()
    trainer.run("on_val_end", "on_fit_epoch_end")
    energy = followed_energy()
    trainer.run("teardown")
    activities = energy.summary.account.activities
    assert followed_energy() is None
    assert activities[Activity.STEPS].energy_joules == pytest.approx(joules(gpu, 11, 11), rel=0.05)
    assert activities[Activity.EVALUATION].energy_joules == pytest.approx(joules(gpu, 4 * 8), rel=0.05)
    assert activities[Activity.CHECKPOINT].energy_joules == pytest.approx(50 * 100, rel=0.05)
    assert rows("".join(boxes(capsys)))["steps"].startswith("12: ")


def test_a_logger_of_torchtune_has_the_energy_beside_the_loss(loop, capsys):
    logged, closed = [], []
    inner = SimpleNamespace(
        log_dict=lambda payload, step: logged.append((step, payload)), close=lambda: closed.append(1), log_config=len
    )
    logger = TorchtuneLogger(inner)
    assert logger.log_config("four") == 4
    logger.log_dict({"loss": 2.0}, step=0)
    loop.train(6)
    logger.log_dict({"loss": 1.0}, step=6)
    logger.close()
    assert logged[0] == (0, {"loss": 2.0})
    assert (logged[1][0], logged[1][1]["loss"], closed) == (6, 1.0, [1])
    assert logged[1][1]["total_energy_j"] > 0
    assert rows("".join(boxes(capsys)))["steps"].startswith("6: ")


def test_what_makes_the_search_must_be_a_function():
    with pytest.raises(UsageError, match="optimizer is 3; it must be a function of a monitor"):
        follow_optimizers(3)
