"""Each activity its own setting: simulated GPUs whose generation is bound by memory, in virtual time, also on ranks."""

import gc
import itertools
import json
import os
import threading
from contextlib import nullcontext
from statistics import median

import pytest
import torch

from tests.optimizer.test_ranks import run_ranks
from zeus_core.activities.activity_parts import ActivityResult
from zeus_core.carbon import CarbonAware
from zeus_core.codec import decode
from zeus_core.device import SimulatedGpu, SimulatedNoise, Work, find_preset
from zeus_core.electricity import RecordedSignal
from zeus_core.errors import PermissionDeniedError, UsageError
from zeus_core.events import PASS_END, Activity, PassBegin, TrainBegin
from zeus_core.mixed.levelling import LevellingOptimizer
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import GlobalClockOptimizer, GlobalPowerLimitOptimizer
from zeus_core.optimizer.global_setting.phases import Phase
from zeus_core.optimizer.power_limit import EnergyWithin
from zeus_core.ports.time_source import clock_seconds
from zeus_core.pytorch import torch_world
from zeus_core.report.run_sections import sections_of
from zeus_core.search import GridSearch
from zeus_core.testing import FaultyGpu, ThreadWorld, VirtualTime
from zeus_core.training import TrainingEnergy
from zeus_core.training.record.run_file import read_run

STEP, GENERATION = Work(2.0, 620.0, 1.0, 0.85), Work(3.0, 300.0, 1.0, 0.05)  # 60 % of the time at 300 of 700 W
OFTEN = 10**6  # changes in an hour


class Training:
    """A loop on one GPU that generates, and makes a step of what it has generated."""

    def __init__(self, kind=GlobalClockOptimizer, world=None, model="H100", seed=0, index=0, bound=1.02, **more):
        self.time_source = VirtualTime()
        noise = SimulatedNoise(0.02, 0.01, seed)
        self.gpu = SimulatedGpu(find_preset(model), index, time_source=self.time_source, noise=noise)
        self.faulty = FaultyGpu(self.gpu)
        monitor = ZeusMonitor(gpus=[self.faulty], cpu_indices=[], time_source=self.time_source)
        self.optimizer = kind(monitor, EnergyWithin(bound), world=world, quiet=True, **more)
        self.world = world
        self.clocks = {}

    def visit(self, activity, work):
        self.optimizer.on_pause(activity)
        self.gpu.execute(work)
        self.clocks.setdefault(activity, []).append(self.clock_mhz)
        self.optimizer.on_resume()

    def generate_in_step(self):
        self.optimizer.receive(PassBegin(Activity.GENERATION))
        self.gpu.execute(GENERATION)
        self.optimizer.receive(PASS_END)

    def step(self, within=lambda: None, work=STEP):
        self.optimizer.on_step_begin()
        within()
        self.gpu.execute(work)
        if self.world is not None:
            latest = max(self.world.gather(self.time_source.now()))
            self.time_source.advance(latest - self.time_source.now())
        self.optimizer.on_step_end()

    def train(self, steps, before=lambda step: None, within=lambda: None):
        begin = self.time_source.now(), self.gpu.exact_energy_joules()
        self.optimizer.on_train_begin(max_steps=steps)
        for step in range(steps):
            before(step)
            self.step(within)
        self.seconds = self.time_source.now() - begin[0]
        self.joules = self.gpu.exact_energy_joules() - begin[1]
        return self

    def generating(self, steps):
        return self.train(steps, lambda step: self.visit(Activity.GENERATION, GENERATION))

    @property
    def clock_mhz(self):
        return self.gpu._locked_clock_mhz


def saving(steps, untouched, **more):
    """The energy that a search saves, and the factor of time."""
    training = Training(**more).generating(steps)
    training.optimizer.on_train_end()
    assert training.clock_mhz == training.gpu.preset.highest_clock_mhz
    return 1 - training.joules / untouched.joules, training.seconds / untouched.seconds


@pytest.mark.parametrize("seed", range(2))
def test_each_its_own_clock_saves_twice_what_one_limit_does(seed):
    untouched = Training(mode="observe", seed=seed).generating(500)
    own, factor = saving(500, untouched, seed=seed, activities="each", changes_per_hour=OFTEN)
    common, _ = saving(500, untouched, seed=seed, kind=GlobalPowerLimitOptimizer)
    assert factor <= 1.025, "the bound is 1.02"
    assert own >= 1.8 * common
    assert own >= 0.08


def test_passes_within_steps_are_visits_and_no_part_of_steps():
    training = Training(activities="each", changes_per_hour=OFTEN)
    training.train(40, within=training.generate_in_step)
    trial = training.optimizer.trials[0]
    assert trial.seconds_per_step == pytest.approx(2.0, rel=0.03)
    assert trial.joules_per_step == pytest.approx(1220, rel=0.05)
    generation = training.optimizer._search.of_activities["generation"].trials[trial.setting]
    assert generation.seconds_per_step == pytest.approx(3.0, rel=0.03)
    assert generation.joules_per_step == pytest.approx(910, rel=0.05)
    training.optimizer.on_train_end()


def test_an_activity_goes_on_after_those_within_it():
    training = Training(activities="each", changes_per_hour=OFTEN)
    training.train(20, lambda step: nested(training, step))
    for name, seconds in (("evaluation", 2.0), ("rollout", 3.0)):
        trial = training.optimizer._search.trials_of(name)[0]
        assert trial.seconds_per_step == pytest.approx(seconds, rel=0.03)
    training.optimizer.on_train_end()
    assert not training.time_source._repeated, "no clock is sampled any more"


def test_a_checkpoint_within_steps_is_no_part_of_them():
    training = Training(activities="each")

    def save():
        training.optimizer.on_pause(Activity.CHECKPOINT)
        training.gpu.execute(Work(1.0, 100.0))
        training.visit(Activity("judge"), Work(1.0, 400.0))
        training.gpu.execute(Work(1.0, 100.0))
        training.optimizer.on_resume()

    training.train(10, within=save)
    assert training.optimizer.trials[0].seconds_per_step == pytest.approx(2.0, rel=0.03)
    assert training.optimizer._search.trials_of("judge")[0].seconds_per_step == pytest.approx(1.0, rel=0.03)
    training.optimizer.on_train_end()


def test_no_step_waits_for_decisions_on_all_of_many_activities():
    training, known = Training(activities="each", changes_per_hour=OFTEN), []
    search = lambda: training.optimizer._search  # noqa: E731

    def before(step):
        known.append([] if search() is None else [len(search().trials_of(name)) for name in search().activities])
        for number in range(9):
            training.visit(Activity(f"a{number}"), Work(1.0, 300.0, 1.0, 0.1))

    training.train(20, before)
    assert max(sum(after) - sum(one) for one, after in itertools.pairwise(known)) == 4
    assert len(known[-1]) == 9
    assert min(known[-1]) > 0, "all have their turn"
    training.optimizer.on_train_end()


@pytest.mark.parametrize("kind", [GlobalClockOptimizer, GlobalPowerLimitOptimizer])
def test_steps_alone_are_searched_as_ever(kind):
    each, common = Training(kind, activities="each").train(120), Training(kind).train(120)
    assert each.optimizer.trials == common.optimizer.trials
    assert (each.joules, each.seconds) == (common.joules, common.seconds)
    assert each.optimizer.result() == common.optimizer.result()


def test_result_run_file_and_report_show_each_activity(tmp_path):
    training = Training(activities="each", changes_per_hour=OFTEN)
    optimizer = training.optimizer
    training.optimizer = TrainingEnergy(optimizer=optimizer, folder=tmp_path, quiet=True)
    training.generating(120).optimizer.on_train_end()
    rows = optimizer.result()
    assert "60% of the time" in rows["during generation"] or "59% of the time" in rows["during generation"]
    assert "of the energy" in rows["during steps"]
    assert "of the setting" in rows["changes"]
    assert optimizer.saving_fraction is None or optimizer.saving_fraction > optimizer.saving_uncertainty
    run = read_run(tmp_path)
    activities = run.latest.search_record().result.activities
    activities = decode(dict[str, ActivityResult], activities)
    assert activities == optimizer._search.activity_results()
    generation, steps = activities["generation"], activities["steps"]
    assert generation.seconds / (generation.seconds + steps.seconds) == pytest.approx(0.6, abs=0.02)
    assert generation.setting < 0.9 * steps.setting
    saved, off = generation.saving
    assert 0 < off < saved
    assert saved == pytest.approx(0.3, abs=0.15)
    (results,) = (each for each in sections_of(run) if each.name == "results")
    assert f"{generation.setting} MHz" in dict(results.rows)["during generation"]


def test_an_activity_that_draws_far_less_has_no_limit_of_its_own():
    training = Training(GlobalPowerLimitOptimizer, activities="each", changes_per_hour=OFTEN).generating(120)
    assert training.optimizer._search.order.settings == {"generation": -1}
    assert "draws far less" in training.optimizer.result()["during generation"]
    training.optimizer.on_train_end()


def test_no_more_changes_in_an_hour_than_allowed_and_the_result_says_so():
    training = Training(activities="each", changes_per_hour=20).generating(200)
    limiter = training.optimizer._search.limiter
    assert limiter.switches <= 20 * (training.seconds / 3600 + 1)
    rows = training.optimizer.result()
    assert "20 changes an hour" in rows["changes"] or "20 times an hour" in rows["during generation"]
    training.optimizer.on_train_end()


def nested(training, step):
    training.optimizer.on_pause(Activity.EVALUATION)
    training.gpu.execute(Work(1.0, 400.0))
    training.visit(Activity("rollout"), GENERATION)
    training.visit(Activity.EVALUATION, Work(1.0, 400.0))
    training.optimizer.on_resume()


def never_ending(training, step):
    training.optimizer.on_pause(Activity.GENERATION)
    training.gpu.execute(GENERATION)


def overlapping(training, step):
    training.optimizer.receive(PassBegin(Activity.GENERATION))
    training.optimizer.on_pause(Activity.EVALUATION)
    training.gpu.execute(GENERATION)
    training.optimizer.receive(PASS_END)
    training.optimizer.on_resume()
    training.optimizer.on_resume()


def once(training, step):
    if step == 30:
        training.visit(Activity.EVALUATION, Work(60.0, 400.0))


def of_many_names(training, step):
    for number in range(step * 17, step * 17 + 17):
        training.visit(Activity(f"a{number}"), Work(0.3, 300.0, 1.0, 0.1))


def short(training, step):
    training.visit(Activity.REFERENCE, Work(0.05, 500.0, 1.0, 0.5))


def changing_for_good(training, step):
    for _ in range(1 if step < 30 else 4):
        training.visit(Activity.GENERATION, GENERATION)


def with_an_exception(training, step):
    try:
        training.optimizer.on_pause(Activity.GENERATION)
        training.gpu.execute(GENERATION)
        raise RuntimeError("in generation")
    except RuntimeError:
        pass


@pytest.mark.parametrize(
    "activity",
    [nested, never_ending, overlapping, once, of_many_names, short, changing_for_good, with_an_exception],
)
def test_odd_activities_keep_the_bound_and_the_original_returns(activity, caplog):
    untouched, training = Training(mode="observe", bound=1.05), Training(activities="each", bound=1.05)
    for each in (untouched, training):
        each.train(60, lambda step, each=each: activity(each, step))
    assert training.seconds <= 1.06 * untouched.seconds
    training.optimizer.on_train_end()
    assert training.clock_mhz == training.gpu.preset.highest_clock_mhz
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert training.optimizer.result()


def test_a_driver_that_fails_in_the_background_ends_the_search_alone(caplog):
    training = Training(activities="each", changes_per_hour=OFTEN)

    def before(step):
        if step == 20:
            training.faulty.fail("lock_sm_clock", RuntimeError("the driver is gone"))
        training.visit(Activity.GENERATION, GENERATION)

    training.train(60, before)
    assert training.optimizer.phase is Phase.OFF
    training.optimizer.on_train_end()
    assert training.clock_mhz == training.gpu.preset.highest_clock_mhz


def test_dropping_the_optimizer_in_an_activity_restores_the_original():
    training = Training(activities="each", changes_per_hour=OFTEN).generating(150)
    training.optimizer.on_pause(Activity.GENERATION)
    del training.optimizer
    gc.collect()
    assert training.clock_mhz == training.gpu.preset.highest_clock_mhz


def test_ranks_agree_also_if_the_first_alone_generates():
    def rank_main(world):
        training = Training(world=world, index=world.rank, activities="each", changes_per_hour=OFTEN)

        def before(step):
            if world.rank == 0:
                training.visit(Activity.GENERATION, GENERATION)

        training.train(150, before)
        order = training.optimizer._search.order
        assert training.optimizer.phase is not Phase.OFF
        training.optimizer.on_train_end()
        assert training.clock_mhz == training.gpu.preset.highest_clock_mhz
        return order

    orders = ThreadWorld.run(2, rank_main, 30.0)
    assert orders[0] == orders[1]
    assert set(orders[0].settings) == {"generation"}


@pytest.mark.parametrize("activities", ["each", "common"])
def test_an_activity_within_steps_of_one_rank_ends_them_nowhere_else(activities):
    """The loop has a collective call of its own in each step, which no rank reaches while it waits for another one."""

    def rank_main(world):
        training = Training(world=world, index=world.rank, activities=activities)
        judge = lambda: training.visit(Activity("judge"), Work(1.0, 400.0, 1.0, 0.3))  # noqa: E731
        training.train(60, within=judge if world.rank == 1 else lambda: None)
        assert training.optimizer.phase is not Phase.OFF
        training.optimizer.on_train_end()
        return training.optimizer.trials

    first, second = ThreadWorld.run(2, rank_main, 60.0)
    assert first == second
    assert len(first) > 1


def test_waits_for_others_and_what_a_lower_clock_saves_are_reported():
    def rank_main(world):
        training = Training(world=world, index=world.rank, activities="each", changes_per_hour=OFTEN)
        generation = Work(3.0 - 0.6 * world.rank, 300.0, 1.0, 0.05)  # the second rank waits for a fifth of it
        training.train(30, lambda step: training.visit(Activity.GENERATION, generation))
        found = training.optimizer._search.activity_results(), training.optimizer.result()
        training.optimizer.on_train_end()
        return found

    results, rows = ThreadWorld.run(2, rank_main, 30.0)[0]
    share, least, most = results["generation"].waiting
    assert share == pytest.approx(0.1, abs=0.02)
    assert 0 < least < most < 0.5
    assert "ranks wait 10% of it" in rows["during generation"]
    assert results["steps"].waiting is None


def test_waits_for_a_server_are_measured_and_the_search_is_the_same():
    def trials(is_waiting):
        training = Training(activities="each", changes_per_hour=OFTEN)

        def wait():
            if is_waiting:
                training.optimizer.receive(PassBegin(Activity.WAITING))
                training.time_source.advance(3.0)
                training.optimizer.receive(PASS_END)

        training.train(40, within=wait)
        training.optimizer.on_train_end()
        return training.optimizer

    waiting = trials(True)
    result, usual = waiting._search.activity_results()["waiting"], waiting.result()
    assert result.seconds == pytest.approx(3.0 * result.visits)
    assert result.joules == pytest.approx(285.0 * result.seconds, rel=0.02)
    assert result.waiting[1] == 0 < result.waiting[2] < 1
    assert "this rank" in usual["during waiting"]
    assert [one.setting for one in waiting.trials] == [one.setting for one in trials(False).trials]


def swinging(begin):
    """An intensity that is high for ten minutes, and low for ten."""
    minutes = range(60)
    values = [100.0 + 600.0 * (minute // 10 % 2 == 0) for minute in minutes]
    return RecordedSignal([begin + 60 * minute for minute in minutes], values, "g/kWh")


@pytest.mark.long
def test_steps_follow_a_signal_and_the_energy_of_activities_counts():
    begin = clock_seconds(VirtualTime())
    untouched = Training(mode="observe").generating(300)
    aware = CarbonAware(swinging(begin), max_slowdown=1.06, may_pause=False, interval_seconds=60.0)
    arguments = {"activities": "each", "changes_per_hour": OFTEN, "carbon_aware": aware, "bound": 1.1}
    training = Training(**arguments)
    clocks = {True: [], False: []}

    def before(step):
        minutes = (clock_seconds(training.time_source) - begin) / 60
        if step > 100:
            clocks[minutes // 10 % 2 == 0].append(training.clock_mhz)
        training.visit(Activity.GENERATION, GENERATION)

    training.train(300, before)
    assert training.seconds <= 1.06 * untouched.seconds
    assert median(clocks[True]) < median(clocks[False]), "softly while it is high"
    follower, rows = training.optimizer._director, training.optimizer.result()
    assert follower.spent.energy_joules == pytest.approx(training.joules, rel=0.03)
    assert follower.credit.full.energy_joules == pytest.approx(untouched.joules, rel=0.03)
    assert "saves" in rows["during generation"]
    state = json.loads(json.dumps(training.optimizer.state_dict()))
    training.optimizer.on_train_end()
    assert training.clock_mhz == training.gpu.preset.highest_clock_mhz
    second = Training(**arguments)
    second.optimizer.load_state_dict(state)
    second.optimizer.receive(TrainBegin(300, 300))
    assert second.optimizer._search.of_activities["generation"].blocks
    for _ in range(2):
        second.visit(Activity.GENERATION, GENERATION)
        second.step()
    assert second.optimizer._director.spent.energy_joules >= follower.spent.energy_joules
    second.optimizer.on_train_end()


def train_over_gloo(rank, is_ours):
    """A plain loop with names of its own: both ranks roll out, the second one judges as well."""
    training, world = Training(index=rank, activities="each", changes_per_hour=OFTEN, bound=1.05), torch_world()
    energy = TrainingEnergy(optimizer=training.optimizer, world=world, quiet=True) if is_ours else None
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    losses, clocks = [], {"rollout": [], "judge": []}

    def visit(name, work):
        with energy.during(name) if is_ours else nullcontext():
            training.gpu.execute(work)
            clocks[name].append(training.clock_mhz)

    def step():
        training.gpu.execute(STEP)
        loss = model(torch.randn(2, 4) + rank).square().mean()
        loss.backward()
        for weight in model.parameters():
            torch.distributed.all_reduce(weight.grad)
            weight.data -= 0.01 * weight.grad  # without torch.optim, which each rank would import
            weight.grad = None
        losses.append(loss.item())
        training.time_source.advance(max(world.gather(training.time_source.now())) - training.time_source.now())

    with energy if is_ours else nullcontext():
        for number in range(50):
            visit("rollout", GENERATION)
            if rank == 1 and number % 2:
                visit("judge", Work(1.0, 400.0, 1.0, 0.3))
            with energy.step() if is_ours else nullcontext():
                step()
        order = training.optimizer._search.order if is_ours else None
    assert training.clock_mhz == training.gpu.preset.highest_clock_mhz
    return losses, [weight.tolist() for weight in model.parameters()], order, clocks


def test_ranks_of_gloo_agree_on_settings_and_learn_the_same(tmp_path):
    folders = [tmp_path / "with", tmp_path / "without"]
    for folder in folders:
        folder.mkdir()
    ours, plain = (
        [found for found, _ in run_ranks(2, folder, train_over_gloo, folder == folders[0])] for folder in folders
    )
    assert [rank[:2] for rank in ours] == [rank[:2] for rank in plain]
    assert ours[0][2] == ours[1][2]
    assert set(ours[0][2].settings) == {"rollout", "judge"}
    for _, _, _, clocks in ours:
        assert clocks["rollout"][-1] < 0.8 * clocks["rollout"][0]


def test_observing_predicts_each_activity_and_changes_nothing():
    training = Training(activities="each", mode="observe", bound=1.05).generating(100)
    assert set(training.clocks[Activity.GENERATION]) == {training.gpu.preset.highest_clock_mhz}
    search = training.optimizer._search
    assert {trial.setting for trial in search.trials_of("generation")} == {search.original}
    training.optimizer.on_train_end()
    rows = training.optimizer.result()
    assert "would save" in rows["during generation"]
    assert "unlocked clock" in rows["during steps"]
    assert "changes" not in rows


def test_without_the_right_nothing_changes():
    training = Training(activities="each")
    training.gpu._grants_control = False
    training.generating(30)
    assert "not permitted" in training.optimizer.result()["SM clock"]
    assert set(training.clocks[Activity.GENERATION]) == {training.gpu.preset.highest_clock_mhz}
    search = training.optimizer._search
    assert {trial.setting for trial in search.trials_of("generation")} == {search.original}
    training.optimizer.on_train_end()


def test_both_kinds_take_clocks_if_they_can_be_locked(caplog):
    for grants, name in ((True, "SM clock"), (False, "power limit")):
        training = Training(GlobalPowerLimitOptimizer, knob="auto", activities="each")
        if not grants:
            training.faulty.fail("lock_sm_clock", PermissionDeniedError("clocks are for root"))
        training.generating(10)
        assert name in training.optimizer.result()
        training.optimizer.on_train_end()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"activities": "all"}, "activities"),
        ({"activities": "each", "search": lambda settings, selector: GridSearch(settings)}, "search"),
        ({"activities": "each", "profile_steps": 5}, "profile_steps"),
        ({"activities": "each", "changes_per_hour": -1}, "changes_per_hour"),
    ],
)
def test_wrong_arguments_are_named(arguments, name):
    with pytest.raises(UsageError, match=name):
        Training(**arguments)


def test_a_resumed_training_measures_no_curve_again():
    first = Training(activities="each", changes_per_hour=OFTEN)
    first.train(150, lambda step: first.visit(Activity.GENERATION, GENERATION))
    first.optimizer.on_pause(Activity.GENERATION)  # killed within a visit
    state = json.loads(json.dumps(first.optimizer.state_dict()))
    second = Training(activities="each", changes_per_hour=OFTEN)
    second.optimizer.load_state_dict(state)
    second.optimizer.receive(TrainBegin(300, 150))
    known = second.optimizer._search.of_activities["generation"]
    assert [block.trial for block in known.blocks] == [
        block.trial for block in first.optimizer._search.of_activities["generation"].blocks
    ]
    assert second.optimizer._search.visits.activities["generation"].visits == 150
    assert second.optimizer._search.order.settings["generation"] < 1900
    for _ in range(20):
        second.visit(Activity.GENERATION, GENERATION)
        second.step()
    second.optimizer.on_train_end()
    assert second.clock_mhz == second.gpu.preset.highest_clock_mhz


def test_the_profile_keeps_the_trials_of_activities(tmp_path):
    arguments = {"activities": "each", "changes_per_hour": OFTEN, "profile_path": tmp_path / "profile.json"}
    first = Training(**arguments).generating(60).optimizer
    first.on_train_end()
    second = Training(**arguments).generating(2).optimizer
    known = second._search.trials_of("generation")
    assert known[: len(first._search.trials_of("generation"))] == first._search.trials_of("generation")
    second.forget()
    assert Training(**arguments).generating(2).optimizer._search.activities == ()
    second.on_train_end()


def test_levelling_takes_no_search_with_settings_of_activities():
    search = Training(activities="each").optimizer
    with pytest.raises(UsageError, match="activities"):
        LevellingOptimizer(search.monitor, after=search)


class HangingGpu(SimulatedGpu):
    """A GPU in real time, whose driver sets no clock as long as its gate is closed."""

    def __init__(self):
        super().__init__(find_preset("H100"))
        self.gate, self.arrived, self.locked = threading.Event(), threading.Event(), []
        self.threads = []
        self.gate.set()

    def lock_sm_clock(self, clock_mhz):
        self.locked.append(clock_mhz)
        self.threads.append(threading.current_thread())
        self.arrived.set()
        self.gate.wait(60)
        super().lock_sm_clock(clock_mhz)


def test_no_hook_waits_for_the_driver_and_the_newest_request_wins():
    gpu = HangingGpu()
    monitor = ZeusMonitor(gpus=[gpu], cpu_indices=[])
    optimizer = GlobalClockOptimizer(
        monitor, EnergyWithin(1.02), activities="each", changes_per_hour=OFTEN, max_steps=1000, quiet=True
    )
    own = {Activity.GENERATION: 900, Activity.EVALUATION: 1200}

    def cycle():
        for activity in own:
            optimizer.on_pause(activity)
            optimizer.on_resume()
        optimizer.on_step_begin()
        optimizer.on_step_end()

    for _ in range(3):
        cycle()
    assert optimizer.phase is not Phase.OFF
    for activity, clock_mhz in own.items():
        optimizer._search.visits.activities[activity].take_order(clock_mhz)
    gpu.gate.clear()
    gpu.arrived.clear()
    gpu.threads.clear()
    optimizer.on_pause(Activity.GENERATION)
    assert gpu.arrived.wait(60), "it was requested"
    optimizer.on_resume()
    cycle()
    optimizer.on_pause(Activity.EVALUATION)
    assert gpu.locked[-1] == 900, "the hooks went on"
    gpu.arrived.clear()
    gpu.gate.set()
    assert gpu.arrived.wait(60)
    assert gpu.locked[-1] == 1200, "900 and then the original were overtaken"
    assert threading.current_thread() not in gpu.threads
    optimizer.on_resume()
    optimizer.on_train_end()
    assert gpu._locked_clock_mhz == gpu.preset.highest_clock_mhz


def test_a_forked_child_changes_nothing_of_its_parent():
    training = Training(activities="each", changes_per_hour=OFTEN).generating(150)
    limiter = training.optimizer._search.limiter
    child = os.fork()
    if child == 0:
        switches = limiter.switches
        training.visit(Activity.GENERATION, GENERATION)
        os._exit(limiter.switches != switches)
    assert os.waitpid(child, 0)[1] == 0
    training.optimizer.on_train_end()
    assert training.clock_mhz == training.gpu.preset.highest_clock_mhz
