"""The search that is on by default, in training loops on simulated GPUs in virtual time."""

import json
import logging
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.search_ranks import make_rank
from tests.support.variants import long_but_first
from zeus_core.device import SimulatedGpu, SimulatedNoise, Work, find_preset
from zeus_core.device.gpu import PowerRange
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer.global_setting.phases import Phase
from zeus_core.optimizer.global_setting.trials import Piece, left_out_pieces
from zeus_core.optimizer.power_limit import (
    Energy,
    EnergyWithin,
    GlobalPowerLimitOptimizer,
    MaxSlowdownConstraint,
    OptimumSelector,
)
from zeus_core.search import AdaptiveSearch, GridSearch
from zeus_core.testing import ThreadWorld, VirtualTime

WORK = Work(0.5, 484.9, 0.938, 0.744)
EVALUATION = Work(7.0, 200.0)
BOUND = MaxSlowdownConstraint(factor=1.1)
BOUND_OF_2, LOWEST_WITHIN_2 = EnergyWithin(factor=2.0), MaxSlowdownConstraint(factor=2.0)


class Run:
    """A training on a simulated A100, and what it took."""

    def __init__(self, selector=BOUND, *, spread=0.01, seed=0, gpu=None, grants_control=True, **arguments):
        self.time_source = VirtualTime() if gpu is None else gpu.time_source
        noise = SimulatedNoise(spread, 0.01, seed) if spread else None
        self.gpu = gpu or SimulatedGpu(
            find_preset("A100"), time_source=self.time_source, noise=noise, grants_control=grants_control
        )
        monitor = ZeusMonitor(gpus=[self.gpu], time_source=self.time_source)
        self.optimizer = GlobalPowerLimitOptimizer(monitor, selector, quiet=True, **arguments)
        self.limits, self.seconds, self.joules = [], 0.0, 0.0  # of the steps alone

    def train(self, steps, work=WORK, *, begins=True, steps_per_epoch=10**9, evaluate_every=10**9, stall_at=()):
        if begins:
            self.optimizer.on_train_begin()
        for step in range(steps):
            if step % steps_per_epoch == 0:
                self.optimizer.on_epoch_begin()
            began, joules = self.time_source.now(), self.gpu.exact_energy_joules()
            self.optimizer.on_step_begin()
            self.limits.append(self.gpu.read_power_limit_watts())
            self.gpu.execute(work)
            if step in stall_at:
                self.time_source.advance(20 * work.seconds)
            self.optimizer.on_step_end()
            self.seconds += self.time_source.now() - began
            self.joules += self.gpu.exact_energy_joules() - joules
            if (step + 1) % evaluate_every == 0:
                self.optimizer.on_pause()
                self.gpu.execute(EVALUATION)
            if (step + 1) % steps_per_epoch == 0:
                self.optimizer.on_epoch_end()
                self.gpu.execute(EVALUATION)
        return self

    def point(self, limit_watts, work=WORK):
        return self.gpu.preset.physics.operating_point(work, limit_watts)

    @property
    def slowdown(self):
        return self.seconds / (len(self.limits) * self.point(400).seconds)

    @property
    def saving(self):
        return 1 - self.joules / (len(self.limits) * self.point(400).energy_joules)


# The promise is for the run


@pytest.mark.parametrize("steps", [650, 2000])
def test_the_whole_run_keeps_the_bound_and_saves_energy(steps):
    """The sweep took 1.98 and 1.41 times as long."""
    run = Run(max_steps=steps).train(steps)
    assert run.optimizer.phase is Phase.DONE
    assert run.slowdown <= 1.1
    assert run.saving >= 0.09
    assert len(set(run.limits)) <= 9


def test_what_the_search_takes_at_most_is_said_before_anything_is_changed(caplog):
    caplog.set_level(logging.INFO, "zeus_core.optimizer")
    run = Run(max_steps=2000)
    run.optimizer.on_train_begin()
    while not any("of 2,000 steps" in record.getMessage() for record in caplog.records):
        run.train(1, begins=False)
        assert len(run.limits) < 200
    assert set(run.limits) == {400}
    assert "the search for a power limit takes about" in caplog.text


def test_a_run_of_unknown_length_is_searched_too():
    run = Run().train(1500)
    assert run.optimizer.phase is Phase.DONE
    assert run.slowdown <= 1.11
    assert run.saving >= 0.08


def test_a_run_as_short_as_a_search_loses_no_energy():
    run = Run(max_steps=60).train(60)
    assert run.slowdown <= 1.1
    assert run.saving >= -0.005


def test_the_length_of_the_run_may_be_told_when_training_begins(caplog):
    caplog.set_level(logging.INFO, "zeus_core.optimizer")
    run = Run()
    run.optimizer.on_train_begin(max_steps=900)
    run.train(300, begins=False)
    assert "of 900 steps" in caplog.text


# Real loops


@pytest.mark.parametrize(
    "loop",
    long_but_first(
        [{"steps_per_epoch": 45}, {"evaluate_every": 7}, {"steps_per_epoch": 10}, {"steps_per_epoch": 1000}], count=2
    ),
)
def test_epochs_and_evaluations_neither_stop_the_search_nor_get_into_it(loop):
    run = Run(spread=0.0, max_steps=1000).train(1000, **loop)
    assert run.optimizer.chosen_limit_watts == pytest.approx(UNDISTURBED, abs=10)
    for trial in [*run.optimizer.trials, run.optimizer.confirmation]:
        truth = run.point(trial.setting)
        assert trial.seconds_per_step == pytest.approx(truth.seconds, rel=1e-6)
        assert trial.joules_per_step == pytest.approx(truth.energy_joules, rel=0.05)


UNDISTURBED = Run(spread=0.0, max_steps=1000).train(1000).optimizer.chosen_limit_watts


def test_steps_that_take_far_too_long_are_left_out_and_counted():
    run = Run(spread=0.0, max_steps=1000).train(1000, stall_at={5, 200, 400})
    truth = run.point(400)
    assert run.optimizer.trials[0].seconds_per_step == pytest.approx(truth.seconds, rel=1e-6)
    assert run.optimizer.confirmation.seconds_per_step == pytest.approx(
        run.point(run.optimizer.confirmation.setting).seconds, rel=0.01
    )
    assert "far too long, left out" in run.optimizer.result()["search"]


class SlowGpu(SimulatedGpu):
    """A GPU on which a limit takes effect gradually, within some seconds."""

    def __init__(self, settle_seconds):
        self.time_source = VirtualTime()
        super().__init__(find_preset("A100"), time_source=self.time_source)
        self._settle_seconds = settle_seconds
        self._wanted_watts = self._before_watts = 400.0
        self._changed_at = -math.inf

    def set_power_limit(self, limit_watts):
        self._before_watts, self._wanted_watts = super().read_power_limit_watts(), limit_watts
        self._changed_at = self.time_source.now()

    def read_power_limit_watts(self):
        return self._wanted_watts

    read_enforced_power_limit_watts = read_power_limit_watts

    def execute(self, work):
        share = min((self.time_source.now() - self._changed_at) / self._settle_seconds, 1.0)
        super().set_power_limit(self._before_watts + share * (self._wanted_watts - self._before_watts))
        super().execute(work)


def test_steps_in_which_the_gpu_settles_are_excluded_however_many():
    run = Run(gpu=SlowGpu(2.0), spread=0.0, max_steps=2000).train(2000)
    assert run.optimizer.phase is Phase.DONE
    for trial in run.optimizer.trials:
        assert trial.seconds_per_step == pytest.approx(run.point(trial.setting).seconds, rel=0.01)


def piece(seconds=1.0, joules=300.0, outliers=0):
    return Piece(4, seconds, joules, 3.0, outliers, 0.0)


def test_pieces_are_left_out_on_all_ranks_if_one_rank_says_so():
    usual = dict.fromkeys(range(8), piece())
    slow_at_first = {**usual, 0: piece(1.2), 1: piece(1.1)}
    drawing_more = {**usual, 0: piece(joules=400.0)}
    stalled = {**usual, 5: piece(9.0, outliers=1)}
    assert left_out_pieces([usual, usual], is_settling=True) == []
    assert left_out_pieces([usual, slow_at_first], is_settling=True) == [0, 1]
    assert left_out_pieces([slow_at_first, usual], is_settling=False) == []
    assert left_out_pieces([usual, drawing_more], is_settling=True) == [0]
    assert left_out_pieces([stalled, drawing_more], is_settling=True) == [0, 5]
    stalling = {number: piece(9.0, outliers=1) for number in range(8)}
    assert left_out_pieces([stalling], is_settling=False) == [], "this is how the work goes"


def test_quick_steps_make_blocks_of_several_updates_of_the_counter():
    run = Run(spread=0.0, max_steps=5000).train(5000, Work(0.02, 484.9, 0.938, 0.744))
    assert all(trial.measurement.time >= 0.5 * 0.8 for trial in run.optimizer.trials)


# Other searches, and explicit lengths


def test_explicit_lengths_are_kept_by_the_adaptive_search():
    run = Run(Energy(), spread=0.0, warmup_steps=3, profile_steps=20).train(300)
    assert 3 <= len(run.optimizer.trials) <= 6
    assert {trial.steps for trial in run.optimizer.trials} == {20}
    assert run.optimizer.confirmation.steps == 20
    assert run.optimizer.phase is Phase.DONE


def test_a_users_search_is_made_from_the_settings_and_the_selector():
    made = []

    def make(limits, selector):
        made.append((limits[0], limits[-1], selector))
        return AdaptiveSearch(limits, selector, max_trials=2)

    run = Run(Energy(), search=make, profile_steps=10).train(200)
    assert made == [(400, 100, run.optimizer.optimum_selector)]
    assert len(run.optimizer.trials) == 2


class SlowLater(SimulatedGpu):
    """A GPU whose steps at 300 W and less last a tenth longer after a while."""

    def execute(self, work):
        is_slow = self.read_power_limit_watts() <= 300 and self.is_late
        super().execute(Work(work.seconds * (1.1 if is_slow else 1.0), *[484.9, 0.938, 0.744]))


def test_a_confirmation_beyond_the_bound_leads_to_the_next_safer_limit():
    time_source = VirtualTime()
    gpu = SlowLater(find_preset("A100"), time_source=time_source)
    gpu.time_source, gpu.is_late = time_source, False
    run = Run(
        MaxSlowdownConstraint(factor=1.12), gpu=gpu, spread=0.0, search=GridSearch, warmup_steps=0, profile_steps=4
    )
    run.train(1 + 13 * 4)
    assert run.optimizer.chosen_limit_watts == 300
    gpu.is_late = True
    run.train(4, begins=False)
    assert run.optimizer.chosen_limit_watts == 325
    run.train(2 * 4, begins=False)  # with another visit of the original
    assert run.optimizer.phase is Phase.DONE
    assert run.optimizer.confirmation.setting == 325


class Doubting(GridSearch):
    """A grid that has another setting tried once the choice is confirmed, as an adaptive search may."""

    def __init__(self, settings, after):
        super().__init__(settings)
        self.after, self.told = after, []

    def ask(self):
        asked = super().ask()
        is_in_doubt = asked is None and len(self.told) > len(set(self.told)) and self.after not in self.told
        return self.after if is_in_doubt else asked

    def tell(self, trial):
        super().tell(trial)
        self.told.append(trial.setting)


@pytest.mark.parametrize(("after", "chosen", "blocks"), [(350, 300, 4), (250, 250, 5)])
def test_a_search_that_asks_again_after_a_confirmation_is_given_its_trial(caplog, after, chosen, blocks):
    run = Run(
        Energy(), spread=0.0, search=lambda limits, _: Doubting([400, 300], after), warmup_steps=0, profile_steps=4
    )
    run.train(1 + 3 * 4)
    assert run.optimizer.chosen_limit_watts == 300
    run.train((blocks - 3 + 1) * 4, begins=False)  # with another visit of the original
    assert not caplog.records
    assert {trial.setting: trial.steps for trial in run.optimizer.trials} == {400: 4, 300: 4, after: 4}
    assert run.optimizer.phase is Phase.DONE
    assert run.optimizer.confirmation.setting == run.optimizer.chosen_limit_watts == chosen


@pytest.mark.parametrize(("board", "watts", "share"), [("V100", 250, 0.3), ("A40", 280, 0.3), ("A100", 400, 0.4)])
def test_bursts_beyond_the_lowest_limit_keep_the_bound(board, watts, share):
    """Their mean draw is below the lowest limit, at which steps are 11 to 16 % longer."""
    preset = find_preset(board)
    mean_watts = share * watts + (1 - share) * preset.physics.blocking_power_watts
    limits = PowerRange(5 * math.ceil(1.03 * mean_watts / 5), preset.limit_range_watts.highest_watts)
    time_source = VirtualTime()
    noise = SimulatedNoise(0.02, 0.01, 0)
    gpu = SimulatedGpu(replace(preset, limit_range_watts=limits), time_source=time_source, noise=noise)
    optimizer = GlobalPowerLimitOptimizer(
        ZeusMonitor(gpus=[gpu], time_source=time_source), MaxSlowdownConstraint(factor=1.02), quiet=True
    )
    burst, seconds, original_seconds = Work(0.05 * share, watts, 1.0, 0.85), 0.0, 0.0
    optimizer.on_train_begin(max_steps=400)
    for _ in range(400):
        optimizer.on_step_begin()
        limit_watts = optimizer.power_limit_watts or preset.default_limit_watts
        for _ in range(10):
            gpu.execute(burst)
            time_source.advance(0.05 * (1 - share))
        optimizer.on_step_end()
        for_burst, originally = (
            gpu.preset.physics.operating_point(burst, one).seconds for one in (limit_watts, preset.default_limit_watts)
        )
        seconds, original_seconds = (
            total + 0.05 * (1 - share) + one for total, one in ((seconds, for_burst), (original_seconds, originally))
        )
    assert optimizer.chosen_limit_watts > limits.lowest_watts
    assert seconds / original_seconds < 1.02


# Bad input


def test_one_setting_is_measured_and_kept():
    time_source = VirtualTime()
    gpu = SimulatedGpu(find_preset("A100"), time_source=time_source, power_limit_watts=100)
    gpu.time_source = time_source
    run = Run(gpu=gpu, max_steps=200).train(200)
    assert set(run.limits) == {100}
    assert run.optimizer.phase is Phase.DONE


def test_where_nothing_keeps_the_bound_training_stays_at_the_original():
    run = Run(MaxSlowdownConstraint(factor=1.0), max_steps=300).train(300)
    run.optimizer.on_train_end()
    assert run.optimizer.chosen_limit_watts in {400, None} or run.slowdown <= 1.005
    assert "400 W" in run.optimizer.result()["power limit"]


class Broken(OptimumSelector):
    def __init__(self, answer):
        self.answer = answer

    def select(self, measurements):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


ANSWERS = [RuntimeError("no idea"), 7, None, math.nan]


@pytest.mark.parametrize(
    ("arguments", "answer"),
    long_but_first(
        [({"profile_steps": 10}, answer) for answer in ANSWERS] + [({"max_steps": 400}, answer) for answer in ANSWERS],
        count=5,
    ),
)
def test_a_selector_that_fails_leaves_training_at_the_original_limit(arguments, answer):
    run = Run(Broken(answer), **arguments).train(400)
    run.optimizer.on_train_end()
    assert run.limits[-1] == 400
    assert run.gpu.read_power_limit_watts() == 400


def test_a_training_that_ends_in_mid_search_reports_the_best_limit_yet():
    run = Run(max_steps=2000).train(130)
    assert run.gpu.read_power_limit_watts() < 400
    run.optimizer.on_train_end()
    assert run.gpu.read_power_limit_watts() == 400
    assert run.optimizer.result()


# Resuming


def test_no_block_that_was_measured_is_measured_again_after_a_kill(tmp_path):
    profile = tmp_path / "profile.json"
    whole = Run(max_steps=600).train(600)
    for killed_after in (20, 40, 90):
        profile.unlink(missing_ok=True)
        Run(max_steps=600, profile_path=profile).train(killed_after)  # and nothing ends it
        if not profile.exists():
            continue
        (kept,) = json.loads(profile.read_text())["profiles"]
        measured = {trial["setting"] for trial in kept["trials"]}
        resumed = Run(max_steps=600, profile_path=profile, seed=1)
        resumed.optimizer.on_train_begin()
        assert {trial.setting for trial in resumed.optimizer.trials} == measured
        resumed.train(600, begins=False)
        assert resumed.optimizer.phase is Phase.DONE
        assert abs(resumed.optimizer.chosen_limit_watts - whole.optimizer.chosen_limit_watts) <= 25


def resumed(state, steps, **arguments):
    run = Run(**arguments)
    run.optimizer.load_state_dict(json.loads(json.dumps(state)))
    run.optimizer.on_train_begin(max_steps=steps)
    return run.train(steps, begins=False)


def test_time_before_an_interruption_counts_in_a_resumed_runs_bound():
    first = Run(MaxSlowdownConstraint(factor=1.03), max_steps=600).train(300)
    assert first.slowdown < 1.03
    second = resumed(first.optimizer.state_dict(), 300, seed=1)
    alone = Run(max_steps=300, seed=1).train(300)
    assert second.slowdown > alone.slowdown + 0.005, "what was not used up is left"
    assert (first.seconds + second.seconds) / (600 * first.point(400).seconds) <= 1.1
    (search,) = second.optimizer.state_dict()["searches"]
    assert (search["run_steps"], search["run_seconds"]) == (600, pytest.approx(first.seconds + second.seconds))


@pytest.mark.parametrize("work", [{"parameters": 7}, None])
def test_each_of_several_trainings_knows_its_saving(work):
    """Folds: of the second training on, it had been compared with nothing. Work that nobody named is measured anew."""
    run = Run(EnergyWithin(1.1), max_steps=150)
    if work is not None:
        run.optimizer.use_work(work)
    for fold in range(3):
        run.limits.clear()
        run.train(150)
        run.optimizer.on_train_end()
        truth = 1 - run.point(run.optimizer.chosen_limit_watts).energy_joules / run.point(400).energy_joules
        assert run.optimizer.saving_fraction == pytest.approx(truth, abs=run.optimizer.saving_uncertainty + 0.02)
        measured_anew = run.limits.count(400) > 5
        assert measured_anew == (fold == 0 or work is None)


def test_nothing_is_searched_on_a_gpu_that_does_nothing(caplog):
    """A script whose work ran elsewhere had got the lowest limit, as it took the least energy for nothing."""
    run = Run(EnergyWithin(1.1), max_steps=300)
    run.optimizer.on_train_begin()
    for _ in range(120):
        run.optimizer.on_step_begin()
        run.time_source.advance(0.3)
        run.optimizer.on_step_end()
        assert run.gpu.read_power_limit_watts() == 400
    assert [one.getMessage() for one in caplog.records if one.levelname == "WARNING"] == [
        "no power limit is searched for while no GPU of this job computes anything"
    ]
    assert run.optimizer.result()["power limit"].startswith("not changed, as its GPUs compute nothing")
    run.train(180, begins=False)
    assert run.optimizer.phase is Phase.DONE, "once they do, it is searched"


@pytest.mark.parametrize("factor", long_but_first([1.1, 1.2]))
def test_another_run_with_the_same_profile_plans_at_once_without_new_measurements(tmp_path, factor):
    profile = tmp_path / "profile.json"
    Run(MaxSlowdownConstraint(factor), max_steps=600, profile_path=profile).train(600)
    second = Run(max_steps=600, profile_path=profile, seed=1).train(600)
    assert second.optimizer.phase is Phase.DONE
    assert second.slowdown <= 1.1
    assert second.saving >= 0.135
    assert second.limits.count(400) <= 2, "the original limit was measured before"


# Ranks


def test_four_ranks_with_a_slow_one_hold_equal_limits_every_step():
    def rank_main(world):
        rank = make_rank(
            world, BOUND, search=None, warmup_steps=None, profile_steps=None, pl_step=None, max_steps=400, wait_steps=1
        )
        slower = Work(0.5 if world.rank else 0.6, 289.2, 0.889, 0.784)
        rank.optimizer.on_train_begin()
        limits = []
        for _ in range(400):
            rank.step(slower)
            limits.append(rank.gpu.read_power_limit_watts())
        assert rank.optimizer.phase is Phase.DONE
        rank.optimizer.on_train_end()
        return limits, rank.outcome

    first, *others = ThreadWorld.run(4, rank_main, 30.0)
    assert min(first[0]) < 250
    assert all(other == first for other in others)


# Observing


@pytest.mark.parametrize("arguments", [{"mode": "observe"}, {"grants_control": False}])
def test_where_nothing_may_be_changed_the_saving_is_predicted(arguments):
    run = Run(max_steps=300, **arguments).train(300)
    run.optimizer.on_train_end()
    assert set(run.limits) == {400}
    rows = run.optimizer.result()
    assert rows["power limit"].startswith("not changed, ")
    assert "not measured, but derived from GPUs that were" in rows["predicted"]
    limit = int(rows["predicted"].split(" W ")[0])
    assert rows["to set it"] == f"sudo nvidia-smi -i {run.gpu.uuid} -pl {limit}"
    truth = 1 - run.point(limit).energy_joules / run.point(400).energy_joules
    assert float(rows["predicted"].split("save ")[1].split("%")[0]) == pytest.approx(100 * truth, abs=6)
    assert run.optimizer.saving_fraction is None


def test_steps_at_the_original_limit_count_for_no_limit_that_was_denied():
    predictions = []
    for arguments in ({"mode": "observe"}, {"grants_control": False}):
        run = Run(max_steps=300, spread=0.0, **arguments).train(100)
        run.optimizer.on_train_end()
        run.train(100)  # the original limit is known: the search asks for another one
        predictions.append(run.optimizer.result()["predicted"])
    assert predictions[0] == predictions[1]


# Within a wide bound, the lowest limit costs more energy than a higher one

SWEEP = {"search": GridSearch, "warmup_steps": 2, "profile_steps": 5, "pl_step": 25}


@pytest.mark.parametrize("arguments", [{}, SWEEP], ids=["adaptive", "grid"])
def test_no_search_ends_at_a_limit_that_another_measured_one_beats(arguments):
    """The lowest limit within a wide bound took 17 % more time and energy than one that the search had passed."""
    runs = [Run(rule, max_steps=1000, **arguments).train(1000) for rule in (BOUND_OF_2, LOWEST_WITHIN_2)]
    for run in runs:
        run.optimizer.on_train_end()
        assert run.slowdown < 2.0
    least, lowest = (run.limits[-1] for run in runs)
    assert lowest <= least
    ended = runs[1].point(lowest)
    for trial in runs[1].optimizer.trials:
        other = runs[1].point(trial.setting)
        beats = other.seconds < 0.99 * ended.seconds and other.energy_joules < 0.99 * ended.energy_joules
        assert not beats, (trial.setting, lowest)
    joules = {watts: run.point(watts).energy_joules for watts in range(100, 401, 25)}
    assert run.point(least).energy_joules < 1.02 * min(joules.values())
    result = runs[0].optimizer.result()
    assert result["power limit"].startswith(f"{least:g} W is the best of ")
    assert "by EnergyWithin(factor=2)" in result["power limit"]


@pytest.mark.parametrize("seed", long_but_first(range(6)))
def test_the_least_energy_within_a_tight_bound_keeps_it_for_the_run(seed):
    """Where energy falls down to the bound, it is the same choice as that of the lowest limit, step by step."""
    least, lowest = (Run(rule, seed=seed, max_steps=600).train(600) for rule in (EnergyWithin(1.1), BOUND))
    assert least.slowdown <= 1.1
    assert least.limits == lowest.limits


# Any order of events

HOOKS = [
    GlobalPowerLimitOptimizer.on_train_begin,
    GlobalPowerLimitOptimizer.on_epoch_begin,
    GlobalPowerLimitOptimizer.on_step_begin,
    GlobalPowerLimitOptimizer.on_step_end,
    GlobalPowerLimitOptimizer.on_pause,
    GlobalPowerLimitOptimizer.on_interference,
    GlobalPowerLimitOptimizer.on_epoch_end,
    GlobalPowerLimitOptimizer.on_train_end,
]
STEPS = [GlobalPowerLimitOptimizer.on_step_begin, GlobalPowerLimitOptimizer.on_step_end] * 12


@settings(max_examples=25, deadline=None)
@given(happenings=st.lists(st.one_of(st.sampled_from(HOOKS).map(lambda hook: [hook]), st.just(STEPS)), max_size=30))
def test_events_in_any_order_neither_raise_nor_leave_the_hardware_changed(happenings):
    run = Run(spread=0.0, max_steps=300)
    for hook in (hook for hooks in happenings for hook in hooks):
        hook(run.optimizer)
        run.gpu.execute(WORK)
        assert 100 <= run.gpu.read_power_limit_watts() <= 400
        is_open = bool(run.optimizer.monitor._open_windows)
        assert not is_open or run.optimizer.phase in {Phase.MEASURE, Phase.CONFIRM, Phase.DONE}
    run.optimizer.on_train_end()
    assert run.gpu.read_power_limit_watts() == 400
    assert not run.optimizer.monitor._open_windows
    assert run.optimizer.phase in {Phase.REST, Phase.OFF}
