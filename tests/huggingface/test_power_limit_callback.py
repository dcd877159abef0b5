"""The callback in real Trainers, on a simulated GPU whose clock is virtual."""

import json

import pytest
from transformers import TrainerCallback

from tests.huggingface.trainers import BACKWARD, FORWARD, RaiseAt, losses_of, make_trainer
from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.errors import UsageError
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import GlobalClockOptimizer
from zeus_core.optimizer.global_setting.phases import Phase
from zeus_core.optimizer.power_limit import Energy, MaxSlowdownConstraint
from zeus_core.pytorch import SimulatedCompute
from zeus_core.search import GridSearch
from zeus_huggingface import HFGlobalPowerLimitOptimizer, ZeusTrainerCallback

FOUND_WATTS = 350


def step_truth(gpu, limit_watts, passes=1):
    points = [gpu.preset.physics.operating_point(work, limit_watts) for work in (FORWARD, BACKWARD)]
    return passes * sum(point.seconds for point in points), passes * sum(point.energy_joules for point in points)


@pytest.fixture
def search(monitor):
    return HFGlobalPowerLimitOptimizer(monitor, Energy(), search=GridSearch, warmup_steps=2, profile_steps=8)


def test_the_search_completes_with_short_epochs_and_keeps_evaluations_out(tmp_path, search, monitor, gpu):
    trainer = make_trainer(
        tmp_path,
        [search],
        num_train_epochs=5,
        eval_strategy="steps",
        eval_steps=5,
        save_strategy="steps",
        save_steps=7,
    )
    SimulatedCompute(trainer.model, gpu, FORWARD, BACKWARD)
    trainer.train()
    optimizer = search.optimizer
    assert trainer.state.max_steps == 150
    assert optimizer.confirmation is not None
    assert not optimizer._expects_interference, "all pauses were announced"
    assert [trial.setting for trial in optimizer.trials] == list(range(350, 99, -25))
    for trial in optimizer.trials:
        seconds, joules = step_truth(gpu, trial.setting)
        assert trial.steps == 8
        assert trial.seconds_per_step == pytest.approx(seconds, rel=1e-9)
        assert trial.joules_per_step == pytest.approx(joules, rel=0.02)
    assert optimizer.chosen_limit_watts == 250
    assert gpu.read_power_limit_watts() == FOUND_WATTS


def test_a_step_is_an_optimizer_step(tmp_path, search, gpu):
    trainer = make_trainer(tmp_path, [search], max_steps=20, gradient_accumulation_steps=3)
    SimulatedCompute(trainer.model, gpu, FORWARD, BACKWARD)
    trainer.train()
    first = search.optimizer.trials[0]
    assert first.seconds_per_step == pytest.approx(step_truth(gpu, FOUND_WATTS, passes=3)[0], rel=1e-9)


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt()])
def test_leaving_training_by_an_exception_leaves_no_limit_and_no_window(tmp_path, search, monitor, gpu, error):
    trainer = make_trainer(tmp_path, [search, RaiseAt(16, error)], max_steps=150)
    SimulatedCompute(trainer.model, gpu, FORWARD, BACKWARD)
    with pytest.raises(type(error)):
        trainer.train()
    assert len(search.optimizer.trials) == 1
    assert search.optimizer.phase is Phase.REST
    assert gpu.read_power_limit_watts() == FOUND_WATTS
    with pytest.raises(UsageError, match="open windows: none"):
        monitor.end_window("anything")


@pytest.mark.long
def test_training_again_goes_on_with_what_is_known(tmp_path, search, gpu):
    trainer = make_trainer(tmp_path, [search], max_steps=24)
    SimulatedCompute(trainer.model, gpu, FORWARD, BACKWARD)
    trainer.train()
    assert len(search.optimizer.trials) == 2
    assert gpu.read_power_limit_watts() == FOUND_WATTS
    trainer.args.max_steps = 150
    trainer.train()
    assert search.optimizer.chosen_limit_watts == 250
    assert gpu.read_power_limit_watts() == FOUND_WATTS


def test_with_another_batch_size_what_was_measured_is_forgotten(tmp_path, search, gpu):
    trainer = make_trainer(tmp_path, [search], max_steps=24)
    SimulatedCompute(trainer.model, gpu, FORWARD, BACKWARD)
    trainer.train()
    trainer.args.gradient_accumulation_steps = 2
    trainer.train()
    (first, *_) = search.optimizer.trials
    assert first.seconds_per_step == pytest.approx(step_truth(gpu, FOUND_WATTS, passes=2)[0], rel=1e-9)


@pytest.mark.long
def test_an_evaluation_another_callback_asks_for_late_is_in_no_trial(tmp_path, search, gpu):
    class EvaluateLate(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_evaluate = state.global_step % 17 == 0

    trainer = make_trainer(tmp_path, [search, EvaluateLate()], max_steps=200)
    SimulatedCompute(trainer.model, gpu, FORWARD, BACKWARD)
    trainer.train()
    assert len(search.optimizer.trials) == 11
    for trial in search.optimizer.trials:
        assert trial.seconds_per_step == pytest.approx(step_truth(gpu, trial.setting)[0], rel=1e-9)


def losses(folder, callbacks):
    trainer = make_trainer(folder, callbacks, max_steps=24, logging_steps=1)
    trainer.train()
    return losses_of(trainer)


def test_training_is_the_same_bit_for_bit_with_the_callback(tmp_path, search):
    assert losses(tmp_path / "with", [search]) == losses(tmp_path / "without", [])


def test_trainers_without_the_callback_are_left_alone(tmp_path, search, gpu):
    trainer = make_trainer(tmp_path, [], max_steps=3)
    trainer.train()
    assert search.optimizer.phase is Phase.REST
    assert search.optimizer.baseline_limit_watts is None


def test_without_rights_training_goes_on(tmp_path, time_source):
    gpu = SimulatedGpu(find_preset("A100"), time_source=time_source, grants_control=False)
    monitor = ZeusMonitor(gpus=[gpu], time_source=time_source)
    search = HFGlobalPowerLimitOptimizer(monitor, MaxSlowdownConstraint(1.1), warmup_steps=2, profile_steps=8)
    trainer = make_trainer(tmp_path, [search], max_steps=40)
    SimulatedCompute(trainer.model, gpu, FORWARD, BACKWARD)
    trainer.train()
    assert trainer.state.global_step == 40
    assert [trial.setting for trial in search.optimizer.trials] == [400]


def test_wrong_arguments_are_named_at_construction(monitor):
    with pytest.raises(UsageError, match="profile_steps is 0"):
        HFGlobalPowerLimitOptimizer(monitor, profile_steps=0)
    with pytest.raises(TypeError, match="'profile_step'"):
        HFGlobalPowerLimitOptimizer(monitor, profile_step=8)


@pytest.mark.long
def test_a_clock_is_searched_instead_of_a_limit_with_that_optimizer(tmp_path, monitor, gpu):
    optimizer = GlobalClockOptimizer(
        monitor,
        Energy(),
        warmup_steps=1,
        profile_steps=4,
        search=lambda clocks, selector: GridSearch(clocks[::20]),
        profile_path=tmp_path / "profile.json",
    )
    callback = ZeusTrainerCallback(optimizer=optimizer, quiet=True)
    trainer = make_trainer(tmp_path, [callback], max_steps=40)
    SimulatedCompute(trainer.model, gpu, FORWARD, BACKWARD)
    trainer.train()
    assert [trial.setting for trial in optimizer.trials] == [1410, 1110, 810, 510, 210]
    assert optimizer.chosen_clock_mhz in (1110, 810)
    assert gpu.read_power_limit_watts() == FOUND_WATTS
    gpu.submit(Work(1e6, 90.0))
    assert gpu.read_sm_clock_mhz() == 1410, "it is unlocked again"
    (profile,) = json.loads((tmp_path / "profile.json").read_text())["profiles"]
    work = profile["conditions"]["work"]
    assert work["parameters"] == sum(parameter.numel() for parameter in trainer.model.parameters())
    assert work["samples_per_step"] == trainer.args.train_batch_size
    assert work["ranks"] == 1


def test_one_argument_tries_limits_and_clocks_and_keeps_the_better_one(tmp_path, monitor, gpu):
    search = HFGlobalPowerLimitOptimizer(monitor, MaxSlowdownConstraint(1.1), knob="auto")
    trainer = make_trainer(tmp_path, [search], max_steps=150)
    SimulatedCompute(trainer.model, gpu, FORWARD, BACKWARD)
    trainer.train()
    optimizer = search.optimizer
    kept, other = sorted(("power limit", "SM clock"), key=lambda name: name not in optimizer.result())
    assert f"or {other}" in optimizer.result()
    assert (optimizer.chosen_limit_watts is None) == (kept == "SM clock")
    assert gpu.read_power_limit_watts() == FOUND_WATTS
    gpu.submit(Work(1e6, 90.0))
    assert gpu.read_sm_clock_mhz() == 1410, "it is unlocked again"
