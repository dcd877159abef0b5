"""The search for one SM clock during training: in virtual time, on simulated GPUs, also on several ranks."""

import json
import threading

import numpy as np
import pytest

from tests.support.variants import long_but_first
from zeus_core.device import SimulatedGpu, SimulatedNoise, Work, find_preset
from zeus_core.errors import NotSupportedError, PermissionDeniedError, UsageError
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import GlobalClockOptimizer, GlobalPowerLimitOptimizer
from zeus_core.optimizer.global_setting.phases import Phase
from zeus_core.optimizer.power_limit import Energy, EnergyWithin, MaxSlowdownConstraint, Time, ZeusCost
from zeus_core.search import GridSearch
from zeus_core.testing import FaultyGpu, ThreadWorld, VirtualTime

WORK = Work(0.5, 440.0, 1.0, 0.85)  # under 400 W an A100 runs it at about 1290 MHz
TOP_MHZ = 1410


def few(settings, selector):
    """Try every 20th clock."""
    return GridSearch(settings[::20])


class Training:
    """A loop on one GPU, which is alone or a rank of several."""

    def __init__(self, *arguments, index=0, noise=None, world=None, grants_control=True, model="A100", **more):
        self.time_source = VirtualTime()
        self.gpu = SimulatedGpu(
            find_preset(model), index, time_source=self.time_source, noise=noise, grants_control=grants_control
        )
        self.faulty = FaultyGpu(self.gpu)
        monitor = ZeusMonitor(gpus=[self.faulty], time_source=self.time_source)
        self.optimizer = GlobalClockOptimizer(monitor, *arguments, world=world, quiet=True, **more)
        self.world = world
        self.seconds = 0.0

    def step(self, work=WORK):
        self.optimizer.on_step_begin()
        begin = self.time_source.now()
        self.gpu.execute(work)
        if self.world is not None:  # the ranks wait for each other, and blocked GPUs draw power meanwhile
            latest = max(self.world.gather(self.time_source.now()))
            self.time_source.advance(latest - self.time_source.now())
        self.seconds = self.time_source.now() - begin
        self.optimizer.on_step_end()

    def clock_of_step(self, work):
        """Make a step, and return the clock that it ran at."""
        clock_mhz = self.optimizer.sm_clock_mhz or TOP_MHZ
        self.step(work)
        return clock_mhz

    def train(self, steps, work=WORK):
        self.optimizer.on_train_begin(max_steps=steps)
        for _ in range(steps):
            self.step(work)
        return self

    @property
    def clock_mhz(self):
        """The clock under light work, which no power limit holds below the lock."""
        self.gpu.submit(Work(1e6, 90.0))
        return self.gpu.read_sm_clock_mhz()


def test_the_best_clock_is_found_and_held_and_finally_unlocked():
    training = Training(Energy(), warmup_steps=1, profile_steps=4, search=few)
    training.train(60)
    optimizer = training.optimizer
    clocks = [trial.setting for trial in optimizer.trials]
    assert clocks == [1410, 1110, 810, 510, 210]
    joules = {trial.setting: trial.joules_per_step for trial in optimizer.trials}
    assert optimizer.phase is Phase.DONE
    assert optimizer.chosen_clock_mhz == optimizer.sm_clock_mhz == min(joules, key=joules.get) == 810
    assert optimizer.power_limit_watts is None
    assert training.gpu.read_power_limit_watts() == 400, "the original limit stays the ceiling"
    optimizer.on_train_end()
    assert optimizer.sm_clock_mhz is None
    assert training.clock_mhz == TOP_MHZ
    result = optimizer.result()
    assert result["SM clock"] == "810 MHz is the best of 5 tried, of 81, by Energy(); the original unlocked clock"
    assert "than at unlocked clock" in result["search"]
    assert " W" not in result["SM clock"] + result["search"]


def test_gpus_that_were_locked_are_locked_again_and_nothing_above_is_tried():
    training = Training(Energy(), warmup_steps=1, profile_steps=4, search=few, original_clock_mhz=1200)
    training.gpu.lock_sm_clock(1200)
    training.train(60)
    assert training.optimizer.baseline_clock_mhz == 1200
    assert "; the original 1200 MHz" in training.optimizer.result()["SM clock"]
    assert max(trial.setting for trial in training.optimizer.trials) == 1200
    training.optimizer.close()
    assert training.clock_mhz == 1200


def test_the_baseline_tells_the_clock_that_the_gpu_runs_at_by_itself():
    training = Training(MaxSlowdownConstraint(1.1), warmup_steps=0, profile_steps=4, search=few).train(6)
    point = training.gpu.preset.physics.operating_point(WORK, 400.0)
    free_mhz = point.clock_fraction * TOP_MHZ
    assert training.optimizer.trials[0].highest_clock_mhz == pytest.approx(free_mhz, abs=1)
    assert free_mhz < 1350, "the power limit holds it below the highest clock"


@pytest.mark.parametrize("compute_share", [0.0, 0.35, 1.0])
@pytest.mark.parametrize("seed", long_but_first(range(3)))
@pytest.mark.parametrize("selector", [MaxSlowdownConstraint(1.1), EnergyWithin(1.1)], ids=repr)
def test_the_shortest_run_saves_at_a_clock_safe_for_any_work(selector, seed, compute_share):
    """However noisy the steps are: the bound of the run does not depend on their time."""
    work = Work(0.5, 440.0, 1.0, compute_share)
    training = Training(selector, noise=SimulatedNoise(0.2, 0.01, seed=seed))
    training.optimizer.on_train_begin(max_steps=20)
    clocks_mhz = [training.clock_of_step(work) for _ in range(20)]
    physics = training.gpu.preset.physics
    free = physics.operating_point(work, 400.0)
    lower_mhz = [clock_mhz for clock_mhz in clocks_mhz if clock_mhz < TOP_MHZ]
    assert lower_mhz[0] == pytest.approx(free.clock_fraction * TOP_MHZ / 1.1, abs=15), "it needs no measured time"
    points = [physics.operating_point(work, 400.0, clock_mhz / TOP_MHZ) for clock_mhz in clocks_mhz]
    assert sum(point.seconds for point in points) <= 1.1 * 20 * free.seconds
    most = 0.955  # the last 2 steps may be at the original clock, as so few that scatter so much show no saving
    assert sum(point.energy_joules for point in points) < most * 20 * free.energy_joules


def test_a_cost_of_clocks_weighs_time_with_the_original_power_limit():
    training = Training(warmup_steps=1, profile_steps=4, search=few).train(60)
    selector = training.optimizer.optimum_selector
    assert (type(selector), selector.max_power_watts) == (ZeusCost, 400)
    own = ZeusCost(0.3, world_size=1)
    training = Training(own, warmup_steps=1, profile_steps=4, search=few).train(2)
    assert training.optimizer.optimum_selector.max_power_watts == 400
    assert training.optimizer.optimum_selector.eta_knob == 0.3
    assert own.max_power_watts is None, "the object of the user stays as it is"


def test_without_the_right_it_observes_and_names_the_command(caplog):
    training = Training(MaxSlowdownConstraint(1.1), warmup_steps=1, profile_steps=4, grants_control=False).train(40)
    optimizer = training.optimizer
    assert [trial.setting for trial in optimizer.trials] == [TOP_MHZ]
    assert "SM clocks are not changed" in caplog.text
    rows = optimizer.result()
    assert "-lgc" in rows["to set it"]
    optimizer.on_train_end()


def test_a_gpu_whose_clocks_cannot_be_set_ends_only_the_search(caplog):
    training = Training(Energy(), search=few)
    training.faulty.fail("read_supported_sm_clocks_mhz", NotSupportedError("no clocks here"))
    training.train(3)
    assert training.optimizer.phase is Phase.OFF
    assert "the search for a SM clock is off" in caplog.text or "the search for an SM clock is off" in caplog.text


def test_somebody_else_who_unlocks_the_clock_ends_the_search(caplog):
    training = Training(Energy(), warmup_steps=1, profile_steps=4, search=few).train(8)
    training.gpu.unlock_sm_clock()
    for _ in range(4):
        training.optimizer.on_step_begin()
        training.gpu.execute(WORK)
        training.gpu.submit(Work(0.2, 90.0))  # a real GPU still works on the step when its end is reported
        training.optimizer.on_step_end()
    assert training.optimizer.phase is Phase.OFF
    assert "somebody else has changed the SM clock" in caplog.text


def test_a_limit_is_not_searched_while_a_clock_is(caplog):
    """Each would change what the other compares, so that neither keeps its bound."""
    training = Training(MaxSlowdownConstraint(1.1), warmup_steps=1, profile_steps=4, search=few)
    clock = training.optimizer
    limit = GlobalPowerLimitOptimizer(clock.monitor, MaxSlowdownConstraint(1.1), warmup_steps=1, profile_steps=4)
    clock.on_train_begin()
    limit.on_train_begin()
    for _ in range(60):
        limit.on_step_begin()
        training.step()
        limit.on_step_end()
        assert training.gpu.read_power_limit_watts() == 400
    assert clock.phase is Phase.DONE
    assert limit.trials == []
    assert "the GlobalClockOptimizer at" in limit.result()["power limit"]
    clock.on_train_end()
    limit.on_train_end()
    limit.on_train_begin()
    for _ in range(60):
        limit.on_step_begin()
        training.gpu.execute(WORK)
        limit.on_step_end()
    assert limit.trials


@pytest.mark.parametrize("original_clock_mhz", [0, 1.5, "high"])
def test_an_original_clock_that_cannot_be_is_an_error(original_clock_mhz):
    with pytest.raises(UsageError, match="original_clock_mhz is"):
        Training(original_clock_mhz=original_clock_mhz)


def run_ranks(size, *arguments, steps, noise=None, work=WORK, **more):
    def rank_main(world):
        threading.current_thread().name = f"rank {world.rank}"
        training = Training(*arguments, index=world.rank, noise=noise, world=world, **more)
        return training.train(steps, work)

    return ThreadWorld.run(size, rank_main, 60.0)


def test_all_ranks_hold_one_clock_and_observe_if_one_lacks_rights():
    ranks = run_ranks(2, Energy(), steps=40, warmup_steps=1, profile_steps=4, search=few)
    assert {rank.optimizer.sm_clock_mhz for rank in ranks} == {810}
    assert [rank.clock_mhz for rank in ranks] == [810, 810]

    def rank_main(world):
        training = Training(
            Energy(), index=world.rank, world=world, warmup_steps=1, profile_steps=4, search=few,
            grants_control=world.rank == 0,
        )  # fmt: skip
        training.train(20)
        return training

    for rank in ThreadWorld.run(2, rank_main, 60.0):
        assert [trial.setting for trial in rank.optimizer.trials] == [TOP_MHZ]
        assert rank.clock_mhz == TOP_MHZ


def savings_of_boards_that_differ(model, watts, scatter, seed):
    """Return what a common clock saves in 60 steps of eight ranks, and what it could save, without longer steps."""
    work, steps = Work(0.5, watts, 1.0, 0.85), 60
    noise = SimulatedNoise(scatter, scatter, seed=seed, board_spread=0.12)
    ranks = run_ranks(8, Time(), steps=steps, noise=noise, model=model, work=work)
    chosen_mhz = ranks[0].optimizer.chosen_clock_mhz
    assert {rank.optimizer.sm_clock_mhz for rank in ranks} == {chosen_mhz}
    assert {rank.gpu.read_power_limit_watts() for rank in ranks} == {
        ranks[0].gpu.preset.limit_range_watts.highest_watts
    }

    def points(clock_share):
        gpus = [rank.gpu for rank in ranks]
        return [gpu._own_operating_point(work, gpu.read_power_limit_watts(), clock_share) for gpu in gpus]

    def seconds_and_joules(points):
        seconds = max(point.seconds for point in points)
        waiting = sum((seconds - point.seconds) * point.blocking_power_watts for point in points)
        return seconds, waiting + sum(point.energy_joules for point in points)

    highest_mhz = ranks[0].gpu.preset.highest_clock_mhz
    original, chosen = points(1.0), points(chosen_mhz / highest_mhz)
    assert max(point.seconds for point in original) / min(point.seconds for point in original) == pytest.approx(
        1.08, abs=0.012
    )
    (before_seconds, before_joules), (seconds, joules) = map(seconds_and_joules, (original, chosen))
    assert seconds <= 1.002 * before_seconds
    others = (seconds_and_joules(points(clock / highest_mhz)) for clock in range(int(highest_mhz), 700, -15))
    least_joules = min(joules for seconds, joules in others if seconds <= 1.002 * before_seconds)
    for rank in ranks:
        rank.optimizer.on_train_end()
        assert rank.clock_mhz == rank.gpu.preset.highest_clock_mhz
    return 1 - joules / before_joules, 1 - least_joules / before_joules


@pytest.mark.parametrize(("model", "watts", "scatter", "seed"), [("H100", 800.0, 0.0, 1), ("A100", 480.0, 0.005, 1)])
def test_one_clock_levels_boards_that_differ_by_8_percent(model, watts, scatter, seed):
    """Eight ranks, under the highest limit of their boards. Without longer steps: the slowest board sets the pace.

    Where the steps of each board scatter by 0.5 %, the latest of eight equally fast boards is 0.7 % late, and the
    search may refuse the clock for it.
    """
    saved, attainable = savings_of_boards_that_differ(model, watts, scatter, seed)
    assert attainable >= 0.05
    assert saved >= 0.75 * attainable


@pytest.mark.long
def test_over_many_boards_a_common_clock_saves_six_percent_without_longer_steps():
    """The best common clock saves 5.4 to 7.1 % by the set of boards, 6.4 % in the mean."""
    boards = [savings_of_boards_that_differ("A100", 480.0, 0.001, seed) for seed in range(101, 121)]
    saved, attainable = np.array(boards).T
    assert saved.mean() >= 0.06
    assert saved.mean() >= 0.95 * attainable.mean()


def refuse_locks(training):
    training.faulty.fail("lock_sm_clock", PermissionDeniedError("no rights to lock"))


def lack_clocks(training):
    training.faulty.fail("read_supported_sm_clocks_mhz", NotSupportedError("no clocks here"))


@pytest.mark.parametrize("obstacle", [refuse_locks, lack_clocks])
def test_where_one_rank_cannot_lock_clocks_all_search_permitted_power_limits(caplog, obstacle):
    def rank_main(world):
        training = Training(
            Energy(),
            index=world.rank,
            world=world,
            warmup_steps=1,
            profile_steps=4,
            search=few,
            pl_step=5,
            knob="auto",
        )
        if world.rank == 1:
            obstacle(training)
        return training.train(40)

    ranks = ThreadWorld.run(2, rank_main, 60.0)
    for rank in ranks:
        optimizer = rank.optimizer
        assert optimizer.chosen_clock_mhz is optimizer.sm_clock_mhz is None
        assert optimizer.power_limit_watts == optimizer.chosen_limit_watts == rank.gpu.read_power_limit_watts() < 400
        assert rank.clock_mhz == TOP_MHZ
        optimizer.on_train_end()
        assert "power limit" in optimizer.result()
    (said, *_) = [record.message for record in caplog.records if "are searched" in record.message]
    assert "only power limits are searched: SM clocks cannot be changed: " in said
    assert "rank 1: " in caplog.text


@pytest.mark.parametrize(
    ("pl_step", "tried_watts", "kept", "other"),
    [
        (5, [400, 300, 200, 100], ("power limit", 200), ("SM clock", "810 MHz")),
        (300, [400], ("SM clock", 810), ("power limit", "400 W")),
    ],
)
def test_where_both_may_be_set_the_better_of_both_is_chosen(caplog, pl_step, tried_watts, kept, other):
    caplog.set_level("INFO", "zeus_core.optimizer")
    training = Training(Energy(), warmup_steps=1, profile_steps=4, search=few, pl_step=pl_step, knob="auto").train(100)
    optimizer = training.optimizer
    limits, clocks = (search.measured.trials for search in optimizer._course.searches)
    assert list(limits) == tried_watts
    assert list(clocks) == [1410, 1110, 810, 510, 210]
    assert limits[400].measurement == clocks[1410].measurement, "the original state is measured once"
    assert {"power limit": optimizer.chosen_limit_watts, "SM clock": optimizer.chosen_clock_mhz}[kept[0]] == kept[1]
    assert training.gpu.read_power_limit_watts() == (optimizer.power_limit_watts or 400)
    assert training.clock_mhz == (optimizer.sm_clock_mhz or TOP_MHZ)
    assert (optimizer.power_limit_watts is None) != (optimizer.sm_clock_mhz is None)
    optimizer.on_train_end()
    assert (training.clock_mhz, training.gpu.read_power_limit_watts()) == (TOP_MHZ, 400)
    rows = optimizer.result()
    assert rows[kept[0]].startswith(f"{kept[1]} ")
    assert rows[f"or {other[0]}"].startswith(f"{other[1]}, for ")
    assert f"and not with {other[1]}" in caplog.text


@pytest.mark.parametrize("steps", long_but_first([650, 60]))
def test_a_run_trying_both_keeps_its_bound_and_saves_like_the_better(steps):
    saved = {}
    for knob in ("power limit", "clock", "auto"):
        training = Training(MaxSlowdownConstraint(1.1), noise=SimulatedNoise(0.02, 0.01, seed=3), knob=knob)
        joules, began = training.gpu.exact_energy_joules(), training.time_source.now()
        training.train(steps)
        free = training.gpu.preset.physics.operating_point(WORK, 400.0)
        assert training.time_source.now() - began <= 1.1 * steps * free.seconds
        # Two searches share the steps of a run: which setting each was at, neither knows.
        assert ("over the run" in training.optimizer.result()["slowdown"]) == (knob != "auto")
        saved[knob] = 1 - (training.gpu.exact_energy_joules() - joules) / (steps * free.energy_joules)
    assert saved["auto"] >= max(saved.values()) - 0.015


def test_a_search_of_both_that_was_killed_goes_on_where_it_was(tmp_path, caplog):
    arguments = {"warmup_steps": 1, "profile_steps": 4, "search": few, "pl_step": 5, "knob": "auto"}
    for killed_after in range(5, 50, 5):
        path = tmp_path / f"{killed_after}.json"
        first = Training(Energy(), profile_path=path, **arguments).train(killed_after)
        before = [search.measured.trials for search in first.optimizer._course.searches]
        second = Training(Energy(), profile_path=path, **arguments)
        second.optimizer.on_train_begin()
        second.train(60)
        limits, clocks = (search.measured.trials for search in second.optimizer._course.searches)
        assert [len(limits), len(clocks)] == [4, 5]
        for setting, trial in before[0].items():
            assert limits[setting] == trial, "it was not measured again"
        for setting, trial in before[1].items():
            assert clocks[setting] == trial
        assert (second.optimizer.chosen_limit_watts, second.optimizer.chosen_clock_mhz) in [(200, None), (None, 810)]
    assert "no trials that fit" not in caplog.text


def test_a_checkpoint_continues_the_search_in_its_middle():
    arguments = {"warmup_steps": 1, "profile_steps": 4, "search": few}
    first = Training(Energy(), **arguments).train(12)
    state = json.loads(json.dumps(first.optimizer.state_dict()))
    done = [trial.setting for trial in first.optimizer.trials]
    assert len(done) == 2
    second = Training(Energy(), **arguments)
    second.optimizer.load_state_dict(state)
    second.train(30)
    assert [trial.setting for trial in second.optimizer.trials] == [1410, 1110, 810, 510, 210]
    assert second.optimizer.trials[:2] == first.optimizer.trials, "no trial was made again"


@pytest.mark.parametrize(
    "damage", [{"searches": [{"trials": None}]}, {"version": 9}, {"searches": [{"conditions": {"gpus": ["V100"]}}]}]
)
def test_a_checkpointed_search_that_does_not_fit_is_unused_and_reported(caplog, damage):
    first = Training(Energy(), warmup_steps=1, profile_steps=4, search=few).train(12)
    second = Training(Energy(), warmup_steps=1, profile_steps=4, search=few)
    second.optimizer.load_state_dict({**first.optimizer.state_dict(), **damage})
    second.train(2)
    assert second.optimizer.trials == []
    assert "the search in the checkpoint is not used" in caplog.text
