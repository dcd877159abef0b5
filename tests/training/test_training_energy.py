"""`TrainingEnergy`, on a simulated GPU."""

import json
import time

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.errors import DriverFaultError, UsageError, WorldError
from zeus_core.events import Activity, TrainingOptimizer
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import Energy, GlobalClockOptimizer, GlobalPowerLimitOptimizer
from zeus_core.ports.world import SoloWorld
from zeus_core.search import GridSearch
from zeus_core.testing import FaultyGpu, ThreadWorld, VirtualTime
from zeus_core.training import TrainingEnergy

WORK = Work(0.5, 484.9, 0.938, 0.744)


@pytest.fixture
def energy(monitor):
    return TrainingEnergy(monitor)


def train(energy, gpu, steps):
    for _ in range(steps):
        with energy.step(samples=4):
            gpu.execute(WORK)


def test_what_is_logged_is_what_the_steps_took(energy, gpu):
    with energy:
        train(energy, gpu, 10)
        begin = gpu.exact_energy_joules()
        first = energy.log()
        train(energy, gpu, 20)
        second = energy.log()
    assert first.keys() == {"energy_j", "power_w", "energy_per_sample_j", "total_energy_j", "power_limit_w"}
    assert second["energy_j"] == pytest.approx(gpu.exact_energy_joules() - begin, rel=0.02)
    assert second["energy_per_sample_j"] == pytest.approx(second["energy_j"] / 80)
    assert second["total_energy_j"] == pytest.approx(first["energy_j"] + second["energy_j"], rel=0.01)
    assert energy.summary.values()["train_energy_j"] == pytest.approx(second["total_energy_j"], rel=0.01)


def test_logs_that_follow_each_other_quickly_add_up_and_never_fall(energy, gpu):
    """Most of them extend the latest division: a division takes a millisecond."""
    logs, begin = [], gpu.exact_energy_joules()
    with energy:
        for _ in range(300):
            with energy.step():
                gpu.execute(Work(0.05, 484.9, 0.938, 0.744))
            logs.append(energy.log())
        spent = gpu.exact_energy_joules() - begin
    totals = [log["total_energy_j"] for log in logs]
    assert totals == sorted(totals)
    assert totals[-1] == pytest.approx(spent, rel=0.02)
    assert sum(log["energy_j"] for log in logs) == pytest.approx(spent, rel=0.05)
    assert max(log["power_w"] for log in logs) <= 1.1 * 400
    assert energy.summary.values()["train_energy_j"] == pytest.approx(spent, rel=0.01)


def test_outside_of_training_there_is_nothing_to_log(energy):
    assert energy.log() == {}
    assert energy.state_dict() == {}
    assert energy.finish().values() == {}


def test_an_evaluation_is_told_apart_and_measured_by_itself(energy, gpu):
    with energy:
        train(energy, gpu, 5)
        begin = gpu.exact_energy_joules()
        with energy.during(Activity.EVALUATION):
            for _ in range(12):
                gpu.execute(WORK)
            spent = gpu.exact_energy_joules() - begin
            assert energy.evaluation() == {"eval_energy_j": pytest.approx(spent, rel=0.02)}
        assert energy.evaluation("test") == {"test_energy_j": pytest.approx(spent, rel=0.02)}
        train(energy, gpu, 5)
    assert energy.summary.account.activities[Activity.EVALUATION].measured_joules == pytest.approx(spent, rel=0.02)
    assert energy.summary.account.training.seconds == pytest.approx(5.4, rel=0.1)


def test_an_evaluation_of_several_parts_is_all_of_them(energy, gpu):
    spent = {}

    def evaluate(name, works):
        begin = gpu.exact_energy_joules()
        with energy.during(Activity.EVALUATION):
            for _ in range(works):
                gpu.execute(WORK)
            spent[name] = gpu.exact_energy_joules() - begin
            return energy.evaluation()["eval_energy_j"]

    begin = gpu.exact_energy_joules()
    with energy.during(Activity.EVALUATION):
        assert evaluate("long", 20) == pytest.approx(spent["long"], rel=0.02)
        assert evaluate("short", 10) == pytest.approx(spent["short"], rel=0.02)
        assert energy.evaluation()["eval_energy_j"] == pytest.approx(gpu.exact_energy_joules() - begin, rel=0.02)
    assert energy.evaluation()["eval_energy_j"] == pytest.approx(sum(spent.values()), rel=0.02)


def test_without_an_evaluation_there_is_no_energy_of_one(energy):
    assert energy.evaluation() == {}
    with energy:
        assert energy.evaluation() == {}


def test_two_accounts_on_one_monitor_leave_each_other_alone(monitor, gpu):
    outer, inner = TrainingEnergy(monitor), TrainingEnergy(monitor)
    with outer:
        gpu.execute(WORK)
        with inner, inner.during(Activity.EVALUATION):
            gpu.execute(WORK)
        gpu.execute(WORK)
    assert inner.summary.account.total.seconds < outer.summary.account.total.seconds / 2
    assert inner.summary.account.total.energy_joules < outer.summary.account.total.energy_joules / 2


actions = st.lists(
    st.one_of(
        st.tuples(st.just("work"), st.integers(1, 40)),
        st.tuples(st.sampled_from(["on_epoch_begin", "on_step_begin", "on_step_end", "on_epoch_end"]), st.none()),
        st.tuples(st.sampled_from(["on_pause", "on_pass_begin"]), st.sampled_from(Activity)),
        st.tuples(st.sampled_from(["on_resume", "on_pass_end", "log", "evaluation", "state_dict"]), st.none()),
        st.tuples(st.just("on_train_begin"), st.none()),
    ),
    max_size=40,
)


@given(actions)
@example([("work", 17)])  # it ends with a wait, of which the counter has told nothing yet
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_the_order_of_reports_all_time_and_energy_is_accounted_for(reported):
    time_source = VirtualTime()
    gpu = SimulatedGpu(find_preset("A100"), time_source=time_source)
    energy = TrainingEnergy(ZeusMonitor(gpus=[gpu], time_source=time_source))
    begin_joules, begin_seconds = gpu.exact_energy_joules(), time_source.now()
    energy.on_train_begin()
    for name, argument in reported:
        if name == "work":
            gpu.execute(Work(0.1 * argument, 484.9, 0.938, 0.744))
        elif argument is None:
            getattr(energy, name)()
        else:
            getattr(energy, name)(argument)
    energy.finish()
    account = energy.summary.account
    energy.on_train_end()
    assert account.total.seconds == pytest.approx(time_source.now() - begin_seconds, abs=1e-6)
    assert sum(activity.seconds for activity in account.activities.values()) == pytest.approx(
        account.total.seconds, abs=1e-6
    )
    spent = gpu.exact_energy_joules() - begin_joules
    begins = 1 + sum(name == "on_train_begin" for name, _ in reported)
    assert abs(account.total.measured_joules - spent) <= account.total.measured.uncertainty_joules + 1e-6
    assert sum(activity.measured_joules for activity in account.activities.values()) == account.total.measured_joules
    assert account.total.measured.uncertainty_joules <= begins * 2 * 44, "one period of the highest power at each edge"
    assert all(activity.lost_seconds == 0 for activity in account.activities.values())


@pytest.mark.real_time
@pytest.mark.long
def test_each_activity_of_five_seconds_is_known_within_three_percent(tmp_path):
    """In real time: 0.4 s of evaluation and of saving in turn, again and again."""
    gpu = SimulatedGpu(find_preset("A100"))
    energy = TrainingEnergy(ZeusMonitor(gpus=[gpu]))
    work = Work(0.1, 484.9, 0.938, 0.744)
    least, most = dict.fromkeys(Activity, 0.0), dict.fromkeys(Activity, 0.0)

    def leave(activity, edge, *hooks):
        """Returns the energy before and after the hooks: a busy machine may take a while for them."""
        before = gpu.exact_energy_joules()
        for hook, *arguments in hooks:
            hook(*arguments)
        after = gpu.exact_energy_joules()
        least[activity] += before - edge[1]
        most[activity] += after - edge[0]
        return before, after

    with energy:
        edge = (gpu.exact_energy_joules(),) * 2
        for _ in range(12):
            for _ in range(4):
                with energy.step():
                    gpu.execute(work)
            edge = leave(Activity.STEPS, edge, (energy.on_pause, Activity.EVALUATION))
            for _ in range(4):
                gpu.execute(work)
            edge = leave(Activity.EVALUATION, edge, (energy.on_resume,), (energy.on_pause, Activity.CHECKPOINT))
            time.sleep(0.42)
            edge = leave(Activity.CHECKPOINT, edge, (energy.on_resume,))
        time.sleep(0.15)
    for activity in (Activity.STEPS, Activity.EVALUATION, Activity.CHECKPOINT):
        tally = energy.summary.account.activities[activity]
        assert tally.seconds >= 5
        assert 0.97 * least[activity] <= tally.measured_joules <= 1.03 * most[activity]


def test_a_fault_for_once_loses_nothing(gpu, time_source):
    faulty = FaultyGpu(gpu)
    energy = TrainingEnergy(ZeusMonitor(gpus=[faulty], time_source=time_source))
    with energy:
        train(energy, gpu, 10)
        faulty.fail("read_energy_counter_joules", DriverFaultError("unknown error"), times=1)
        assert energy.log()["energy_j"] > 0


def test_a_silent_counter_delays_logs_and_its_later_energy_is_counted(gpu, time_source):
    faulty = FaultyGpu(gpu)
    energy = TrainingEnergy(ZeusMonitor(gpus=[faulty], time_source=time_source))
    with energy:
        train(energy, gpu, 10)
        faulty.fail("read_energy_counter_joules", DriverFaultError("unknown error"))
        train(energy, gpu, 5)
        logged = energy.log()
        assert "energy_j" not in logged
        assert "total_energy_j" not in logged
        before = gpu.exact_energy_joules()
        with energy.during(Activity.EVALUATION):
            gpu.execute(WORK)
        spent = gpu.exact_energy_joules() - before
        faulty.heal()
        train(energy, gpu, 10)
        energy.log()
        train(energy, gpu, 10)
        assert energy.log()["energy_j"] > 0
    account = energy.summary.account
    evaluation = account.activities[Activity.EVALUATION].measured
    assert abs(evaluation.energy_joules - spent) <= evaluation.uncertainty_joules
    assert account.total.measured_joules == pytest.approx(gpu.exact_energy_joules(), rel=0.02)


def test_what_neither_counter_nor_power_tells_is_lost_and_never_zero(gpu, time_source):
    faulty = FaultyGpu(gpu)
    energy = TrainingEnergy(ZeusMonitor(gpus=[faulty], time_source=time_source))
    for method in ("read_energy_counter_joules", "read_power_watts"):
        faulty.fail(method, DriverFaultError("not ready"))
    with energy:
        train(energy, gpu, 10)
        assert "total_energy_j" not in energy.log()
    assert "train_energy_j" not in energy.summary.values()
    assert "lost" in str(energy.summary)


def test_a_monitor_that_breaks_is_reported_once_and_training_goes_on(energy, gpu, monkeypatch, caplog):
    with energy:
        train(energy, gpu, 2)
        monkeypatch.setattr(energy.monitor, "read", lambda **_: 1 / 0)
        for _ in range(3):
            energy.on_pause(Activity.EVALUATION)
            energy.on_resume()
        assert energy.log() == {}
    assert caplog.text.count("division by zero") == 2  # the message and its traceback, once


@pytest.mark.parametrize(("word", "slowdown"), [("auto", 1.1), ("5%", 1.05)])
def test_an_optimizer_may_be_a_word(monitor, word, slowdown):
    energy = TrainingEnergy(monitor, word)
    assert str(energy.optimizer.optimum_selector) == f"EnergyWithin(factor={slowdown})"
    assert energy.optimizer.monitor is energy.monitor is monitor


def test_another_word_is_no_optimizer(monitor):
    with pytest.raises(UsageError, match="optimizer is 'best'; it must be a slowdown from 0% to 100%, such as 10%"):
        TrainingEnergy(monitor, "best")


def test_the_optimizer_is_told_the_same(monitor, gpu):
    optimizer = GlobalPowerLimitOptimizer(
        monitor, wait_steps=0, warmup_steps=0, profile_steps=2, pl_step=150, search=GridSearch
    )
    with TrainingEnergy(optimizer=optimizer) as energy:
        train(energy, gpu, 20)
        assert energy.summary.not_measured is not None
    assert optimizer.chosen_limit_watts is not None
    assert energy.summary.saving_fraction == optimizer.saving_fraction
    assert gpu.read_power_limit_watts() == 350


def test_a_run_restarted_without_an_end_has_wasted_its_steps(energy, gpu):
    energy.on_train_begin()
    train(energy, gpu, 10)
    energy.on_train_begin()
    train(energy, gpu, 30)
    energy.finish()
    energy.on_train_end()
    account = energy.summary.account
    assert account.redone.measured_joules == pytest.approx(account.total.measured_joules / 4, rel=0.03)


def test_a_batch_given_up_in_a_resumed_run_counts_as_wasted(tmp_path, monitor, gpu):
    first = TrainingEnergy(monitor, folder=tmp_path)
    first.on_train_begin()
    train(first, gpu, 20)
    state = first.state_dict()
    first.on_train_end()
    second = TrainingEnergy(monitor, folder=tmp_path)
    second.load_state_dict(state)
    second.on_train_begin(20)
    train(second, gpu, 5)
    second.on_train_begin(20)
    train(second, gpu, 15)
    second.finish()
    account = second.summary.account
    assert account.redone.measured_joules == pytest.approx(account.total.measured_joules * 5 / 40, rel=0.05)


def test_a_run_that_moves_between_folders_takes_its_costs_along(tmp_path, monitor, gpu):
    begin, state = gpu.exact_energy_joules(), {}
    for number in range(3):
        energy = TrainingEnergy(monitor, folder=tmp_path / str(min(number, 1)))
        energy.load_state_dict(state)
        energy.on_train_begin(10 * number)
        train(energy, gpu, 10)
        state = energy.state_dict()
        if number < 2:
            monitor.reset_windows()  # and it is killed
    energy.finish()
    spent = gpu.exact_energy_joules() - begin
    assert energy.summary.account.total.measured_joules == pytest.approx(spent, rel=0.01)
    assert energy.summary.account.redone.measured_joules == 0


def test_a_training_that_cannot_begin_has_no_summary_of_another(energy, gpu, monkeypatch):
    with energy:
        train(energy, gpu, 5)
    assert energy.summary.not_measured is None
    monkeypatch.setattr(energy.monitor, "read", lambda **_: 1 / 0)
    energy.on_train_begin()
    assert energy.finish().values() == {}
    energy.on_train_end()
    assert "the log names a fault" in str(energy.summary)


def test_a_resumed_run_knows_what_was_spent(tmp_path, monitor, gpu):
    begin = gpu.exact_energy_joules()
    first = TrainingEnergy(monitor, folder=tmp_path)
    first.on_train_begin()
    train(first, gpu, 20)
    state = first.state_dict()
    train(first, gpu, 5)
    first.log()  # then it is killed
    second = TrainingEnergy(monitor, folder=tmp_path)
    second.load_state_dict(state)
    second.on_train_begin(20)
    train(second, gpu, 5)
    second.finish()
    assert second.summary.account.total.measured_joules == pytest.approx(gpu.exact_energy_joules() - begin, rel=0.01)
    assert second.summary.values()["train_energy_redone_j"] == pytest.approx(
        5 / 30 * (gpu.exact_energy_joules() - begin), rel=0.06
    )
    first.monitor.reset_windows()


def test_counts_that_are_floats_are_resumed_too(tmp_path, monitor, gpu):
    first = TrainingEnergy(monitor, folder=tmp_path)
    first.on_train_begin()
    with first.step(samples=4.0, tokens=64.0):
        gpu.execute(WORK)
    state = json.loads(json.dumps(first.state_dict()))
    first.on_train_end()
    second = TrainingEnergy(monitor, folder=tmp_path)
    second.load_state_dict(state)
    second.on_train_begin(1)
    account = second.finish().account
    assert (account.samples, account.tokens) == (4, 64)
    assert account.total.measured_joules > 0
    second.on_train_end()


def test_a_state_of_something_else_is_reported(energy, caplog):
    energy.load_state_dict({"format": "something else"})
    assert "is damaged" in caplog.text
    energy.load_state_dict([])


def test_a_signal_handler_that_saves_amid_a_hook_does_no_harm(energy, gpu, monkeypatch):
    read = energy.monitor.read
    answers = []

    def interrupted_read(**arguments):
        energy.on_pause(Activity.CHECKPOINT)
        answers.append(energy.state_dict())
        energy.on_resume()
        return read(**arguments)

    with energy:
        train(energy, gpu, 5)
        monkeypatch.setattr(energy.monitor, "read", interrupted_read)
        assert energy.log()["energy_j"] > 0
    assert set(map(str, answers)) == {"{}"}
    assert Activity.CHECKPOINT not in energy.summary.account.activities


# Several ranks.


@pytest.mark.parametrize("gpu_count", [1, 2])
def test_ranks_agree_and_count_each_device_once(gpu_count):
    time_source = VirtualTime()
    gpus = [SimulatedGpu(find_preset("A100"), index, time_source=time_source) for index in range(gpu_count)]
    begin = sum(gpu.exact_energy_joules() for gpu in gpus)

    def main(world):
        gpu = gpus[world.rank % gpu_count]
        energy = TrainingEnergy(ZeusMonitor(gpus=[gpu], time_source=time_source), world=world)
        energy.on_train_begin()
        for _ in range(20):
            with energy.step(samples=4):
                if world.rank < gpu_count:
                    gpu.execute(WORK)
        world.gather(None)
        logged = energy.log()
        summary = energy.finish()
        energy.on_train_end()
        return logged, summary.account

    (logged, account), (other_logged, other_account) = ThreadWorld.run(2, main, timeout_seconds=60.0)
    assert logged == other_logged
    assert account == other_account
    spent = sum(gpu.exact_energy_joules() for gpu in gpus) - begin
    assert account.total.measured_joules == pytest.approx(spent, rel=0.03)
    assert account.samples == 160


class SilentWorld(SoloWorld):
    """A world whose other rank never answers."""

    size = 2

    def __init__(self):
        self.asked = 0

    def gather(self, value):
        self.asked += 1
        raise WorldError("rank 1 did not answer")


def test_a_rank_that_does_not_answer_is_waited_for_once(monitor, gpu, caplog):
    world = SilentWorld()
    energy = TrainingEnergy(monitor, world=world)
    with energy:
        train(energy, gpu, 10)
        assert energy.log() == {}
        assert energy.evaluation() == {}
    assert world.asked == 1
    assert caplog.text.count("did not answer") == 1


@pytest.mark.parametrize(("breaks", "breaks_at"), [("read", "log"), ("read", "evaluation"), ("read", "begin")])
def test_a_rank_that_fails_does_not_leave_the_others_waiting(time_source, breaks, breaks_at):
    gpus = [SimulatedGpu(find_preset("A100"), index, time_source=time_source) for index in range(2)]

    def main(world):
        energy = TrainingEnergy(ZeusMonitor(gpus=[gpus[world.rank]], time_source=time_source), world=world)
        energy.on_train_begin()
        if world.rank == 1:
            setattr(energy.monitor, breaks, lambda *_, **__: 1 / 0)
        if breaks_at == "begin":
            energy.on_train_begin()
        logged = energy.evaluation() if breaks_at == "evaluation" else energy.log()
        energy.on_train_end()
        return logged

    begin = time.monotonic()
    assert ThreadWorld.run(2, main, timeout_seconds=240.0) == [{}, {}]
    assert time.monotonic() - begin < 120


# Arguments.


def test_wrong_arguments_are_named(monitor, time_source):
    with pytest.raises(UsageError, match="monitor is 0; it must be a ZeusMonitor"):
        TrainingEnergy(0)
    with pytest.raises(UsageError, match="optimizer is 'x'"):
        TrainingEnergy(monitor, "x")
    other = ZeusMonitor(gpus=[SimulatedGpu(find_preset("A40"), time_source=time_source)], time_source=time_source)
    with pytest.raises(UsageError, match="another monitor"):
        TrainingEnergy(other, GlobalPowerLimitOptimizer(monitor))


def test_nobody_does_nothing():
    nobody = TrainingOptimizer()
    nobody.use_world(SoloWorld())
    nobody.use_work({})
    nobody.load_state_dict(nobody.state_dict())
    nobody.pause()
    for name in ("on_train_begin", "on_epoch_begin", "on_step_begin", "on_step_end", "on_resume", "forget"):
        assert getattr(nobody, name)() is None
    for name in ("on_interference", "on_epoch_end", "on_train_end", "on_pause"):
        assert getattr(nobody, name)() is None
    assert not any((nobody.result(), nobody.is_end_due, nobody.is_pause_due, nobody.saving_fraction))


def test_a_checkpoint_holds_the_search_of_the_optimizer_too():
    def trained(state, steps):
        time_source = VirtualTime()
        gpu = SimulatedGpu(find_preset("A100"), time_source=time_source)
        optimizer = GlobalPowerLimitOptimizer(
            ZeusMonitor(gpus=[gpu], time_source=time_source), warmup_steps=1, profile_steps=4, search=GridSearch
        )
        energy = TrainingEnergy(optimizer=optimizer, quiet=True)
        energy.load_state_dict(state)
        energy.on_train_begin(1 if state else 0)
        for _ in range(steps):
            with energy.step():
                gpu.execute(Work(0.5, 300.0))
        state = json.loads(json.dumps(energy.state_dict()))
        energy.on_train_end()
        return optimizer.trials, state

    first, state = trained({}, 12)
    assert len(first) == 2
    second, _ = trained(state, 6)
    assert second[:2] == first
    assert len(second) == 3


def test_a_clock_locked_by_an_optimizer_is_logged_beside_the_limit(monitor, gpu):
    optimizer = GlobalClockOptimizer(
        monitor, Energy(), warmup_steps=1, profile_steps=2, search=lambda clocks, selector: GridSearch(clocks[::40])
    )
    with TrainingEnergy(optimizer=optimizer, quiet=True) as energy:
        train(energy, gpu, 30)
        logged = energy.log()
        assert logged["sm_clock_mhz"] == optimizer.chosen_clock_mhz < 1410
        assert logged["power_limit_w"] == gpu.read_power_limit_watts()
