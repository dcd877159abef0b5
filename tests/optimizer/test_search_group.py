"""Several ranks that search together, as threads: what one of them does or suffers, all of them agree on."""

from dataclasses import replace

import pytest

from tests.support.search_ranks import (
    EVALUATION,
    LIMITS,
    ORIGINAL_WATTS,
    QUICK,
    STEPS,
    WORK,
    Whim,
    make_rank,
    run,
    stops,
    truth,
)
from tests.support.sweep import sweep
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.errors import DriverFaultError, PermissionDeniedError, UsageError, WorldError
from zeus_core.events import Activity
from zeus_core.measurement import Device, DeviceEnergy, Measurement
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer.global_setting.phases import Phase
from zeus_core.optimizer.global_setting.trials import TrialPart, trial_from_parts
from zeus_core.optimizer.power_limit import Energy, OptimumSelector, Time, ZeusCost
from zeus_core.ports.world import SoloWorld
from zeus_core.testing import ThreadWorld, VirtualTime


def test_a_step_has_the_time_of_the_slowest_rank_and_everyones_energy():
    works = [WORK, Work(1.5, 250.0, 0.9, 0.7)]

    def rank_main(world):
        rank = make_rank(world, profile_steps=10)
        rank.train(4 * 11, works[world.rank])
        return rank

    ranks = run(2, rank_main)
    assert [trial.setting for trial in ranks[0].optimizer.trials] == LIMITS
    for trial in ranks[0].optimizer.trials:
        points = [truth(rank.gpu, work, trial.setting) for rank, work in zip(ranks, works, strict=True)]
        assert trial.steps == 10
        assert trial.seconds_per_step == pytest.approx(max(point.seconds for point in points), rel=1e-9)
        uncertainty = trial.measurement.total_uncertainty_joules / 10
        assert trial.joules_per_step == pytest.approx(sum(point.energy_joules for point in points), abs=uncertainty)


@pytest.mark.parametrize("evaluating", [[0], [0, 1]], ids=["on the first rank", "on all"])
def test_an_evaluation_that_nothing_announced_is_in_no_trial_of_any_rank(evaluating):
    def rank_main(world):
        rank = make_rank(world, profile_steps=10)
        rank.optimizer.on_train_begin()
        for step in range(1, 101):
            rank.step()
            if step % 20 == 0 and world.rank in evaluating:
                rank.gpu.execute(replace(WORK, seconds=10 * WORK.seconds))
        return rank

    ranks = run(2, rank_main)
    assert [trial.setting for trial in ranks[0].optimizer.trials] == LIMITS
    for trial in ranks[0].optimizer.trials:
        points = [truth(rank.gpu, WORK, trial.setting) for rank in ranks]
        assert trial.steps == 10
        assert trial.seconds_per_step == pytest.approx(max(point.seconds for point in points), rel=1e-9)


def test_the_limit_is_in_force_on_every_rank_while_training_goes_on():
    def rank_main(world):
        rank = make_rank(world)
        rank.train()
        assert rank.optimizer.phase is Phase.DONE
        assert rank.gpu.read_power_limit_watts() == rank.optimizer.chosen_limit_watts < ORIGINAL_WATTS
        assert rank.optimizer.power_limit_watts == rank.optimizer.chosen_limit_watts
        return rank

    (saving_fraction, *others) = {rank.optimizer.saving_fraction for rank in run(3, rank_main)}
    assert saving_fraction > 0
    assert others == []


def test_limits_span_the_boards_of_all_ranks_within_each_gpus_range():
    def rank_main(world):
        rank = make_rank(
            world, model=["A100", "A40"][world.rank], original_watts=[350, 250][world.rank], profile_steps=2
        )
        rank.optimizer.on_train_begin()
        seen = []
        for _ in range(40):
            rank.step()
            seen.append(rank.gpu.read_power_limit_watts())
        rank.optimizer.on_train_end()
        assert rank.gpu.read_power_limit_watts() == [350, 250][world.rank]
        return rank.optimizer, seen

    (first, first_seen), (second, second_seen) = ThreadWorld.run(2, rank_main)
    assert [trial.setting for trial in first.trials] == [350, 275, 200, 125, 100]
    assert first.trials == second.trials
    assert {350, 275, 200, 125, 100} <= set(first_seen)
    assert max(second_seen) == 250


def test_ranks_that_share_a_gpu_count_it_once():
    time_source = VirtualTime()
    gpu = SimulatedGpu(find_preset("A40"), time_source=time_source, power_limit_watts=ORIGINAL_WATTS)

    def rank_main(world):
        monitor = ZeusMonitor(gpus=[gpu], time_source=time_source)
        optimizer = sweep(monitor, world=world, **QUICK)
        optimizer.on_train_begin()
        assert optimizer.baseline_limit_watts == ORIGINAL_WATTS
        world.gather(None)
        for _ in range(STEPS):
            optimizer.on_step_begin()
            world.gather(None)
            if world.rank == 0:
                gpu.execute(WORK)
            world.gather(None)
            optimizer.on_step_end()
        optimizer.on_train_end()
        return optimizer

    first, second = ThreadWorld.run(2, rank_main)
    assert first.trials == second.trials
    assert [trial.setting for trial in first.trials] == LIMITS
    assert list(first.trials[0].measurement.gpu_energy) == [0]
    assert first.optimum_selector.world_size == 1
    assert gpu.read_power_limit_watts() == ORIGINAL_WATTS


def test_the_default_selector_weighs_time_with_the_power_of_all_gpus():
    def rank_main(world):
        rank = make_rank(world)
        default = sweep(rank.optimizer.monitor, world=world, **QUICK)
        default.on_train_begin()
        default.on_train_end()
        return rank, default.optimum_selector

    for _, selector in ThreadWorld.run(3, rank_main):
        assert isinstance(selector, ZeusCost)
        assert selector.world_size == 3


def test_a_selector_that_is_moody_chooses_once_for_all():
    def rank_main(world):
        rank = make_rank(world, Whim())
        rank.train()
        return rank

    ranks = run(4, rank_main)
    assert ranks[0].optimizer.chosen_limit_watts in LIMITS


def test_rank_0_selects():
    def rank_main(world):
        rank = make_rank(world, Time() if world.rank == 0 else Energy())
        rank.train()
        return rank

    (rank, *_) = run(2, rank_main)
    assert rank.optimizer.chosen_limit_watts == Time().select(rank.optimizer.measurements)


def test_rank_0_keeps_the_profile_for_all(tmp_path):
    def rank_main(world):
        rank = make_rank(world, profile_path=tmp_path / f"profile-{world.rank}.json")
        rank.train(STEPS)
        return rank

    trials = run(2, rank_main)[0].optimizer.trials
    assert [path.name for path in tmp_path.iterdir()] == ["profile-0.json"]

    def second_main(world):
        rank = make_rank(world, profile_path=tmp_path / f"profile-{world.rank}.json")
        rank.optimizer.on_epoch_begin()
        assert rank.gpu.read_power_limit_watts() == rank.optimizer.chosen_limit_watts
        return rank

    assert run(2, second_main)[0].optimizer.trials == trials


def test_what_was_forgotten_is_measured_again_on_all_ranks(tmp_path):
    def rank_main(world):
        rank = make_rank(world, profile_path=tmp_path / "profile.json")
        rank.train(STEPS)
        world.gather(None)
        rank.optimizer.forget()
        world.gather(None)
        slower = Work(1.5, 289.2, 0.889, 0.784)
        rank.train(STEPS, slower)
        (trial, *_) = rank.optimizer.trials
        assert trial.seconds_per_step == pytest.approx(truth(rank.gpu, slower, 250).seconds)
        return rank

    run(2, rank_main)


def test_a_second_training_goes_on_where_the_first_was_left():
    def rank_main(world):
        rank = make_rank(world)
        rank.train(4)
        rank.optimizer.on_train_end()
        assert [trial.setting for trial in rank.optimizer.trials] == [250]
        rank.train(9)
        assert rank.optimizer.phase is Phase.DONE
        return rank

    run(2, rank_main)


# Rights


def allow_restoring_only(rank, refusal):
    """Refuse every limit from now on, but for the original."""
    set_limit = rank.gpu.set_power_limit

    def set_original(limit_watts):
        if limit_watts != ORIGINAL_WATTS:
            raise refusal
        set_limit(limit_watts)

    rank.gpu.set_power_limit = set_original


@pytest.mark.parametrize("steps_with_rights", [0, 5, STEPS - 2])
def test_where_one_rank_may_not_set_limits_all_observe(caplog, steps_with_rights):
    def rank_main(world):
        rank = make_rank(world)
        rank.optimizer.on_train_begin()
        for step in range(40):
            if world.rank == 1 and step == steps_with_rights:
                allow_restoring_only(rank, PermissionDeniedError("no rights here"))
            rank.step()
        return rank

    ranks = run(3, rank_main)
    warnings = {record.threadName: record.message for record in caplog.records if "are not changed" in record.message}
    if steps_with_rights < STEPS - 2:
        assert "not changed: no rights here." in warnings["rank 1"]
        assert "not changed: rank 1: no rights here." in warnings["rank 0"]
        assert "not changed: rank 1: no rights here." in warnings["rank 2"]
        assert ranks[0].optimizer.chosen_limit_watts == ORIGINAL_WATTS
        assert ranks[0].optimizer.saving_fraction is None, "one limit, measured twice"
    assert ranks[0].optimizer.phase is Phase.REST
    assert stops(caplog) == []


def test_where_none_may_set_limits_each_says_so_once(caplog):
    def rank_main(world):
        rank = make_rank(world, grants_control=False)
        rank.train()
        return rank

    ranks = run(2, rank_main)
    assert [trial.setting for trial in ranks[0].optimizer.trials] == [ORIGINAL_WATTS]
    assert len([record for record in caplog.records if "are not changed" in record.message]) == 2


def test_a_changed_limit_unrestored_for_lack_of_rights_stops_all(caplog):
    def rank_main(world):
        rank = make_rank(world)
        rank.train(5)
        if world.rank == 1:
            rank.faulty.fail("set_power_limit", PermissionDeniedError("no rights any more"))
        for _ in range(5):
            rank.step()
        assert rank.optimizer.phase is Phase.OFF
        assert (rank.gpu.read_power_limit_watts() == ORIGINAL_WATTS) is (world.rank == 0)
        rank.faulty.heal()
        return rank

    run(2, rank_main)
    assert [name for name, _ in stops(caplog)] == ["rank 0", "rank 1"]


def test_a_rank_that_cannot_restore_what_another_may_not_set_stops_all(caplog):
    def rank_main(world):
        rank = make_rank(world)
        rank.train(5)
        if world.rank == 1:
            allow_restoring_only(rank, PermissionDeniedError("no rights any more"))
        else:
            set_limit = rank.gpu.set_power_limit
            rank.gpu.set_power_limit = lambda watts: set_limit(watts) if watts < ORIGINAL_WATTS else 1 / 0
        for _ in range(5):
            rank.step()
        assert rank.optimizer.phase is Phase.OFF
        if world.rank == 0:
            rank.gpu.set_power_limit = set_limit
        return rank

    run(2, rank_main)
    assert "could be changed, but not be restored: rank 1: no rights any more" in str(stops(caplog)[0][1])


# Faults


@pytest.mark.parametrize(
    ("call", "healthy_steps", "error"),
    [
        ("read_power_limit_watts", 0, DriverFaultError("broken")),
        ("set_power_limit", 5, RuntimeError("broken")),
        ("read_energy_counter_joules", 5, RuntimeError("broken")),
    ],
)
def test_a_fault_on_one_rank_stops_the_search_on_all(caplog, call, healthy_steps, error):
    def rank_main(world):
        rank = make_rank(world)
        for step in range(30):
            if world.rank == 1 and step == healthy_steps:
                rank.faulty.fail(call, error)
            rank.step()
        assert rank.optimizer.phase is Phase.OFF
        assert rank.optimizer.chosen_limit_watts is None
        rank.faulty.heal()
        return rank

    run(3, rank_main)
    (first, second, third) = stops(caplog)
    assert [name for name, _ in (first, second, third)] == ["rank 0", "rank 1", "rank 2"]
    reason = "broken" if isinstance(error, DriverFaultError) else "RuntimeError('broken')"
    assert second[1] is error
    assert str(first[1]) == str(third[1]) == f"rank 1: {reason}"


def test_energy_lost_on_one_rank_has_all_wait_at_the_original(caplog):
    def rank_main(world):
        rank = make_rank(world)
        for step in range(40):
            if world.rank == 1 and step == 5:
                rank.faulty.fail("read_energy_counter_joules", DriverFaultError("broken"))
            rank.step()
        assert rank.gpu.read_power_limit_watts() == ORIGINAL_WATTS
        assert "the energy cannot be measured any more" in rank.optimizer.result()["power limit"]
        rank.faulty.heal()
        for _ in range(3 * STEPS):
            rank.step()
        assert rank.optimizer.phase is Phase.DONE
        return rank

    ranks = run(3, rank_main)
    assert stops(caplog) == []
    assert [trial.setting for trial in ranks[0].optimizer.trials] == LIMITS


def test_a_failing_rank_restores_its_limit_at_once_and_keeps_step(caplog):
    steps = []

    def rank_main(world):
        rank = make_rank(world, profile_steps=6)
        rank.train(7 + 2)  # the second limit is in force, and the next exchange six steps away
        assert rank.gpu.read_power_limit_watts() == 175
        if world.rank == 0:
            rank.faulty.fail("read_energy_counter_joules", RuntimeError("broken"))
        rank.step()
        assert rank.gpu.read_power_limit_watts() == [ORIGINAL_WATTS, 175][world.rank]
        assert rank.optimizer.power_limit_watts == [None, 175][world.rank]
        rank.faulty.heal()
        while rank.optimizer.phase is not Phase.OFF:
            rank.step()
            steps.append(world.rank)
        assert rank.gpu.read_power_limit_watts() == ORIGINAL_WATTS
        return rank

    run(2, rank_main)
    assert steps.count(0) == steps.count(1) == 4
    assert len(stops(caplog)) == 2


def test_a_failure_at_the_end_of_training_stops_the_next_everywhere(caplog):
    def rank_main(world):
        rank = make_rank(world, profile_steps=6)
        rank.train(3)
        if world.rank == 1:
            rank.faulty.fail("read_energy_counter_joules", RuntimeError("broken"))
        rank.step()
        rank.faulty.heal()
        rank.optimizer.on_train_end()
        assert rank.optimizer.phase is Phase.REST
        rank.optimizer.use_world(world)
        rank.train(3)
        assert rank.optimizer.phase is Phase.OFF
        return rank

    run(2, rank_main)
    assert len(stops(caplog)) == 2


class Broken(OptimumSelector):
    def select(self, measurements):
        raise RuntimeError("no idea")


def test_a_selector_that_fails_stops_all(caplog):
    def rank_main(world):
        rank = make_rank(world, Broken())
        rank.train()
        assert rank.optimizer.phase is Phase.OFF
        return rank

    run(2, rank_main)
    (_, second) = stops(caplog)
    assert str(second[1]) == "rank 0: RuntimeError('no idea')"


@pytest.mark.parametrize(("argument", "value"), [("profile_steps", 3), ("pl_step", 30)])
def test_ranks_that_were_given_other_arguments_say_which(caplog, argument, value):
    def rank_main(world):
        rank = make_rank(world, **({argument: value} if world.rank == 1 else {}))
        rank.train(5)
        assert rank.optimizer.phase is Phase.OFF
        return rank

    run(2, rank_main)
    expected = f"{argument} is {QUICK[argument]} on rank 0 and {value} on rank 1; give every rank the same"
    assert [str(error) for _, error in stops(caplog)] == [expected, expected]


def test_ranks_that_are_out_of_step_say_so(caplog):
    def rank_main(world):
        rank = make_rank(world)
        rank.train(2)
        if world.rank == 1:
            rank.optimizer.on_train_end()
            rank.optimizer.on_train_begin()
        else:
            rank.step()
        return rank

    run(2, rank_main)
    assert "disagree on the current phase: rank 0 is at 'conclude' and rank 1 at 'prepare'" in str(stops(caplog)[0][1])


class CountingWorld:
    """Counts how often it was asked."""

    def __init__(self, world):
        self.world, self.rank, self.size, self.calls = world, world.rank, world.size, 0
        self.is_left = False

    def gather(self, value):
        self.calls += 1
        if self.is_left:
            raise WorldError("a rank did not answer in time")
        return self.world.gather(value)


def test_ranks_prepare_a_search_by_three_exchanges():
    """What each rank has, the trials that rank 0 knows of, and what it has all do first."""

    def rank_main(world):
        counting = CountingWorld(world)
        make_rank(counting).optimizer.on_train_begin()
        return counting.calls

    assert ThreadWorld.run(2, rank_main) == [3, 3]


def test_a_rank_that_is_gone_is_waited_for_once(caplog):
    def rank_main(world):
        counting = CountingWorld(world)
        rank = make_rank(counting)
        rank.train(5)
        calls = counting.calls
        counting.is_left = True
        if world.rank != 1:
            for _ in range(30):
                rank.step()
            assert rank.optimizer.phase is Phase.OFF
            assert rank.gpu.read_power_limit_watts() == ORIGINAL_WATTS
            assert counting.calls == calls + 1
        return rank

    ranks = ThreadWorld.run(3, rank_main)
    assert [name for name, _ in stops(caplog)] == ["rank 0", "rank 2"]
    ranks[1].optimizer.on_train_end()
    assert ranks[1].gpu.read_power_limit_watts() == ORIGINAL_WATTS


# Pauses and interference


def test_a_pause_of_one_rank_changes_no_trial_of_the_others():
    def rank_main(world):
        rank = make_rank(world)
        rank.optimizer.on_train_begin()
        for step in range(STEPS):
            rank.step()
            if world.rank == 0 and step % 3 == 0:
                rank.optimizer.on_pause()
                rank.gpu.execute(EVALUATION)
                rank.optimizer.on_resume()
        assert rank.optimizer.phase is Phase.DONE
        return rank

    ranks = run(2, rank_main)
    for trial in ranks[0].optimizer.trials:
        assert trial.seconds_per_step == pytest.approx(truth(ranks[0].gpu, WORK, trial.setting).seconds, rel=1e-9)


@pytest.mark.parametrize("every", [1, 5])
def test_a_trial_disturbed_on_one_rank_is_repeated_by_all(every):
    def rank_main(world):
        rank = make_rank(world)
        rank.optimizer.on_train_begin()
        for step in range(STEPS + 3 * world.size):
            rank.step()
            if world.rank != 0 and (step + world.rank) % every == 0:
                rank.gpu.execute(EVALUATION)
                rank.optimizer.on_interference()
        assert rank.optimizer.phase is Phase.DONE
        return rank

    ranks = run(4, rank_main)
    for trial in [*ranks[0].optimizer.trials, ranks[0].optimizer.confirmation]:
        assert trial.steps == 2
        assert trial.seconds_per_step == pytest.approx(truth(ranks[0].gpu, WORK, trial.setting).seconds, rel=1e-9)


# The world


def test_a_world_is_not_changed_during_a_search(monitor):
    optimizer = sweep(monitor)
    optimizer.use_world(SoloWorld())
    optimizer.on_train_begin()
    with pytest.raises(UsageError, match="during a search"):
        optimizer.use_world(SoloWorld())
    optimizer.on_train_end()
    optimizer.use_world(SoloWorld())


def test_a_world_can_be_given_late():
    def rank_main(world):
        rank = make_rank(SoloWorld())
        rank.optimizer.use_world(world)
        rank.train()
        return rank

    run(2, lambda world: rank_main(world))


# What ranks measured, as one trial


def test_the_step_in_which_ranks_wait_for_saving_is_in_no_trial():
    def rank_main(world):
        rank = make_rank(world, profile_steps=5)
        time_source = rank.optimizer.monitor.time_source

        def all_reduce():
            time_source.advance(max(world.gather(time_source.now())) - time_source.now())

        rank.optimizer.on_train_begin()
        for step in range(5 * (1 + 5) + 1):
            rank.optimizer.on_step_begin()
            rank.gpu.execute(WORK)
            all_reduce()
            rank.optimizer.on_step_end()
            if step % 4 == 2:
                rank.optimizer.on_pause(Activity.CHECKPOINT, on_all_ranks=True)
                time_source.advance(30.0 if world.rank == 0 else 0.1)
                rank.optimizer.on_resume()
        assert rank.optimizer.phase is Phase.DONE
        return rank

    (first, _) = run(2, rank_main)
    assert [trial.setting for trial in first.optimizer.trials] == LIMITS
    for trial in first.optimizer.trials:
        assert 3 <= trial.steps <= 5
        assert trial.seconds_per_step == pytest.approx(truth(first.gpu, WORK, trial.setting).seconds, rel=1e-6)


def part_of_a_trial(rank, seconds, deviation_seconds):
    measurement = Measurement(seconds, {Device("gpu", 0, f"GPU-{rank}"): DeviceEnergy(10.0, 1.0)})
    return TrialPart(4, measurement, deviation_seconds, is_spoiled=False, run_seconds=seconds)


def test_a_trial_is_as_long_and_uneven_as_on_the_worst_rank():
    trial = trial_from_parts(250, [part_of_a_trial(0, 2.0, 0.2), part_of_a_trial(1, 3.0, 0.1)])
    assert (trial.setting, trial.steps) == (250, 4)
    assert (trial.measurement.time, trial.measurement.total_energy) == (3.0, 20.0)
    assert trial.step_seconds_deviation == 0.2


def test_ranks_that_measured_other_steps_have_no_trial_in_common():
    other = replace(part_of_a_trial(1, 3.0, 0.1), steps=3)
    assert trial_from_parts(250, [part_of_a_trial(0, 2.0, 0.2), other]) is None
