"""Levelling in training loops of several ranks, each with a GPU and a time of its own."""

import dataclasses

import pytest

from zeus_core.device import SimulatedGpu, SimulatedNoise, Work, find_preset
from zeus_core.errors import DriverFaultError, PermissionDeniedError, UsageError
from zeus_core.mixed.levelling import LevellingOptimizer
from zeus_core.monitor import ZeusMonitor
from zeus_core.testing import FaultyGpu, ThreadWorld, VirtualTime

WORK = Work(0.5, 480.0, 1.0, 0.85)
BOARDS = SimulatedNoise(0.002, 0.002, seed=1, board_spread=0.12)


class Training:
    """The loop of one rank."""

    def __init__(self, world, *, levels=True, noise=BOARDS, **arguments):
        self.world = world
        self.time_source = VirtualTime()
        self.gpu = SimulatedGpu(find_preset("A100"), world.rank, time_source=self.time_source, noise=noise)
        self.faulty = FaultyGpu(self.gpu)
        self.monitor = ZeusMonitor(gpus=[self.faulty], time_source=self.time_source)
        self.optimizer = LevellingOptimizer(self.monitor, world=world, quiet=True, **arguments) if levels else None

    def train(self, steps, work=WORK):
        begin, joules = self.time_source.now(), self.gpu.exact_energy_joules()
        for _ in range(steps):
            self.step(work)
        self.seconds = self.time_source.now() - begin
        self.joules = self.gpu.exact_energy_joules() - joules
        return self

    def step(self, work):
        if self.optimizer is not None:
            self.optimizer.on_step_begin()
        self.gpu.execute(work)
        if self.optimizer is not None:
            self.optimizer.on_work_end()
        latest = max(self.world.gather(self.time_source.now()))
        self.time_source.advance(latest - self.time_source.now())
        if self.optimizer is not None:
            self.optimizer.on_step_end()

    @property
    def locked_mhz(self):
        """The clock under light work, which no power limit holds below the lock."""
        self.gpu.submit(Work(1e6, 90.0))
        return self.gpu.read_sm_clock_mhz()


def run(ranks, rank_main):
    return ThreadWorld.run(ranks, rank_main, 60.0)


def joules_and_seconds(trainings):
    return sum(training.joules for training in trainings), trainings[0].seconds


def test_eight_ranks_take_less_energy_and_no_longer():
    usual_joules, usual_seconds = joules_and_seconds(run(8, lambda world: Training(world, levels=False).train(120)))
    trainings = run(8, lambda world: Training(world).train(120))
    joules, seconds = joules_and_seconds(trainings)
    assert seconds <= 1.002 * usual_seconds
    assert joules <= 0.95 * usual_joules
    result = trainings[0].optimizer.result()
    assert result["levelling"].startswith("SM clocks of 1")
    assert "before" in result["waiting for other ranks"]
    assert len({tuple(training.optimizer.settings) for training in trainings}) == 1, "all agree"
    for training in trainings:
        training.optimizer.on_train_end()
        assert training.locked_mhz == 1410
        assert training.optimizer.result() == result


def test_a_budget_makes_steps_shorter_than_equal_limits_do():
    def at_equal_limits(world):
        training = Training(world, levels=False)
        training.gpu.set_power_limit(300)
        return training.train(120)

    usual_joules, usual_seconds = joules_and_seconds(run(8, at_equal_limits))
    trainings = run(8, lambda world: Training(world, budget_watts=8 * 300).train(120))
    joules, seconds = joules_and_seconds(trainings)
    assert seconds <= 0.97 * usual_seconds
    assert joules <= usual_joules
    assert sum(training.gpu.read_power_limit_watts() for training in trainings) <= 8 * 300
    for training in trainings:
        training.optimizer.close()
        assert training.gpu.read_power_limit_watts() == 400


@pytest.mark.parametrize("failing", [0, 1])
def test_where_one_rank_may_not_set_its_gpu_all_leave_theirs(failing, caplog):
    def rank_main(world):
        training = Training(world)
        if world.rank == failing:
            training.faulty.fail("lock_sm_clock", PermissionDeniedError("no right to lock"))
        return training.train(30)

    for training in run(2, rank_main):
        assert training.locked_mhz == 1410
        assert training.optimizer.settings == []
        assert "no right to lock" in training.optimizer.result()["levelling"]
    assert "no right to lock" in caplog.text


def test_a_fault_in_mid_run_restores_all_ranks(caplog):
    def rank_main(world):
        training = Training(world).train(40)
        assert min(training.optimizer.settings) < 1410
        if world.rank == 1:
            training.faulty.fail("lock_sm_clock", DriverFaultError("the driver failed"))
            training.faulty.fail("unlock_sm_clock", DriverFaultError("the driver failed"), times=1)
        work = Work(0.7, 480.0, 1.0, 0.85) if world.rank == 0 else WORK  # settings are to change
        training.train(20, work)
        training.faulty.heal()
        training.optimizer.close()
        return training

    for training in run(3, rank_main):
        assert training.locked_mhz == 1410
    assert "the driver failed" in caplog.text


def test_a_rank_with_late_data_is_not_lowered_despite_its_quick_gpu():
    """Rank 0 computes 5 % less, and waits 20 % longer for its loader: lower, it would hold the other up."""

    def rank_main(world, levels):
        training = Training(world, levels=levels, noise=SimulatedNoise())
        work = dataclasses.replace(WORK, seconds=0.5 * (0.95 if world.rank == 0 else 1.0))
        begin = training.time_source.now()
        for _ in range(60):
            training.time_source.advance(0.1 if world.rank == 0 else 0.0)
            training.step(work)
        return training.time_source.now() - begin, training.optimizer and training.optimizer.settings

    (usual_seconds, _), _ = run(2, lambda world: rank_main(world, False))
    (seconds, settings), _ = run(2, lambda world: rank_main(world, True))
    assert seconds <= 1.002 * usual_seconds
    assert settings[0] > settings[1], "the other waits for it"


def test_steps_without_a_report_of_the_end_of_work_are_not_counted():
    def rank_main(world):
        training = Training(world)
        for _ in range(40):
            training.optimizer.on_step_begin()
            training.gpu.execute(WORK)
            world.gather(None)
            training.optimizer.on_step_end()
        return training

    for training in run(2, rank_main):
        assert training.optimizer.changes == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"knob": "watts"}, "knob"),
        ({"knob": "clock", "budget_watts": 600}, "a budget is kept by power limits"),
        ({"budget_watts": -5}, "budget_watts"),
        ({"budget_watts": float("nan")}, "budget_watts"),
        ({"world": 3}, "world"),
        ({"original_clock_mhz": -1}, "original_clock_mhz"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    monitor = ZeusMonitor(gpus=[SimulatedGpu(find_preset("A100"))])
    with pytest.raises(UsageError, match=message):
        LevellingOptimizer(monitor, **arguments)


def test_a_budget_below_the_lowest_limits_is_refused_on_all_ranks(caplog):
    for training in run(2, lambda world: Training(world, budget_watts=100).train(5)):
        assert training.gpu.read_power_limit_watts() == 400
    assert "the lowest limits of these 2 GPUs are 200 W together" in caplog.text


def test_ranks_that_share_a_gpu_or_differ_in_arguments_are_refused(caplog):
    def shared(world):
        training = Training(world)
        training.gpu = SimulatedGpu(find_preset("A100"), 0, time_source=training.time_source)
        monitor = ZeusMonitor(gpus=[training.gpu], time_source=training.time_source)
        training.optimizer = LevellingOptimizer(monitor, world=world, quiet=True)
        return training.train(5)

    run(2, shared)
    assert "two ranks have the same GPU" in caplog.text
    caplog.clear()
    run(2, lambda world: Training(world, knob=["clock", "power limit"][world.rank]).train(5))
    assert "pass the same to all" in caplog.text


def test_one_rank_alone_is_told_so_and_goes_on(caplog):
    (training,) = run(1, lambda world: Training(world).train(5))
    assert "waits for nobody" in caplog.text
    assert training.locked_mhz == 1410
