"""`GlobalPowerLimitOptimizer` in training loops on simulated GPUs, against the physics of the simulator."""

import json
import logging
import statistics
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.nvml_driver import DeviceSpec
from tests.support.sweep import sweep
from tests.support.variants import long_but_first
from zeus_core.device import SimulatedGpu, SimulatedNoise, Work, discover_gpus, find_preset
from zeus_core.device.cpu import CpuDiscovery
from zeus_core.errors import DeviceHeldError, DriverFaultError, PermissionDeniedError, UsageError
from zeus_core.events import (
    Activity,
    EpochBegin,
    EpochEnd,
    Interference,
    Observer,
    Pause,
    Resume,
    StepBegin,
    StepEnd,
    TrainBegin,
    TrainEnd,
)
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer.global_setting.phases import Phase
from zeus_core.optimizer.power_limit import (
    Energy,
    GlobalPowerLimitOptimizer,
    MaxSlowdownConstraint,
    Objective,
    OptimumSelector,
    PowerLimitMeasurement,
    Time,
    ZeusCost,
)
from zeus_core.ports.world import SoloWorld
from zeus_core.testing import FaultyGpu, VirtualTime

WORKS = {
    "A100": Work(0.9, 484.9, 0.938, 0.744),
    "A40": Work(0.9, 289.2, 0.889, 0.784),
    "V100": Work(0.9, 326.1, 0.870, 0.677),
}
SELECTORS = [Energy(), Time(), ZeusCost(eta_knob=0.5), MaxSlowdownConstraint(factor=1.1)]
EVALUATION = Work(7.0, 200.0)


def true_sweep(gpu, work, limits_watts):
    """Return the exact measurements of all limits."""
    points = {limit: gpu.preset.physics.operating_point(work, limit) for limit in limits_watts}
    return [PowerLimitMeasurement(limit, point.energy_joules, point.seconds) for limit, point in points.items()]


def train(optimizer, gpu, work, steps, *, steps_per_epoch=10**9, evaluate_every=10**9):
    """A plain loop that reports all it can."""
    optimizer.on_train_begin()
    for step in range(steps):
        if step % steps_per_epoch == 0:
            optimizer.on_epoch_begin()
        optimizer.on_step_begin()
        gpu.execute(work)
        optimizer.on_step_end()
        if (step + 1) % evaluate_every == 0:
            optimizer.on_pause()
            gpu.execute(EVALUATION)
        if (step + 1) % steps_per_epoch == 0:
            optimizer.on_epoch_end()
            gpu.execute(EVALUATION)


def simulated(model, seed=None, power_limit_watts=None):
    time_source = VirtualTime()
    noise = None if seed is None else SimulatedNoise(0.01, 0.01, seed)
    gpu = SimulatedGpu(find_preset(model), time_source=time_source, noise=noise, power_limit_watts=power_limit_watts)
    return gpu, ZeusMonitor(gpus=[gpu], time_source=time_source)


@pytest.mark.parametrize("selector", SELECTORS, ids=repr)
@pytest.mark.parametrize("model", long_but_first(WORKS))
def test_without_noise_the_chosen_limit_is_the_optimum_of_the_grid(model, selector):
    gpu, monitor = simulated(model)
    # Some neighbouring limits differ by 0.05 % in cost: steps as long as this make the counter's own error smaller.
    work = replace(WORKS[model], seconds=20.0)
    optimizer = sweep(monitor, selector, warmup_steps=2)
    train(optimizer, gpu, work, steps=15 * 42 + 50)
    limits = [trial.setting for trial in optimizer.trials]
    assert limits == sorted(limits, reverse=True)
    assert (limits[0], limits[-1]) == (gpu.preset.default_limit_watts, gpu.preset.limit_range_watts.lowest_watts)
    assert optimizer.chosen_limit_watts == selector.select(true_sweep(gpu, work, limits))
    assert gpu.read_power_limit_watts() == optimizer.chosen_limit_watts


def regret(selector, choice, points):
    """How much worse the choice is than the best, by the selector's own measure and the simulator's physics."""
    baseline, best = (
        points[0],
        {measurement.power_limit: measurement for measurement in points}[selector.select(points)],
    )
    if isinstance(selector, MaxSlowdownConstraint):
        return max(0.0, choice.time / (selector.factor * baseline.time) - 1)
    return selector.cost(choice, baseline) / selector.cost(best, baseline) - 1


@pytest.mark.parametrize(("model", "seeds"), long_but_first([("A40", 12), *((model, 50) for model in WORKS)]))
def test_with_noise_of_one_percent_the_regret_is_small(model, seeds):
    regrets = {repr(selector): [] for selector in SELECTORS}
    for seed in range(seeds):
        gpu, monitor = simulated(model, seed)
        optimizer = sweep(monitor, warmup_steps=0)
        train(optimizer, gpu, WORKS[model], steps=13 * 40 + 5)
        points = true_sweep(gpu, WORKS[model], [trial.setting for trial in optimizer.trials])
        truth = {measurement.power_limit: measurement for measurement in points}
        for selector in SELECTORS:
            chosen = truth[selector.select(optimizer.measurements)]
            regrets[repr(selector)].append(regret(selector, chosen, points))
    for selector, values in regrets.items():
        assert statistics.mean(values) <= 0.005, selector
        assert statistics.quantiles(values, n=20)[-1] <= 0.02, selector


@pytest.mark.parametrize("seeds", long_but_first([range(6), range(6, 20)]))
def test_with_noise_a_slowdown_bound_gives_away_at_most_one_limit(seeds):
    selector = MaxSlowdownConstraint(factor=1.1)
    for seed in seeds:
        gpu, monitor = simulated("A100", seed)
        optimizer = sweep(monitor, selector, warmup_steps=0)
        train(optimizer, gpu, WORKS["A100"], steps=13 * 40 + 5)
        best = selector.select(true_sweep(gpu, WORKS["A100"], [trial.setting for trial in optimizer.trials]))
        assert abs(optimizer.chosen_limit_watts - best) <= 25


def test_the_grid_runs_from_the_found_limit_to_the_lowest_and_back(monkeypatch):
    gpu, monitor = simulated("A100", power_limit_watts=337.5)
    limits_set = []
    monkeypatch.setattr(gpu, "set_power_limit", lambda limit: limits_set.append(limit) or set_power_limit(limit))
    set_power_limit = SimulatedGpu.set_power_limit.__get__(gpu)
    optimizer = sweep(monitor, Energy(), wait_steps=0, warmup_steps=0, profile_steps=2, pl_step=50)
    train(optimizer, gpu, WORKS["A100"], steps=40)
    assert limits_set[:6] == [337.5, 288, 238, 188, 138, 100]
    assert optimizer.baseline_limit_watts == 338
    assert gpu.read_power_limit_watts() == optimizer.chosen_limit_watts != 337.5
    optimizer.on_train_end()
    assert gpu.read_power_limit_watts() == 337.5
    assert max(limits_set) == 337.5


def test_nothing_is_changed_before_training_begins(monitor, gpu, work):
    optimizer = sweep(monitor)
    assert optimizer.phase is Phase.REST
    assert gpu.read_power_limit_watts() == 350
    assert optimizer.baseline_limit_watts is None
    assert optimizer.chosen_limit_watts is None
    assert optimizer.trials == []


def test_short_epochs_and_frequent_evaluations_neither_stop_the_search_nor_enter_trials(monitor, gpu, work):
    optimizer = sweep(monitor, Energy())
    train(optimizer, gpu, work, steps=13 * 51 + 40, steps_per_epoch=30, evaluate_every=10)
    assert optimizer.phase is Phase.DONE
    for trial in [*optimizer.trials, optimizer.confirmation]:
        truth = gpu.preset.physics.operating_point(work, trial.setting)
        assert trial.steps == 40
        assert trial.seconds_per_step == pytest.approx(truth.seconds, rel=1e-9)
        assert trial.joules_per_step == pytest.approx(truth.energy_joules, rel=0.02)


def test_warm_up_is_spent_once_per_limit_and_not_once_per_segment(monitor, gpu, work):
    optimizer = sweep(monitor, wait_steps=1, warmup_steps=10, profile_steps=40)
    limits = 11
    train(optimizer, gpu, work, steps=1 + limits * 50 - 1, steps_per_epoch=7)
    assert optimizer.chosen_limit_watts is None
    train(optimizer, gpu, work, steps=1, steps_per_epoch=7)
    assert optimizer.chosen_limit_watts is not None


@pytest.mark.parametrize("every", [1, 3, 8])
def test_unannounced_evaluations_are_in_no_trial_however_frequent(monitor, gpu, work, every):
    optimizer = sweep(monitor, Energy(), warmup_steps=0, profile_steps=5)
    for step in range(150):
        optimizer.on_step_begin()
        gpu.execute(work)
        optimizer.on_step_end()
        if step % every == 0:
            gpu.execute(EVALUATION)
            optimizer.on_interference()
    assert optimizer.phase is Phase.DONE
    for trial in optimizer.trials:
        truth = gpu.preset.physics.operating_point(work, trial.setting)
        assert trial.seconds_per_step == pytest.approx(truth.seconds, rel=1e-9)


def test_a_loop_that_reports_only_step_begins_and_epoch_ends(monitor, gpu, work):
    optimizer = sweep(monitor, Energy(), warmup_steps=2, profile_steps=10)
    for _ in range(8):
        for _ in range(30):
            optimizer.on_step_begin()
            gpu.execute(work)
        optimizer.on_epoch_end()
        gpu.execute(EVALUATION)
    assert optimizer.phase is Phase.DONE
    for trial in optimizer.trials:
        truth = gpu.preset.physics.operating_point(work, trial.setting)
        assert trial.seconds_per_step == pytest.approx(truth.seconds, rel=1e-9)


def test_zero_wait_and_warm_up_steps_waste_no_step(monitor, gpu, work):
    optimizer = sweep(monitor, wait_steps=0, warmup_steps=0, profile_steps=3)
    train(optimizer, gpu, work, steps=11 * 3)
    assert optimizer.chosen_limit_watts is not None


def test_leaving_the_with_block_by_an_exception_puts_the_limit_back(monitor, gpu, work):
    def interrupted_training():
        with sweep(monitor) as optimizer:
            train(optimizer, gpu, work, steps=200)
            assert gpu.read_power_limit_watts() < 350
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted_training()
    assert gpu.read_power_limit_watts() == 350


def test_a_second_training_goes_on_where_the_first_was_left(monitor, gpu, work):
    optimizer = sweep(monitor, Energy(), warmup_steps=0, profile_steps=4)
    train(optimizer, gpu, work, steps=20)
    optimizer.on_train_end()
    measured = len(optimizer.trials)
    assert 0 < measured < 11
    train(optimizer, gpu, work, steps=100)
    assert optimizer.phase is Phase.DONE
    optimizer.on_train_end()
    assert gpu.read_power_limit_watts() == 350
    optimizer.on_train_begin()
    assert gpu.read_power_limit_watts() == optimizer.chosen_limit_watts
    optimizer.on_train_end()


def test_without_rights_training_goes_on_observed_with_one_warning(time_source, work, caplog):
    gpu = SimulatedGpu(find_preset("A100"), time_source=time_source, power_limit_watts=350, grants_control=False)
    optimizer = sweep(ZeusMonitor(gpus=[gpu], time_source=time_source))
    train(optimizer, gpu, work, steps=200)
    (warning,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "power limits are not changed" in warning.message
    assert [trial.setting for trial in optimizer.trials] == [350]
    assert optimizer.phase is Phase.DONE
    assert gpu.read_power_limit_watts() == 350


FALLIBLE = [
    "read_power_limit_watts",
    "read_power_limit_range_watts",
    "read_enforced_power_limit_watts",
    "set_power_limit",
    "read_energy_counter_joules",
    "read_power_watts",
]


@pytest.mark.parametrize("error", long_but_first([DriverFaultError("unknown"), RuntimeError("a bug")]))
@pytest.mark.parametrize("call", FALLIBLE)
@pytest.mark.parametrize("healthy_steps", [0, 30, 300])
def test_no_fault_reaches_the_training_and_the_limit_is_restored(
    time_source, gpu, work, call, healthy_steps, error, caplog
):
    faulty = FaultyGpu(gpu)
    optimizer = sweep(ZeusMonitor(gpus=[faulty], time_source=time_source))
    train(optimizer, gpu, work, steps=healthy_steps)
    faulty.fail(call, error)
    train(optimizer, gpu, work, steps=1000)
    faulty.heal()
    optimizer.on_train_end()
    stops = [record for record in caplog.records if "is off for the rest of this run" in record.message]
    assert len(stops) <= 1
    assert gpu.read_power_limit_watts() == 350


def test_a_trial_whose_energy_is_lost_is_repeated(time_source, gpu, work):
    faulty = FaultyGpu(gpu)
    optimizer = sweep(
        ZeusMonitor(gpus=[faulty], time_source=time_source), Energy(), wait_steps=0, warmup_steps=0, profile_steps=5
    )
    train(optimizer, gpu, work, steps=6)
    faulty.fail("read_energy_counter_joules", DriverFaultError("for once"), times=1)
    train(optimizer, gpu, work, steps=100)
    assert optimizer.phase is Phase.DONE
    assert len(optimizer.trials) == 11


@pytest.mark.parametrize("lasts", [2, None])
def test_a_block_in_which_the_gpu_vanishes_is_no_trial(time_source, gpu, work, lasts):
    """What it drew then was extrapolated, and the saving 20.5 % +-20.3."""
    faulty = FaultyGpu(gpu)
    optimizer = sweep(
        ZeusMonitor(gpus=[faulty], time_source=time_source), Energy(), wait_steps=0, warmup_steps=0, profile_steps=20
    )
    train(optimizer, gpu, work, steps=11 * 20 + 16)
    assert len(optimizer.trials) == 11
    for call in ("read_energy_counter_joules", "read_power_watts"):
        faulty.fail(call, DriverFaultError("GPU is lost"), times=lasts)
    train(optimizer, gpu, work, steps=10)
    assert optimizer.confirmation is None
    train(optimizer, gpu, work, steps=200)
    if lasts is None:
        assert optimizer.saving_fraction is None
    else:
        assert optimizer.confirmation.measurement.gpu_energy[0] == pytest.approx(
            20 * gpu.preset.physics.operating_point(work, optimizer.chosen_limit_watts).energy_joules, rel=0.02
        )


@pytest.mark.parametrize("code", [3, 27, 999])
def test_a_search_waits_at_the_original_while_the_counter_fails(make_driver, time_source, code):
    """It ended for the rest of the run: "the energy at 625 W was lost 3 times in a row"."""
    driver = make_driver(DeviceSpec(power_limit_watts=700))
    driver[0].set_load(500.0)
    driver.set_clock(time_source.now())
    monitor = ZeusMonitor(gpus=discover_gpus({}), cpus=CpuDiscovery((), "none"), time_source=time_source)
    optimizer = sweep(monitor, Energy(), wait_steps=0, warmup_steps=0, profile_steps=5, pl_step=75)

    def train(steps):
        for _ in range(steps):
            optimizer.on_step_begin()
            time_source.advance(0.5)
            driver.set_clock(time_source.now())
            optimizer.on_step_end()

    train(8)
    assert driver[0].power_limit_watts == 625
    driver.fail("nvmlDeviceGetTotalEnergyConsumption", code)
    train(60)
    assert driver[0].power_limit_watts == 700
    assert optimizer.result()["power limit"].startswith(
        "search unfinished: 1 of 8 settings measured, as the energy cannot be measured any more"
    )
    driver.clear_faults()
    train(60)
    optimizer.on_train_end()
    assert sorted(trial.setting for trial in optimizer.trials) == [200, 250, 325, 400, 475, 550, 625, 700]
    assert optimizer.chosen_limit_watts is not None
    assert driver[0].power_limit_watts == 700


def test_time_before_the_first_step_is_in_no_trial(monitor, gpu, time_source, work):
    optimizer = sweep(monitor, Energy(), wait_steps=0, warmup_steps=0, profile_steps=4)
    optimizer.on_train_begin()
    optimizer.on_epoch_begin()
    time_source.advance(10.0)
    train(optimizer, gpu, work, steps=60)
    truth = gpu.preset.physics.operating_point(work, 350)
    assert optimizer.trials[0].seconds_per_step == pytest.approx(truth.seconds)


def test_a_confirmation_that_is_lost_leaves_the_choice_in_force(time_source, gpu, work):
    faulty = FaultyGpu(gpu)
    optimizer = sweep(
        ZeusMonitor(gpus=[faulty], time_source=time_source), Energy(), wait_steps=0, warmup_steps=0, profile_steps=4
    )
    train(optimizer, gpu, work, steps=45)
    assert optimizer.chosen_limit_watts == 250
    faulty.fail("read_energy_counter_joules", DriverFaultError("for long"))
    train(optimizer, gpu, work, steps=40)
    assert optimizer.phase is Phase.DONE
    assert optimizer.confirmation is None
    assert gpu.read_power_limit_watts() == optimizer.chosen_limit_watts == 250


def test_rights_lost_at_the_second_gpu_leave_none_changed(time_source, work):
    gpus = [
        SimulatedGpu(find_preset("A100"), index=i, time_source=time_source, power_limit_watts=350) for i in range(2)
    ]
    second = FaultyGpu(gpus[1])
    optimizer = sweep(
        ZeusMonitor(gpus=[gpus[0], second], time_source=time_source),
        Energy(),
        wait_steps=0,
        warmup_steps=0,
        profile_steps=4,
    )
    train(optimizer, gpus[0], work, steps=5)
    second.fail("set_power_limit", PermissionDeniedError("not any more"))
    train(optimizer, gpus[0], work, steps=40)
    assert gpus[0].read_power_limit_watts() == 350
    second.heal()
    optimizer.on_train_end()
    assert gpus[1].read_power_limit_watts() == 350


def test_the_limit_in_force_is_known_while_training_goes_on(monitor, gpu, work):
    optimizer = sweep(monitor, Energy(), wait_steps=2, warmup_steps=0, profile_steps=4)
    assert optimizer.power_limit_watts is None
    optimizer.on_train_begin()
    for _ in range(60):
        assert optimizer.power_limit_watts == gpu.read_power_limit_watts()
        train(optimizer, gpu, work, steps=1)
    assert optimizer.power_limit_watts == optimizer.chosen_limit_watts
    optimizer.on_train_end()
    assert optimizer.power_limit_watts is None


def test_the_saving_is_known_once_it_is_confirmed(monitor, gpu, work):
    optimizer = sweep(monitor, Energy(), wait_steps=0, warmup_steps=0, profile_steps=40)
    train(optimizer, gpu, work, steps=11 * 40)
    assert optimizer.chosen_limit_watts is not None
    assert optimizer.saving_fraction is None
    train(optimizer, gpu, work, steps=40)
    physics = gpu.preset.physics
    before, after = (physics.operating_point(work, limit) for limit in (350, optimizer.chosen_limit_watts))
    assert optimizer.saving_fraction == pytest.approx(1 - after.energy_joules / before.energy_joules, abs=0.01)
    optimizer.on_train_end()
    assert optimizer.saving_fraction > 0.1


def test_an_optimizer_is_an_observer_and_a_pause_may_say_what_for(monitor, gpu, work):
    optimizer = sweep(monitor, Energy(), warmup_steps=0, profile_steps=4)
    observer: Observer = optimizer
    train(optimizer, gpu, work, steps=3)
    observer.receive(Pause(Activity.EVALUATION))
    gpu.execute(EVALUATION)
    observer.receive(Resume())
    gpu.execute(EVALUATION)
    train(optimizer, gpu, work, steps=10)
    truth = gpu.preset.physics.operating_point(work, 350)
    assert optimizer.trials[0].seconds_per_step == pytest.approx(truth.seconds)


def test_a_fault_that_passes_at_a_change_ends_no_search(time_source, gpu, work, caplog):
    faulty = FaultyGpu(gpu)
    monitor = ZeusMonitor(gpus=[faulty], time_source=time_source)
    optimizer = sweep(monitor, Energy(), wait_steps=0, warmup_steps=0, profile_steps=4)
    train(optimizer, gpu, work, steps=2)
    faulty.fail("set_power_limit", DriverFaultError("unknown"), times=1)
    train(optimizer, gpu, work, steps=60)
    assert optimizer.phase is Phase.DONE
    assert caplog.records == []
    optimizer.on_train_end()


@pytest.mark.parametrize("error", [DeviceHeldError("process 71 controls it"), PermissionDeniedError("ask an admin")])
def test_no_choice_is_announced_where_no_limit_is_changed(time_source, gpu, work, caplog, error):
    caplog.set_level("INFO")
    faulty = FaultyGpu(gpu)
    faulty.fail("set_power_limit", error)
    monitor = ZeusMonitor(gpus=[faulty], time_source=time_source)
    optimizer = sweep(monitor, Energy(), wait_steps=0, warmup_steps=0, profile_steps=4)
    train(optimizer, gpu, work, steps=30)
    assert "are not changed" in caplog.text
    assert "is chosen" not in caplog.text


def test_a_limit_that_could_not_be_restored_is_not_the_original(time_source, gpu, work, caplog):
    faulty = FaultyGpu(gpu)
    optimizer = sweep(
        ZeusMonitor(gpus=[faulty], time_source=time_source), Energy(), wait_steps=0, warmup_steps=0, profile_steps=4
    )
    train(optimizer, gpu, work, steps=30)
    faulty.fail("set_power_limit", DriverFaultError("for long"))
    optimizer.on_train_end()
    assert gpu.read_power_limit_watts() < 350
    train(optimizer, gpu, work, steps=30)
    assert optimizer.phase is Phase.OFF
    assert "have not been restored yet" in caplog.text
    faulty.heal()
    optimizer.on_train_end()
    assert gpu.read_power_limit_watts() == 350


def test_indices_in_a_trial_are_those_of_the_monitor(time_source, work):
    gpus = [SimulatedGpu(find_preset("A40"), index=index, time_source=time_source) for index in range(3)]
    optimizer = sweep(
        ZeusMonitor([2, 1], gpus=gpus, time_source=time_source), wait_steps=0, warmup_steps=0, profile_steps=2
    )
    train(optimizer, gpus[1], work, steps=2)
    assert list(optimizer.trials[0].measurement.gpu_energy) == [2, 1]
    optimizer.on_train_end()


def test_an_optimizer_nobody_holds_any_more_puts_the_limit_back(monitor, gpu, work):
    optimizer = sweep(monitor, Energy(), wait_steps=0, warmup_steps=0, profile_steps=4)
    train(optimizer, gpu, work, steps=30)
    assert gpu.read_power_limit_watts() < 350
    del optimizer
    assert gpu.read_power_limit_watts() == 350


def test_what_was_forgotten_is_measured_again(monitor, gpu, work, tmp_path):
    profile = tmp_path / "profile.json"
    optimizer = sweep(monitor, warmup_steps=0, profile_steps=4, profile_path=profile)
    train(optimizer, gpu, work, steps=30)
    optimizer.forget()
    assert optimizer.trials == []
    assert gpu.read_power_limit_watts() == 350
    train(optimizer, gpu, replace(work, seconds=1.5), steps=100)
    truth = gpu.preset.physics.operating_point(replace(work, seconds=1.5), 350)
    assert optimizer.trials[0].seconds_per_step == pytest.approx(truth.seconds)


def test_evaluations_reported_in_the_published_way_are_in_no_trial(monitor, gpu, work):
    optimizer = sweep(monitor, warmup_steps=0, profile_steps=4)
    train(optimizer, gpu, work, steps=3)
    gpu.execute(EVALUATION)
    optimizer.on_evaluate(0.5)
    train(optimizer, gpu, work, steps=6)
    truth = gpu.preset.physics.operating_point(work, 350)
    assert optimizer.trials[0].seconds_per_step == pytest.approx(truth.seconds)


class Favourite(OptimumSelector):
    def __init__(self, choice):
        self.choice = choice

    def select(self, measurements):
        self.seen = measurements
        return self.choice


def test_a_selector_of_the_users_sees_all_trials_over_the_same_steps(monitor, gpu, work):
    selector = Favourite(225)
    optimizer = sweep(monitor, selector, warmup_steps=0, profile_steps=4)
    train(optimizer, gpu, work, steps=60)
    assert [measurement.power_limit for measurement in selector.seen] == list(range(350, 99, -25))
    for measurement in selector.seen:
        assert measurement.time == pytest.approx(
            4 * gpu.preset.physics.operating_point(work, measurement.power_limit).seconds
        )
    assert optimizer.chosen_limit_watts == gpu.read_power_limit_watts() == 225


class Lowest(Objective):
    def cost(self, measurement, baseline):
        return measurement.power_limit


def test_a_cost_without_noise_is_believed_although_later_steps_are_longer():
    gpu, monitor = simulated("H100", seed=1, power_limit_watts=450)
    optimizer = GlobalPowerLimitOptimizer(monitor, Lowest(), wait_steps=0, warmup_steps=0, profile_steps=2)
    for step in range(20):
        optimizer.on_step_begin()
        gpu.execute(Work(0.5 if step < 2 else 0.8, 120.0))
        optimizer.on_step_end()
    assert optimizer.chosen_limit_watts == 200


@pytest.mark.parametrize("choice", [None, "225", 225.5, 375, 0, float("nan")])
def test_a_selector_that_returns_an_impossible_limit_ends_only_the_search(monitor, gpu, work, choice, caplog):
    optimizer = sweep(monitor, Favourite(choice), warmup_steps=0, profile_steps=4)
    train(optimizer, gpu, work, steps=60)
    assert optimizer.phase is Phase.OFF
    assert gpu.read_power_limit_watts() == 350
    assert "is off for the rest of this run" in caplog.text
    assert str(choice) in caplog.text


def test_profiles_are_saved_after_every_trial_and_not_measured_again(tmp_path, work):
    profile = tmp_path / "folder" / "profile.json"
    gpu, monitor = simulated("A100", power_limit_watts=350)
    optimizer = sweep(monitor, Energy(), warmup_steps=0, profile_steps=4, profile_path=profile)
    train(optimizer, gpu, work, steps=1 + 4 * 3)
    (kept,) = json.loads(profile.read_text())["profiles"]
    assert [trial["setting"] for trial in kept["trials"]] == [350, 325, 300]
    optimizer.on_train_end()

    gpu, monitor = simulated("A100", power_limit_watts=350)
    optimizer = sweep(monitor, Energy(), warmup_steps=0, profile_steps=4, profile_path=str(profile))
    train(optimizer, gpu, work, steps=1 + 4 * 8)
    assert optimizer.chosen_limit_watts is not None
    optimizer.on_train_end()

    gpu, monitor = simulated("A100", power_limit_watts=350)
    finished = sweep(monitor, Energy(), profile_steps=4, profile_path=profile)
    finished.on_epoch_begin()
    assert gpu.read_power_limit_watts() == finished.chosen_limit_watts == optimizer.chosen_limit_watts
    finished.on_train_end()


@pytest.mark.parametrize(("limit_watts", "work_facts"), [(300, {"batch": 8}), (400, {"batch": 4})])
def test_a_profile_of_another_original_limit_or_other_work_is_not_used(tmp_path, work, caplog, limit_watts, work_facts):
    profile = tmp_path / "profile.json"
    arguments = {"warmup_steps": 0, "profile_steps": 4, "profile_path": profile}
    gpu, monitor = simulated("A100", power_limit_watts=400)
    optimizer = sweep(monitor, Time(), **arguments)
    optimizer.use_work({"batch": 8})
    train(optimizer, gpu, work, steps=70)
    optimizer.on_train_end()

    gpu, monitor = simulated("A100", power_limit_watts=limit_watts)
    optimizer = sweep(monitor, Time(), **arguments)
    optimizer.use_work(work_facts)
    optimizer.on_train_begin()
    assert optimizer.trials == []
    assert "has no trials that fit" in caplog.text
    optimizer.on_train_end()

    gpu, monitor = simulated("A100", power_limit_watts=400)
    optimizer = sweep(monitor, Time(), **arguments)
    optimizer.use_work({"batch": 8})
    optimizer.on_train_begin()
    assert optimizer.chosen_limit_watts is not None
    optimizer.on_train_end()


@pytest.mark.parametrize("work_facts", [5, {5: 5}, {"batch": [8]}])
def test_work_that_is_told_by_something_else_is_refused(monitor, work_facts):
    with pytest.raises(UsageError, match="work is "):
        sweep(monitor).use_work(work_facts)


def test_a_profile_of_the_zeus_package_is_used_and_stays(tmp_path, work):
    gpu, monitor = simulated("A100")
    measured = true_sweep(gpu, work, range(400, 99, -25))
    profile = tmp_path / "power_limit.json"
    found = [{"power_limit": one.power_limit, "energy": 4 * one.energy, "time": 4 * one.time} for one in measured]
    profile.write_text(json.dumps({"measurements": found}))
    text = profile.read_text()
    optimizer = sweep(monitor, Energy(), profile_steps=4, profile_path=profile)
    optimizer.on_epoch_begin()
    best = min(measured, key=lambda it: it.energy).power_limit
    assert gpu.read_power_limit_watts() == optimizer.chosen_limit_watts == best
    optimizer.on_train_end()
    assert profile.read_text() == text


def test_a_profile_that_cannot_be_read_stays_and_limits_are_measured(tmp_path, monitor, gpu, work, caplog):
    profile = tmp_path / "profile.json"
    profile.write_text('{"measurements": [')
    optimizer = sweep(monitor, warmup_steps=0, profile_steps=4, profile_path=profile)
    train(optimizer, gpu, work, steps=100)
    assert optimizer.phase is Phase.DONE
    assert "is not used" in caplog.text
    assert profile.read_text() == '{"measurements": ['
    assert json.loads((tmp_path / "profile-zeus-core.json").read_text())["profiles"]


def test_several_gpus_are_set_alike_and_their_energy_is_summed(time_source, work):
    gpus = [SimulatedGpu(find_preset("A40"), index=index, time_source=time_source) for index in range(2)]
    optimizer = sweep(ZeusMonitor(gpus=gpus, time_source=time_source), warmup_steps=0, profile_steps=10)
    optimizer.on_train_begin()
    for _ in range(120):
        optimizer.on_step_begin()
        for gpu in gpus:
            gpu.submit(work)
        for gpu in gpus:
            gpu.synchronize()
        optimizer.on_step_end()
    assert optimizer.phase is Phase.DONE
    assert {gpu.read_power_limit_watts() for gpu in gpus} == {optimizer.chosen_limit_watts}
    truth = gpus[0].preset.physics.operating_point(work, 300)
    assert optimizer.trials[0].joules_per_step == pytest.approx(2 * truth.energy_joules, rel=0.03)
    optimizer.on_train_end()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"wait_steps": -1}, "wait_steps is -1"),
        ({"profile_steps": 0}, "profile_steps is 0"),
        ({"pl_step": 0}, "pl_step is 0"),
        ({"pl_step": 2.5}, "pl_step is 2.5"),
        ({"optimum_selector": Energy}, "optimum_selector is"),
        ({"optimum_selector": "energy"}, "optimum_selector is 'energy'"),
        ({"profile_path": "."}, "profile_path is '.'"),
        ({"world": SoloWorld}, "world is <class"),
    ],
)
def test_wrong_arguments_are_named_at_construction(monitor, arguments, message):
    with pytest.raises(UsageError, match=message):
        sweep(monitor, **arguments)


def test_a_monitor_that_measures_no_gpu_is_an_error():
    with pytest.raises(UsageError, match="measures no GPU"):
        sweep(ZeusMonitor(gpu_indices=[]))
    with pytest.raises(UsageError, match="monitor is None"):
        sweep(None)


EVENTS = [TrainBegin(), EpochBegin(), StepBegin(), StepEnd(), Pause(), Interference(), EpochEnd(), TrainEnd()]


@settings(max_examples=150, deadline=None)
@given(happenings=st.lists(st.sampled_from(EVENTS), max_size=80))
def test_events_in_any_order_neither_raise_nor_leave_the_hardware_changed(happenings):
    gpu, monitor = simulated("A40", power_limit_watts=250)
    optimizer = sweep(monitor, wait_steps=0, warmup_steps=1, profile_steps=2, pl_step=75)
    for event in happenings:
        optimizer.receive(event)
        gpu.execute(WORKS["A40"])
        assert 100 <= gpu.read_power_limit_watts() <= 250
    optimizer.on_train_end()
    assert gpu.read_power_limit_watts() == 250
    assert optimizer.phase is Phase.REST
    for trial in optimizer.trials:
        assert trial.steps == 2
