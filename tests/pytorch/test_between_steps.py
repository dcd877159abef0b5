"""Evaluations that a plain loop does not announce, on a simulated GPU in virtual time."""

import itertools

import pytest
import torch

from tests.support.untouched_torch import parts_of_torch
from zeus_core.device import Work
from zeus_core.events import Activity
from zeus_core.optimizer import Energy, GlobalPowerLimitOptimizer
from zeus_core.pytorch import SimulatedCompute
from zeus_core.search import GridSearch
from zeus_core.training import TrainingEnergy

FORWARD = Work(0.3, 484.9, 0.938, 0.744)
BACKWARD = Work(0.6, 484.9, 0.938, 0.744)
BATCH = torch.ones(2, 3)
DATA_SECONDS = 0.05


class Loop:
    """A loop in plain PyTorch that reports its steps."""

    def __init__(self, gpu=None):
        torch.manual_seed(0)
        self.gpu = gpu
        self.model = torch.nn.Linear(3, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.losses = []
        if gpu is not None:
            SimulatedCompute(self.model, gpu, FORWARD, BACKWARD)

    def train_batch(self):
        loss = (self.model(torch.randn(2, 3)) - 1).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.item())

    def train(self, energy, steps, every=20):
        for step in range(1, steps + 1):
            with energy.step(samples=2):
                self.train_batch()
            self.gpu.wait(DATA_SECONDS)
            if step % every == 0:
                self.evaluate()

    @torch.no_grad()
    def evaluate(self, passes=8):
        self.model.eval()
        for _ in range(passes):
            self.model(BATCH)
        self.model.train()


@pytest.fixture
def loop(gpu, time_source):
    gpu.wait = time_source.advance
    return Loop(gpu)


def evaluation_seconds(gpu):
    return 8 * gpu.preset.physics.operating_point(FORWARD, 350).seconds


def passes_joules(gpu, forward, backward=0):
    points = [gpu.preset.physics.operating_point(work, 350).energy_joules for work in (FORWARD, BACKWARD)]
    return forward * points[0] + backward * points[1]


def test_an_evaluation_that_nothing_announced_is_in_no_step_and_named_once(monitor, gpu, loop, caplog):
    with TrainingEnergy(monitor) as energy:
        loop.train(energy, 100)
    account = energy.summary.account
    between, steps = account.activities[Activity.BETWEEN_STEPS], account.activities[Activity.STEPS]
    assert between.energy_joules == pytest.approx(passes_joules(gpu, 40), rel=0.05)
    assert steps.energy_joules == pytest.approx(passes_joules(gpu, 100, 100), rel=0.02)
    assert between.seconds == pytest.approx(5 * (evaluation_seconds(gpu) + DATA_SECONDS))
    assert sum(tally.energy_joules for tally in account.activities.values()) == account.total.energy_joules
    assert sum(tally.seconds for tally in account.activities.values()) == pytest.approx(account.total.seconds)
    told = [record.message for record in caplog.records if "Activity.EVALUATION" in record.message]
    assert len(told) == 1
    assert "with energy.during(Activity.EVALUATION):" in told[0]
    assert "between steps" in str(energy.summary)
    assert energy.summary.values()["train_energy_between_steps_j"] == between.energy_joules


def test_one_that_is_announced_is_an_evaluation(monitor, gpu, loop, caplog):
    with TrainingEnergy(monitor, quiet=True) as energy:
        for _ in range(3):
            loop.train(energy, 20, every=100)
            with energy.during(Activity.EVALUATION):
                loop.evaluate()
    assert Activity.BETWEEN_STEPS not in energy.summary.account.activities
    assert not caplog.records


@pytest.mark.parametrize("steps", [20, 60])
def test_logs_count_steps_alone(monitor, gpu, loop, steps):
    logged = []
    with TrainingEnergy(monitor, quiet=True) as energy:
        for _ in range(4):
            loop.train(energy, steps)
            logged.append(energy.log())
    for values in logged:
        assert values["energy_j"] == pytest.approx(passes_joules(gpu, steps, steps), rel=0.05)
    totals = [values["total_energy_j"] for values in logged]
    assert totals == sorted(totals)


def test_minutes_between_two_steps_are_in_no_step(monitor, gpu, loop):
    """Their energy is divided in the background, long before they end."""
    with TrainingEnergy(monitor, quiet=True) as energy:
        loop.train(energy, 20, every=1000)
        gpu.execute(Work(300.0, 200.0))
        loop.train(energy, 20, every=1000)
    account = energy.summary.account
    assert account.activities[Activity.BETWEEN_STEPS].energy_joules == pytest.approx(300 * 200, rel=0.01)
    assert account.activities[Activity.STEPS].energy_joules == pytest.approx(passes_joules(gpu, 40, 40), rel=0.02)


def test_evaluations_between_a_log_or_a_pause_and_a_step_are_seen(monitor, gpu, loop):
    with TrainingEnergy(monitor, quiet=True) as energy:
        loop.train(energy, 20, every=1000)
        energy.log()
        loop.evaluate()
        loop.train(energy, 20, every=1000)
        with energy.during(Activity.CHECKPOINT):
            gpu.execute(Work(1.0, 100.0))
        loop.evaluate()
        loop.train(energy, 20, every=1000)
    between = energy.summary.account.activities[Activity.BETWEEN_STEPS]
    assert between.seconds == pytest.approx(2 * evaluation_seconds(gpu))


def test_a_pause_within_a_step_hides_no_time_after_it(monitor, gpu):
    with TrainingEnergy(monitor, quiet=True) as energy:
        for number in range(1, 31):
            with energy.step():
                gpu.execute(FORWARD)
                if number == 20:
                    with energy.during(Activity.CHECKPOINT):
                        gpu.execute(Work(10.0, 100.0))
            if number == 20:
                gpu.execute(Work(5.0, 200.0))
    assert energy.summary.account.activities[Activity.BETWEEN_STEPS].seconds == pytest.approx(5.0)


def stalls(energy, gpu, pattern, steps=120):
    """Train with times between the steps that repeat."""
    for _, gap in zip(range(steps), itertools.cycle(pattern), strict=False):
        with energy.step():
            gpu.execute(FORWARD)
        gpu.wait(gap)


@pytest.mark.parametrize(
    "pattern",
    [[0.0], [2.0], [0.0] * 3 + [2.0], [0.0] * 5 + [2.0], [0.5, 0.4], [0.01] * 30 + [0.5]],
    ids=["none", "each step", "four loaders", "six loaders", "slow", "less than two steps"],
)
def test_stalls_of_a_loader_that_is_too_slow_belong_to_the_loop(monitor, gpu, time_source, pattern):
    gpu.wait = time_source.advance
    with TrainingEnergy(monitor, quiet=True) as energy:
        stalls(energy, gpu, pattern)
    between = energy.summary.account.activities.get(Activity.BETWEEN_STEPS)
    assert between is None or between.seconds <= 3 * max(pattern), "some, before they are a habit"


@pytest.mark.parametrize("every", [4, 5, 7])
def test_stalls_of_a_loader_belong_to_the_steps_of_a_search_alone(monitor, gpu, time_source, every):
    search = GlobalPowerLimitOptimizer(monitor, Energy(), 40, pl_step=100, search=GridSearch, quiet=True)
    for step in range(200):
        time_source.advance(2.0 if step % every == 0 else 0.002)
        search.on_step_begin()
        gpu.execute(FORWARD)
        search.on_step_end()
    assert not search._expects_interference
    search.close()


@pytest.mark.parametrize("reports", ["by itself", "through TrainingEnergy"])
def test_no_trial_holds_such_an_evaluation(monitor, gpu, loop, reports):
    search = GlobalPowerLimitOptimizer(
        monitor, Energy(), warmup_steps=1, profile_steps=30, pl_step=100, search=GridSearch, quiet=True
    )
    with TrainingEnergy(monitor, search if reports == "through TrainingEnergy" else None, quiet=True) as energy:
        observer = energy if reports == "through TrainingEnergy" else search
        for step in range(1, 201):
            observer.on_step_begin()
            loop.train_batch()
            observer.on_step_end()
            if step % 20 == 0:
                loop.evaluate()
        search.close()
    assert len(search.trials) == 4
    for trial in search.trials:
        points = [gpu.preset.physics.operating_point(work, trial.setting) for work in (FORWARD, BACKWARD)]
        assert trial.seconds_per_step == pytest.approx(sum(point.seconds for point in points), rel=1e-9)


def test_the_time_of_a_run_that_a_bound_is_about_holds_none(monitor, gpu, loop):
    search = GlobalPowerLimitOptimizer(monitor, Energy(), quiet=True)
    for step in range(1, 101):
        search.on_step_begin()
        gpu.execute(FORWARD)
        search.on_step_end()
        if step % 20 == 0:
            gpu.execute(Work(60.0, 200.0))
    run_seconds = search._recorder.run_seconds
    search.close()
    assert run_seconds < 100 * 0.3 * 1.5


def test_losses_are_identical_to_the_last_bit_and_torch_is_unchanged(monitor, gpu, time_source):
    gpu.wait = time_source.advance
    untouched = parts_of_torch()
    plain, measured = Loop(), Loop(gpu)
    for step in range(1, 61):
        plain.train_batch()
        if step % 20 == 0:
            plain.evaluate()
    torch.manual_seed(0)
    torch.nn.Linear(3, 1)
    with TrainingEnergy(monitor, quiet=True) as energy:
        measured.train(energy, 60)
        assert parts_of_torch() == untouched
    assert measured.losses == plain.losses


def test_two_unusual_times_separated_by_a_log_are_in_no_step(monitor, gpu, loop):
    with TrainingEnergy(monitor, quiet=True) as energy:
        for number in range(1, 61):
            with energy.step():
                loop.train_batch()
            if number % 20 == 0:
                loop.evaluate()
                energy.log()
                loop.evaluate()
    account = energy.summary.account
    between, steps = account.activities[Activity.BETWEEN_STEPS], account.activities[Activity.STEPS]
    assert between.energy_joules == pytest.approx(passes_joules(gpu, 6 * 8), rel=0.05)
    assert steps.energy_joules == pytest.approx(passes_joules(gpu, 60, 60), rel=0.02)


@pytest.mark.parametrize("reports", ["by itself", "through TrainingEnergy", "through TrainingEnergy, with a log"])
def test_no_trial_holds_such_an_evaluation_before_the_end_of_an_epoch(monitor, gpu, loop, reports):
    search = GlobalPowerLimitOptimizer(
        monitor, Energy(), warmup_steps=1, profile_steps=30, pl_step=100, search=GridSearch, quiet=True
    )
    with TrainingEnergy(monitor, None if reports == "by itself" else search, quiet=True) as energy:
        observer = search if reports == "by itself" else energy
        for _ in range(12):
            observer.on_epoch_begin()
            for _ in range(20):
                observer.on_step_begin()
                loop.train_batch()
                observer.on_step_end()
            loop.evaluate()
            if "log" in reports:
                energy.log()
            observer.on_epoch_end()
        search.close()
    assert len(search.trials) == 4
    for trial in search.trials:
        points = [gpu.preset.physics.operating_point(work, trial.setting) for work in (FORWARD, BACKWARD)]
        assert trial.joules_per_step == pytest.approx(sum(point.energy_joules for point in points), rel=0.02)
