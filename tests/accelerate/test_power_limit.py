"""The search in loops written with accelerate, on a simulated GPU whose clock is virtual."""

import json

import pytest

from tests.accelerate.loop import BACKWARD, FORWARD, Loop
from tests.support.variants import long_but_first
from zeus_core.device import Work
from zeus_core.errors import UsageError
from zeus_core.optimizer import Energy, GlobalClockOptimizer, MaxSlowdownConstraint
from zeus_core.optimizer.global_setting.phases import Phase
from zeus_core.search import GridSearch
from zeus_huggingface.accelerate import PowerLimitOptimizer, ZeusAccelerate

FOUND_WATTS = 350


def make_search(loop, monitor):
    return PowerLimitOptimizer(loop.accelerator, monitor, Energy(), search=GridSearch, warmup_steps=2, profile_steps=10)


def step_truth(gpu, limit_watts, passes=1):
    points = [gpu.preset.physics.operating_point(work, limit_watts) for work in (FORWARD, BACKWARD)]
    return passes * sum(point.seconds for point in points), passes * sum(point.energy_joules for point in points)


def check_trials(search, gpu, passes=1):
    assert [trial.setting for trial in search.optimizer.trials] == list(range(FOUND_WATTS, 99, -25))
    for trial in search.optimizer.trials:
        seconds, joules = step_truth(gpu, trial.setting, passes)
        assert trial.seconds_per_step == pytest.approx(seconds, rel=1e-9)
        assert trial.joules_per_step == pytest.approx(joules, rel=0.03)
    assert search.optimizer.confirmation is not None
    assert search.optimizer.chosen_limit_watts == 250
    assert gpu.read_power_limit_watts() == FOUND_WATTS


def test_evaluations_and_checkpoints_are_in_no_trial(loop, monitor, gpu):
    with make_search(loop, monitor) as search:
        for step in loop.train(200):
            if step % 15 == 0:
                with search.evaluation():
                    loop.evaluate()
            if step % 20 == 0:
                loop.accelerator.save_state(loop.folder / "checkpoint")
    check_trials(search, gpu)
    assert not search.optimizer._expects_interference, "all pauses were announced"


def test_an_evaluation_that_is_not_announced_is_in_no_trial_either(loop, monitor, gpu):
    with make_search(loop, monitor) as search:
        for step in loop.train(250):
            if step % 15 == 0:
                loop.evaluate()
    check_trials(search, gpu)


def test_a_step_is_one_of_the_optimizer(tmp_path, monitor, gpu):
    loop = Loop(tmp_path, gpu, gradient_accumulation_steps=2)
    with make_search(loop, monitor) as search:
        for _ in loop.train(160):
            pass
    check_trials(search, gpu, passes=2)


@pytest.mark.parametrize("takes_part", long_but_first([True, False]))
def test_both_together_measure_and_save(loop, monitor, gpu, takes_part):
    search = make_search(loop, monitor)
    energy = ZeusAccelerate(loop.accelerator, monitor, search if takes_part else None)
    loop.train_and_log(160, every=20)
    assert loop.logged()[-1]["power_limit_w"] == search.optimizer.chosen_limit_watts
    loop.accelerator.end_training()
    check_trials(search, gpu)
    saving = loop.logged()[-1].get("train_energy_saving_fraction")
    if takes_part:
        assert saving == pytest.approx(1 - step_truth(gpu, 250)[1] / step_truth(gpu, 350)[1], rel=0.02)
    assert energy.summary.steps == 160
    assert "log" not in vars(loop.accelerator)


def test_the_end_of_training_puts_the_limit_back(loop, monitor, gpu):
    search = make_search(loop, monitor)
    for _ in loop.train(20):
        pass
    assert gpu.read_power_limit_watts() < FOUND_WATTS
    loop.accelerator.end_training()
    assert gpu.read_power_limit_watts() == FOUND_WATTS
    assert search.optimizer.phase is Phase.REST


def test_loading_a_checkpoint_goes_on_with_the_search(loop, monitor, gpu):
    with ZeusAccelerate(loop.accelerator, optimizer=make_search(loop, monitor)) as energy:
        loop.train_and_log(60, every=20)
        loop.accelerator.save_state(loop.folder / "checkpoint")
        loop.accelerator.load_state(loop.folder / "checkpoint")
        known = len(energy.energy.optimizer.trials)
        assert known > 3
        loop.train_and_log(110, every=20)
    assert len(energy.energy.optimizer.trials) == 11
    assert gpu.read_power_limit_watts() == FOUND_WATTS


def test_wrong_arguments_are_named(loop, monitor):
    with pytest.raises(UsageError, match="accelerator is None"):
        PowerLimitOptimizer(None, monitor)
    with pytest.raises(UsageError, match="profile_steps is 0"):
        PowerLimitOptimizer(loop.accelerator, monitor, profile_steps=0)
    with pytest.raises(TypeError, match="'profile_step'"):
        PowerLimitOptimizer(loop.accelerator, monitor, profile_step=8)


def test_a_clock_is_searched_instead_of_a_limit_with_that_optimizer(loop, monitor, gpu, tmp_path):
    optimizer = GlobalClockOptimizer(
        monitor,
        Energy(),
        warmup_steps=1,
        profile_steps=4,
        search=lambda clocks, selector: GridSearch(clocks[::20]),
        profile_path=tmp_path / "profile.json",
    )
    with ZeusAccelerate(loop.accelerator, optimizer=optimizer, quiet=True):
        for _ in loop.train(60):
            pass
    assert [trial.setting for trial in optimizer.trials] == [1410, 1110, 810, 510, 210]
    gpu.submit(Work(1e6, 90.0))
    assert gpu.read_sm_clock_mhz() == 1410, "it is unlocked again"
    (profile,) = json.loads((tmp_path / "profile.json").read_text())["profiles"]
    work = profile["conditions"]["work"]
    assert work["parameters"] > 0
    assert {"model", "batch_size", "accumulation", "precision", "ranks"} < work.keys()


def test_one_argument_tries_limits_and_clocks(loop, monitor):
    with PowerLimitOptimizer(
        loop.accelerator, monitor, MaxSlowdownConstraint(1.1), max_steps=150, knob="auto"
    ) as search:
        for _ in loop.train(150):
            pass
    assert {"or power limit", "or SM clock"} & search.optimizer.result().keys()
