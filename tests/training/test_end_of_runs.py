"""What is charged to what at the end of a training, and that logs add up to it."""

import pytest

from zeus_core.device import Work
from zeus_core.events import Activity
from zeus_core.training import TrainingEnergy
from zeus_core.training.activities.tally import Tally

STEP, EVALUATION = Work(0.5, 484.9, 0.938, 0.744), Work(1.3, 300.0)


@pytest.fixture
def energy(monitor):
    return TrainingEnergy(monitor, quiet=True)


def evaluate(energy, gpu):
    with energy.during(Activity.EVALUATION):
        gpu.execute(EVALUATION)
        return energy.log_evaluation()


@pytest.mark.parametrize(("steps", "log_every", "evaluate_every"), [(10, 3, 4), (4, 10, 2), (45, 10, 15), (6, 1, 6)])
def test_all_logs_add_up(energy, gpu, steps, log_every, evaluate_every):
    logs = []
    with energy:
        for step in range(1, steps + 1):
            with energy.step():
                gpu.execute(STEP)
            if step % log_every == 0:
                logs.append(energy.log())
            if step % evaluate_every == 0:
                logs.append(evaluate(energy, gpu))
                with energy.during(Activity.CHECKPOINT):
                    gpu.execute(Work(0.2, 80.0))
        with energy.during(Activity.EVALUATION):  # which is not logged
            gpu.execute(EVALUATION)
    values = energy.summary.log_values()
    is_logged = steps % log_every == 0
    assert is_logged or sum(log.get("energy_j", 0.0) for log in [*logs, values]) == values["train_energy_steps_j"]
    for name, total in (("energy_j", "train_energy_steps_j"), ("eval_energy_j", "train_energy_evaluation_j")):
        assert sum(log.get(name, 0.0) for log in [*logs, values]) == pytest.approx(values[total], rel=0.005)
        assert all(log.get(name, 0.0) >= 0.0 for log in logs)
    assert "energy_j" not in energy.summary.values(), "a metric of the whole run has no name of an interval's"


def test_what_is_found_out_of_an_interval_is_logged_with_the_next(energy, gpu):
    """Quick logs share the energy of two seconds; what that leaves out does not stay out."""
    logged = 0.0
    with energy:
        for step in range(120):
            with energy.step():
                gpu.execute(Work(0.1, 400.0 if step < 60 else 100.0))
            logged += energy.log()["energy_j"]
        total = energy.finish().values()["train_energy_steps_j"]
    assert logged == pytest.approx(total, rel=0.02)


def steps_with_both_ends(energy, gpu):
    with energy.step():
        gpu.execute(STEP)


def steps_that_begin(energy, gpu):
    energy.on_step_begin()
    gpu.execute(STEP)


def steps_that_end(energy, gpu):
    gpu.execute(STEP)
    energy.on_step_end()


@pytest.mark.parametrize("report", [steps_with_both_ends, steps_that_begin, steps_that_end])
@pytest.mark.parametrize("steps", [2, 4, 30])
@pytest.mark.parametrize("has_epochs", [False, True])
def test_no_energy_after_the_last_step_is_that_of_steps(energy, gpu, report, steps, has_epochs):
    """A validation that nothing announces, and an end that is reported after it."""
    energy.on_train_begin()
    energy.on_epoch_begin()
    begin = gpu.exact_energy_joules()
    for _ in range(steps):
        report(energy, gpu)
    trained = gpu.exact_energy_joules() - begin
    gpu.execute(Work(20.0, 350.0))
    if has_epochs:
        energy.on_epoch_end()
    energy.on_train_end()
    account = energy.summary.account
    assert account.training.energy_joules == pytest.approx(trained, rel=0.1)
    rest = [account.activities.get(activity, Tally()) for activity in (Activity.IDLE, Activity.BETWEEN_STEPS)]
    assert sum(tally.measured_joules for tally in rest) == pytest.approx(7000, rel=0.1)
    assert sum(tally.measured_joules for tally in account.activities.values()) == account.total.energy_joules


def test_a_step_that_an_error_interrupts_is_one(energy, gpu):
    energy.on_train_begin()
    for _ in range(10):
        steps_with_both_ends(energy, gpu)
    energy.on_step_begin()
    gpu.execute(Work(20.0, 350.0))
    energy.on_train_end()
    assert energy.summary.account.activities[Activity.IDLE].seconds == 0


def test_steps_may_go_on_after_the_end_was_asked_for(energy, gpu):
    with energy:
        steps_with_both_ends(energy, gpu)
        first = energy.finish()
        steps_with_both_ends(energy, gpu)
        assert energy.log()["energy_j"] == pytest.approx(first.last_log["energy_j"], rel=0.2)
