"""Energy of a loop written with accelerate, on a simulated GPU in virtual time."""

import pytest
import torch
from accelerate import Accelerator
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.accelerate.loop import BACKWARD, FORWARD, Loop, SlowState
from zeus_core.device import Work
from zeus_core.errors import UsageError
from zeus_core.events import Activity
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import GlobalPowerLimitOptimizer
from zeus_core.search import GridSearch
from zeus_core.training.record.run_file import read_run
from zeus_huggingface.accelerate import ZeusAccelerate

FOUND_WATTS = 350
INTERVAL = {"energy_j", "power_w", "energy_per_sample_j", "total_energy_j", "power_limit_w"}


def step_joules(gpu, passes=1):
    return passes * sum(
        gpu.preset.physics.operating_point(work, FOUND_WATTS).energy_joules for work in (FORWARD, BACKWARD)
    )


def activity_joules(summary):
    return {activity: tally.energy_joules for activity, tally in summary.account.activities.items()}


def test_each_phase_is_what_the_gpu_took_in_it(loop, monitor, gpu):
    truth = dict.fromkeys(Activity, 0.0)

    def during(activity, action):
        before = gpu.exact_energy_joules()
        action()
        truth[activity] += gpu.exact_energy_joules() - before

    loop.accelerator.register_for_checkpointing(SlowState(gpu, Work(8.0, 150.0, 0.5, 0.1)))
    with ZeusAccelerate(loop.accelerator, monitor) as energy:
        during(Activity.IDLE, lambda: gpu.execute(Work(6.0, 90.0, 0.5, 0.1)))
        for _ in range(3):
            during(Activity.STEPS, lambda: loop.train_and_log(7))
            during(Activity.CHECKPOINT, lambda: loop.accelerator.save_state(loop.folder / "checkpoint"))
            with energy.evaluation():
                during(Activity.EVALUATION, lambda: loop.evaluate(20))
    measured = activity_joules(energy.summary)
    assert {name: joules for name, joules in truth.items() if joules > 0} == pytest.approx(measured, rel=0.03)
    assert len(measured) == 4
    assert energy.summary.account.total.energy_joules == pytest.approx(sum(truth.values()), rel=0.01)
    assert energy.summary.steps == 21


def test_each_log_holds_the_steps_since_the_one_before(loop, monitor, gpu):
    with ZeusAccelerate(loop.accelerator, monitor):
        loop.train_and_log(40, every=10)
    *intervals, end = loop.logged()
    assert [line["step"] for line in intervals] == [10, 20, 30, 40]
    for line in intervals:
        assert line.keys() == {*INTERVAL, "time", "step", "loss"}
        assert line["energy_j"] == pytest.approx(10 * step_joules(gpu), rel=0.03)
        assert line["energy_per_sample_j"] == pytest.approx(line["energy_j"] / 40, rel=1e-9)
        assert line["power_limit_w"] == FOUND_WATTS
    assert sum(line["energy_j"] for line in intervals) == pytest.approx(end["train_energy_steps_j"], rel=0.001)
    assert end["step"] == 40
    assert end["train_energy_j"] == pytest.approx(40 * step_joules(gpu), rel=0.01)


def test_tensorboard_gets_the_values(tmp_path, monitor, gpu):
    loop = Loop(tmp_path, gpu, log_with="tensorboard")
    with ZeusAccelerate(loop.accelerator, monitor) as energy:
        loop.train_and_log(20, every=10)
        with energy.evaluation():
            loop.evaluate()
        loop.accelerator.log({"eval_loss": 1.0, "eval_tensor": torch.tensor(1.0), "lr": 0.1}, step=20)
        loop.accelerator.end_training()
    assert {name: len(points) for name, points in read_run(tmp_path).losses.items()} == {"loss": 2, "eval_loss": 1}
    events = EventAccumulator(str(tmp_path / "run")).Reload()
    assert set(events.Tags()["scalars"]) >= {*INTERVAL, "loss", "eval_loss", "eval_energy_j", "train_energy_j"}
    first, second = events.Scalars("energy_j")
    assert (first.step, second.step) == (10, 20)
    assert first.value == pytest.approx(10 * step_joules(gpu), rel=0.03)


def test_a_step_is_one_of_the_optimizer_however_many_batches_it_takes(tmp_path, monitor, gpu):
    loop = Loop(tmp_path, gpu, samples=50, gradient_accumulation_steps=4)  # 13 batches make 4 steps, the last of one
    with ZeusAccelerate(loop.accelerator, monitor) as energy:
        loop.train_and_log(8)
    assert len(loop.losses) == 26
    assert energy.summary.steps == 8
    assert energy.summary.account.samples == 100
    first = loop.logged()[0]
    assert first["energy_j"] == pytest.approx(step_joules(gpu, passes=4), rel=0.04)
    assert first["energy_per_sample_j"] == pytest.approx(first["energy_j"] / 16, rel=1e-9)


def test_samples_and_tokens_can_be_told(loop, monitor, gpu):
    with ZeusAccelerate(loop.accelerator, monitor, samples_per_step=10) as energy:
        for step in loop.train(2):
            if step == 2:
                energy.count(tokens=500)
            loop.accelerator.log({}, step=step)
    first, second, _ = loop.logged()
    assert first["energy_per_sample_j"] == pytest.approx(first["energy_j"] / 10)
    assert second["energy_per_token_j"] == pytest.approx(second["energy_j"] / 500)
    assert "energy_per_sample_j" not in second
    assert energy.summary.account.samples == 20


def test_without_a_prepared_dataloader_there_is_no_energy_per_sample(loop, monitor):
    with ZeusAccelerate(loop.accelerator, monitor):
        loop.train_batch(torch.ones(4, 3), torch.ones(4, 1))
        loop.accelerator.log({})
    assert "energy_j" in loop.logged()[0]
    assert "energy_per_sample_j" not in loop.logged()[0]


def test_of_several_optimizers_the_first_makes_the_steps(tmp_path, monitor, gpu):
    loop = Loop(tmp_path, gpu)
    other = loop.accelerator.prepare(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0))
    with ZeusAccelerate(loop.accelerator, monitor) as energy:
        for _ in loop.train(5):
            other.step()
    assert energy.summary.steps == 5


def test_an_evaluation_is_in_the_next_log_and_in_no_other(loop, monitor, gpu):
    with ZeusAccelerate(loop.accelerator, monitor) as energy:
        loop.train_and_log(10, every=10)
        before = gpu.exact_energy_joules()
        with energy.evaluation():
            loop.evaluate(20)
        truth = gpu.exact_energy_joules() - before
        loop.accelerator.log({"eval_loss": 1.0}, step=10)
        loop.train_and_log(10, every=10)
    training, evaluation, more, end = loop.logged()
    assert evaluation["eval_energy_j"] == pytest.approx(truth, rel=0.03)
    assert "energy_j" not in evaluation, "there was no step since it was logged"
    assert not any("eval_energy_j" in line for line in (training, more, end))
    assert more["energy_j"] == pytest.approx(10 * step_joules(gpu), rel=0.03)


def test_an_evaluation_at_the_end_is_logged_at_the_end(loop, monitor):
    with ZeusAccelerate(loop.accelerator, monitor) as energy:
        loop.train_and_log(3)
        with energy.during(Activity.EVALUATION):
            loop.evaluate()
    assert loop.logged()[-1].keys() >= {"eval_energy_j", "train_energy_j"}


def test_text_generated_for_a_step_is_a_part_of_it(loop, monitor, gpu):
    with ZeusAccelerate(loop.accelerator, monitor) as energy:
        for _ in range(2):
            with energy.during(Activity.GENERATION):
                loop.evaluate(20)
            loop.train_and_log(7, every=7)
    measured = activity_joules(energy.summary)
    assert measured[Activity.GENERATION] == pytest.approx(40 * step_joules(gpu) / 3, rel=0.03)
    logged = [line["energy_j"] for line in loop.logged()[:2]]
    assert sum(logged) == pytest.approx(measured[Activity.GENERATION] + measured[Activity.STEPS], rel=0.001)


def test_what_the_loop_logs_is_logged_as_it_is(loop, monitor):
    with ZeusAccelerate(loop.accelerator, monitor):
        for _ in loop.train(1):
            loop.accelerator.log({"power_w": -1.0, "loss": 2.0}, 7, {"zeus": {}})
    first = loop.logged()[0]
    assert (first["power_w"], first["loss"], first["step"]) == (-1.0, 2.0, 7)


def test_the_end_of_training_logs_before_trackers_finish_and_cleans_up(loop, monitor, gpu):
    found = dict(vars(loop.accelerator))
    energy = ZeusAccelerate(loop.accelerator, monitor)
    loop.train_and_log(2)
    loop.accelerator.end_training()
    loop.train_and_log(1)
    assert vars(loop.accelerator).keys() == found.keys()
    assert loop.accelerator._save_model_state_pre_hook == loop.accelerator._load_model_state_pre_hook == {}
    assert "train_energy_j" in loop.logged()[2]
    assert "energy_j" not in loop.logged()[3]
    assert energy.summary.steps == 2
    with energy:
        pass  # an end more does nothing
    assert len(loop.logged()) == 4


def test_a_method_that_others_have_wrapped_since_is_left_to_them(loop, monitor):
    energy = ZeusAccelerate(loop.accelerator, monitor)
    ours = loop.accelerator.log
    loop.accelerator.log = lambda values, step=None: ours({**values, "theirs": 1}, step)
    loop.train_and_log(1)
    energy.close()
    loop.train_and_log(1)
    first, second = loop.logged()
    assert "energy_j" in first
    assert second.keys() == {"time", "step", "loss", "theirs"}


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt()])
def test_an_exception_leaves_no_limit_no_window_and_no_wrapper(loop, monitor, gpu, error):
    found = dict(vars(loop.accelerator))
    search = GlobalPowerLimitOptimizer(monitor, warmup_steps=1, profile_steps=3, search=GridSearch)

    def train():
        with ZeusAccelerate(loop.accelerator, optimizer=search):
            for step in loop.train(100):
                if step == 12:
                    assert gpu.read_power_limit_watts() < FOUND_WATTS
                    raise error

    with pytest.raises(type(error)):
        train()
    assert gpu.read_power_limit_watts() == FOUND_WATTS
    with pytest.raises(UsageError, match="open windows: none"):
        monitor.end_window("anything")
    assert vars(loop.accelerator).keys() == found.keys()
    assert loop.logged() == []


def test_a_compiled_model_is_seen_too(tmp_path, monitor, gpu):
    loop = Loop(tmp_path, None)
    loop.accelerator._models[0] = loop.model = torch.compile(loop.model, backend="eager")
    with ZeusAccelerate(loop.accelerator, monitor) as energy:
        gpu.execute(Work(5.0, 90.0, 0.5, 0.1))
        loop.model.register_forward_hook(lambda *_: gpu.execute(Work(1.0, 300.0, 0.9, 0.5)))
        loop.train_and_log(6)
    measured = energy.summary.account.activities
    assert measured[Activity.IDLE].seconds == pytest.approx(5.0, rel=0.01), (
        "the first step begins with its forward pass"
    )
    assert energy.summary.steps == 6


def test_without_arguments_a_monitor_is_made(loop, monkeypatch):
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "A40:1")
    energy = ZeusAccelerate(loop.accelerator)
    loop.train_and_log(1)
    energy.close()
    assert "energy_j" in loop.logged()[0]


def test_wrong_arguments_are_named(loop, monitor, time_source, gpu):
    with pytest.raises(UsageError, match=r"accelerator is 1; it must be an Accelerator, such as "):
        ZeusAccelerate(1, monitor)
    with pytest.raises(UsageError, match=r"accelerator has no optimizer yet; call accelerator\.prepare"):
        ZeusAccelerate(Accelerator(cpu=True), monitor)
    with pytest.raises(UsageError, match="monitor is 'gpu'"):
        ZeusAccelerate(loop.accelerator, "gpu")
    with pytest.raises(UsageError, match=r"samples_per_step is 1\.5"):
        ZeusAccelerate(loop.accelerator, monitor, samples_per_step=1.5)
    with pytest.raises(UsageError, match="exchange_steps is 0"):
        ZeusAccelerate(loop.accelerator, monitor, exchange_steps=0)
    with pytest.raises(UsageError, match="optimizer has another monitor"):
        ZeusAccelerate(
            loop.accelerator, monitor, GlobalPowerLimitOptimizer(ZeusMonitor(gpus=[gpu], time_source=time_source))
        )
    assert "log" not in vars(loop.accelerator)


def test_steps_that_cannot_be_seen_are_said_so(loop, monitor):
    loop.accelerator._optimizers[0].optimizer = object()
    with pytest.raises(UsageError, match="accelerator has a object, whose steps cannot be seen"):
        ZeusAccelerate(loop.accelerator, monitor)


def test_samples_are_counted_where_batches_are_skipped(loop, monitor):
    loop.batches = loop.accelerator.skip_first_batches(loop.batches, 3)
    with ZeusAccelerate(loop.accelerator, monitor) as energy:
        loop.train_and_log(13)
    assert energy.summary.account.samples == 4 * 13


def test_logs_add_up_where_several_evaluations_follow_the_last(loop, monitor, gpu):
    with ZeusAccelerate(loop.accelerator, monitor) as energy:
        for _ in range(3):
            loop.train_and_log(7, every=5)
            for _ in range(2):
                loop.evaluate(4)
    values = energy.summary.values()

    def logged(name):
        return sum(line.get(name, 0.0) for line in loop.logged())

    assert values["train_energy_steps_j"] == pytest.approx(21 * step_joules(gpu), rel=0.03)
    assert logged("energy_j") == pytest.approx(values["train_energy_steps_j"], rel=0.005)
    assert logged("eval_energy_j") == pytest.approx(values["train_energy_evaluation_j"], rel=0.005)
