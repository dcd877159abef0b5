"""Levelling after a search for the common level, and where nothing may be set."""

import pytest

from tests.mixed.levelling.test_levelling_optimizer import BOARDS, WORK, Training, joules_and_seconds, run
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.errors import DriverFaultError, PermissionDeniedError, UsageError
from zeus_core.mixed.levelling import LevellingOptimizer
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import (
    GlobalClockOptimizer,
    GlobalPowerLimitOptimizer,
    MaxSlowdownConstraint,
)

RANKS = 4


class Searched(Training):
    """Searches for a common level, and levels below it or not."""

    def __init__(self, world, search, *, levels, noise=BOARDS, mode="search"):
        super().__init__(world, levels=False, noise=noise)
        selector = MaxSlowdownConstraint(factor=1.1)
        self.search = search(self.monitor, selector, max_steps=700, mode=mode, world=world, quiet=True)
        self.optimizer = self.search
        if levels:
            self.optimizer = LevellingOptimizer(self.monitor, after=self.search, world=world, quiet=True)
        else:
            self.optimizer.on_work_end = lambda: None

    def finish(self):
        self.optimizer.on_train_end()
        self.original = (self.gpu.read_power_limit_watts(), self.locked_mhz)
        return self


def both(search, works=(WORK,) * RANKS, steps=120):
    """The trainings without levelling and with it: the latest steps."""

    def rank_main(world, levels):
        training = Searched(world, search, levels=levels).train(steps, works[world.rank])
        training.train(60, works[world.rank])
        training.setting = (training.gpu.read_power_limit_watts(), training.optimizer.result())
        return training.finish()

    return [run(RANKS, lambda world, levels=levels: rank_main(world, levels)) for levels in (False, True)]


def test_after_a_search_of_limits_those_who_wait_are_lowered_by_clocks():
    usual, levelled = both(GlobalPowerLimitOptimizer)
    (usual_joules, usual_seconds), (joules, seconds) = joules_and_seconds(usual), joules_and_seconds(levelled)
    assert seconds <= 1.002 * usual_seconds
    assert joules <= 0.98 * usual_joules
    limits = {training.setting[0] for training in levelled}
    assert len(limits) == 1
    assert max(limits) < 400, "the search has lowered all"
    rows = levelled[0].setting[1]
    assert rows["levelling"].startswith("SM clocks of ")
    assert "power limit" in rows
    assert {training.original for training in levelled} == {(400, 1410)}


def test_after_a_clock_search_waiting_ranks_go_below_the_common_clock():
    """One owner of each clock: the search."""
    quick = Work(0.4, 480.0, 1.0, 0.85)
    usual, levelled = both(GlobalClockOptimizer, (quick, WORK, WORK, WORK))
    (usual_joules, usual_seconds), (joules, seconds) = joules_and_seconds(usual), joules_and_seconds(levelled)
    assert seconds <= 1.002 * usual_seconds
    assert joules <= 0.98 * usual_joules
    common = levelled[1].search.chosen_clock_mhz or 0
    rows = levelled[0].setting[1]
    words = rows["levelling"].split()
    assert int(words[3]) < int(words[5]) <= common < 1410
    assert {training.original for training in levelled} == {(400, 1410)}


@pytest.mark.parametrize("search", [GlobalPowerLimitOptimizer, GlobalClockOptimizer])
def test_a_search_that_observes_is_followed_by_levelling_that_observes(search, caplog):
    def rank_main(world):
        training = Searched(world, search, levels=True, mode="observe")
        for method in ("lock_sm_clock", "unlock_sm_clock", "set_power_limit"):
            training.faulty.fail(method, DriverFaultError(f"{method} was called"))
        training.train(80)
        training.rows, training.changes = training.optimizer.result(), training.optimizer.changes
        return training.finish()

    for training in run(2, rank_main):
        assert training.rows["levelling"].startswith("nothing is set, as it is only observed")
        assert training.changes == 0
        assert training.original == (400, 1410)
    assert "was called" not in caplog.text


def test_what_levelling_would_save_is_within_its_interval():
    """The truth is that of ranks that do level, on the same boards."""

    def rank_main(world, mode):
        training = Training(world, mode=mode).train(60).train(60)
        training.rows = training.optimizer.result()
        training.optimizer.on_train_end()
        return training

    observed = run(8, lambda world: rank_main(world, "observe"))
    levelled = run(8, lambda world: rank_main(world, "level"))
    (joules, _), (least, _) = joules_and_seconds(observed), joules_and_seconds(levelled)
    row = observed[0].rows["levelling"]
    predicted, lowest, highest = (float(word[:-1]) for word in row.replace(",", "").split() if word.endswith("%"))
    assert lowest <= 100 * (1 - least / joules) <= highest, row
    assert 1 < predicted < 10
    assert "predicted" in row
    assert observed[0].rows == observed[7].rows
    assert observed[0].optimizer.settings == []


def test_a_search_with_another_monitor_or_a_budget_is_refused():
    monitor, other = (ZeusMonitor(gpus=[SimulatedGpu(find_preset("A100"))]) for _ in range(2))
    search = GlobalPowerLimitOptimizer(monitor)
    with pytest.raises(UsageError, match="another monitor"):
        LevellingOptimizer(other, after=search)
    with pytest.raises(UsageError, match="budget_watts"):
        LevellingOptimizer(monitor, after=search, budget_watts=300)
    with pytest.raises(UsageError, match="after"):
        LevellingOptimizer(monitor, after=3)
    with pytest.raises(UsageError, match="mode"):
        LevellingOptimizer(monitor, mode="search")


def test_a_rank_without_the_right_leaves_the_level_of_the_search_alone(caplog):
    """Limits may be set, and clocks may not: the search goes on, and levelling is predicted."""

    def rank_main(world):
        training = Searched(world, GlobalPowerLimitOptimizer, levels=True)
        if world.rank == 1:
            training.faulty.fail("lock_sm_clock", PermissionDeniedError("no right to lock"))
        training.train(120)
        training.limit, training.rows = training.gpu.read_power_limit_watts(), training.optimizer.result()
        return training.finish()

    for training in run(2, rank_main):
        assert training.limit < 400
        assert "no right to lock; predicted to save" in training.rows["levelling"]
        assert training.original == (400, 1410)
    assert "no right to lock" in caplog.text


def test_a_training_that_ends_before_the_search_shows_its_result_once(capfd):
    def rank_main(world):
        training = Searched(world, GlobalPowerLimitOptimizer, levels=True)
        training.optimizer.quiet = False
        training.train(12)
        training.optimizer.close()
        return training.finish()

    run(2, rank_main)
    assert capfd.readouterr().err.count("+- zeus-core") == 1


def test_a_fault_of_levelling_leaves_the_search_at_its_level(caplog):
    def rank_main(world):
        training = Searched(world, GlobalPowerLimitOptimizer, levels=True).train(120)
        assert training.optimizer.changes > 0
        if world.rank == 1:
            training.faulty.fail("lock_sm_clock", DriverFaultError("the driver failed"))
        training.train(60, Work(0.7, 480.0, 1.0, 0.85) if world.rank == 0 else WORK)  # settings are to change
        training.limit, training.rows = training.gpu.read_power_limit_watts(), training.optimizer.result()
        training.mhz = training.locked_mhz
        training.faulty.heal()
        return training.finish()

    for training in run(2, rank_main):
        assert training.limit < 400
        assert training.mhz == 1410
        assert training.rows["levelling"].startswith("off: ")
        assert training.original == (400, 1410)
    assert "the driver failed" in caplog.text
