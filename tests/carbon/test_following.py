"""The decisions of a training that follows a signal: no device, no framework."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zeus_core.carbon import CarbonAware
from zeus_core.carbon._credit import RunSpent
from zeus_core.carbon._following import Following
from zeus_core.electricity import ConstantSignal, RecordedSignal, Signal, WeeklyTariff
from zeus_core.errors import UsageError
from zeus_core.measurement import DeviceEnergy, Measurement
from zeus_core.optimizer.global_setting.director import DuePause
from zeus_core.search import GridSearch, Trial
from zeus_core.search.run.fixed_trials import FixedTrials
from zeus_core.search.run.run_plan import Prediction

HOUR, DAY = 3600.0, 86_400.0
MIDNIGHT = 1_772_323_200.0
# Seconds and joules of a step at each limit.
STEPS = {300: (1.0, 290.0), 200: (1.12, 220.0)}
IDLE_WATTS = 20.0
NIGHT = {"Mon-Sun 06:00-22:00": 0.30, "Mon-Sun 22:00-06:00": 0.10}


def tariff() -> WeeklyTariff:
    return WeeklyTariff(NIGHT, "EUR/kWh", "UTC")


@dataclass
class Clock:
    seconds: float = MIDNIGHT

    def now(self) -> float:
        return self.seconds

    def wait(self, event: threading.Event, timeout_seconds: float) -> None:
        self.seconds += timeout_seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def clock_seconds(self) -> float:
        return self.seconds


@dataclass
class Run:
    """A training with a search that does what `Following` decides. It is the `FollowedSearch`, too."""

    aware: CarbonAware
    time: Clock
    max_steps: int | None = 100_000
    run_steps: int = 0
    cycle_seconds: float = 0.0  # of steps
    joules: float = 0.0
    amount: float = 0.0
    evaluation_seconds: float = 0.0  # after each block
    slower: float = 1.0  # steps than when they were measured
    blocks: list[tuple[int, DuePause | None]] = field(default_factory=list)
    unit: str = "W"

    def start(self, spent: RunSpent | None = None, limits: tuple[int, ...] = (300, 200)) -> None:
        self.settings, self.present = limits, limits[0]
        self.cycle_trials: list[Trial] = []
        self.search = FixedTrials(GridSearch(limits), limits, lambda trials: limits[-1], 40)
        self.following = Following(self.aware, self, IDLE_WATTS, self.time, spent)
        self.decision = self.following.decide()

    @property
    def is_done(self) -> bool:
        return self.search.is_done

    @property
    def choice(self) -> int:
        return self.search.ask().setting

    @property
    def original_trial(self) -> Trial | None:
        return next((trial for trial in self.cycle_trials if trial.setting == self.settings[0]), None)

    def predicted(self, setting: int) -> Prediction | None:
        return self.search.prediction(setting)

    def step(self, last: int) -> bool:
        """Do what is decided, up to the last step. Returns False if the process ended."""
        decision, block = self.decision, self.search.ask()
        pause, is_followed = decision.pause, decision.setting is not None
        self.present = block.setting if decision.setting is None else decision.setting
        self.blocks.append((self.present, pause))
        if pause is not None:
            self._pass(pause.seconds, pause.seconds * IDLE_WATTS)
            if pause.ends_process:
                return False
            self.following.note_pause(pause.seconds, DeviceEnergy(pause.seconds * IDLE_WATTS))
        steps = min(decision.steps if is_followed else block.steps, last - self.run_steps)
        seconds, joules = STEPS[self.present]
        slower = self.slower if self.is_done else 1.0
        trial = Trial(self.present, steps, Measurement.from_energies(slower * steps * seconds, {0: steps * joules}))
        self._pass(slower * steps * seconds, steps * joules)
        self.run_steps, self.cycle_seconds = self.run_steps + steps, self.cycle_seconds + slower * steps * seconds
        self._pass(self.evaluation_seconds, 0.0)
        self.cycle_trials.append(trial)
        if not is_followed:
            self.search.tell(trial, self.run_steps, self.cycle_seconds)
        self.decision = self.following.decide()
        return True

    def finish(self) -> None:
        assert self.max_steps is not None
        while self.run_steps < self.max_steps:
            assert self.step(self.max_steps), "the process ended"

    def _pass(self, seconds: float, joules: float) -> None:
        if seconds > 0:
            parts = self.aware.signal.parts(self.time.seconds, self.time.seconds + seconds)
            self.amount += joules / 3.6e6 * sum(part.value * part.seconds for part in parts) / seconds
        self.joules += joules
        self.time.seconds += seconds


def run(signal: Signal, hours: float | None = None, max_steps: int | None = 100_000, **options: object) -> Run:
    deadline = None if hours is None else MIDNIGHT + hours * HOUR
    made = CarbonAware(signal, deadline, **options)  # type: ignore[arg-type]
    training = Run(made, Clock(), max_steps)
    training.start()
    return training


def test_training_pauses_in_the_dear_hours_and_is_done_in_time() -> None:
    training = run(tariff(), hours=96)
    training.finish()
    assert training.time.seconds <= MIDNIGHT + 96 * HOUR
    pauses = [pause for _, pause in training.blocks if pause is not None]
    assert pauses
    assert all(pause.seconds <= HOUR for pause in pauses), "a decision each hour"
    credit = training.following.credit()
    assert credit is not None
    assert training.following.spent.amount == pytest.approx(training.amount, rel=0.003)
    assert training.following.spent.energy_joules == pytest.approx(training.joules, rel=0.003)
    assert credit.full.amount > credit.static.replayed.amount > training.amount
    assert 0.1 < credit.gain_fraction < credit.saving_fraction
    rows = credit.rows()
    assert set(rows) == {"cost", "at full power", "at 200 W all the time"}
    assert "EUR" in rows["cost"]


def test_without_pauses_the_limit_follows_the_price() -> None:
    training = run(tariff(), hours=30, may_pause=False)
    training.finish()
    assert training.time.seconds <= MIDNIGHT + 30 * HOUR
    assert {pause for _, pause in training.blocks} == {None}
    assert {300, 200} == {setting for setting, _ in training.blocks[2:]}


@settings(max_examples=6)
@given(st.floats(1.01, 3.0), st.floats(0, 0.3), st.integers(0, 23), st.floats(0.9, 1.1), st.booleans())
def test_the_slowdown_bound_is_kept_with_what_happens_between_steps(
    factor: float, share: float, hour: int, slower: float, may_pause: bool
) -> None:
    training = run(tariff(), max_slowdown=factor, max_steps=60_000, may_pause=may_pause)
    training.time.seconds += hour * HOUR
    training.slower = slower
    training.start()
    training.evaluation_seconds = share * HOUR
    training.finish()
    # As long as at the original limit, with the same evaluations: it takes the steps for as slow as they are there.
    blocks = len([block for block in training.blocks if block[1] is None])
    original = 60_000 * max(slower, 1.0) + blocks * training.evaluation_seconds
    allowed = max(factor, 1.0) * original
    assert (
        training.time.seconds - (MIDNIGHT + hour * HOUR) <= 1.005 * allowed + training.evaluation_seconds + 0.1 * HOUR
    )


def test_a_resumed_run_continues_with_its_deadline_and_account() -> None:
    training = run(tariff(), max_slowdown=2.5)
    while training.run_steps < 30_000:
        training.step(100_000)
    spent, before = training.following.spent, training.following
    training.time.seconds += 5 * HOUR
    training.start(spent)
    assert training.following is not before
    training.finish()
    assert training.time.seconds <= MIDNIGHT + 2.5 * 100_000 * 1.005
    assert training.following.spent.amount == pytest.approx(training.amount, rel=0.005)


def test_a_long_pause_ends_the_process_and_says_when_to_go_on() -> None:
    training = run(tariff(), hours=100, exit_from_seconds=4 * HOUR)
    while training.step(100_000):
        pass
    pause = training.decision.pause
    assert pause is not None
    assert pause.ends_process
    assert pause.until_seconds is not None
    assert pause.until_seconds % DAY == 22 * HOUR


def test_with_a_budget_alone_it_is_as_quick_as_money_allows(caplog: pytest.LogCaptureFixture) -> None:
    hours, cost = [], []
    for budget in (1.9, 1.4):
        training = run(tariff(), budget=budget)
        training.finish()
        assert training.amount <= 1.002 * budget
        hours.append((training.time.seconds - MIDNIGHT) / HOUR)
        cost.append(training.amount)
    assert hours == sorted(hours)
    assert cost == sorted(cost, reverse=True)
    assert "cannot be kept" not in caplog.text


def test_too_small_a_budget_is_reported_at_once_and_ends_training(caplog: pytest.LogCaptureFixture) -> None:
    training = run(tariff(), hours=60, budget=0.6)
    while training.step(100_000):
        pass
    assert training.run_steps < 100_000
    assert 0.6 * 0.99 <= training.amount <= 0.6 * 1.2, "an hour's cost more at most"
    (record,) = [record for record in caplog.records if "the budget cannot be kept" in record.getMessage()]
    assert "by 2026-03-03 12:00 UTC" in record.getMessage()
    assert training.decision.pause is not None
    assert training.decision.pause.until_seconds is None


def test_an_impossible_deadline_is_reported_at_once_with_the_earliest_end(caplog: pytest.LogCaptureFixture) -> None:
    training = run(tariff(), hours=20)
    training.step(100_000)
    training.step(100_000)
    (record,) = [record for record in caplog.records if "cannot be kept" in record.getMessage()]
    assert "2026-03-01 20:00 UTC" in record.getMessage()
    assert "2026-03-02 03:4" in record.getMessage()
    training.finish()
    assert {setting for setting, _ in training.blocks[2:]} == {300}


def test_a_deadline_that_is_close_is_not_called_impossible(caplog: pytest.LogCaptureFixture) -> None:
    """Training runs at full speed, as little is in reserve, and ends before its deadline."""
    training = run(tariff(), hours=1060 / HOUR, max_steps=1000)
    training.finish()
    (record,) = [record for record in caplog.records if "the deadline, " in record.getMessage()]
    assert "is close" in record.getMessage()
    assert "cannot be kept" not in record.getMessage()
    assert training.time.seconds <= MIDNIGHT + 1060


def test_without_the_number_of_steps_the_search_alone_decides(caplog: pytest.LogCaptureFixture) -> None:
    training = run(ConstantSignal(380, "g/kWh"), hours=20, max_steps=None)
    assert "pass max_steps" in caplog.text
    for _ in range(5):
        training.step(10**6)
    assert [setting for setting, _ in training.blocks[2:]] == [200, 200, 200]


def test_where_only_the_original_may_be_set_it_still_pauses() -> None:
    training = run(tariff(), hours=96)
    training.start(limits=(300,))
    training.finish()
    assert {setting for setting, _ in training.blocks} <= {300}
    assert any(pause for _, pause in training.blocks)


def test_on_a_grid_that_does_not_change_there_is_nothing_to_gain() -> None:
    training = run(ConstantSignal(380, "g/kWh", source="test"), hours=40)
    training.finish()
    credit = training.following.credit()
    assert credit is not None
    assert abs(credit.gain_fraction) < 0.005
    assert "emissions" in credit.rows()


@pytest.mark.parametrize("hours", [29.0, 30.0])
def test_two_settings_in_turn_are_no_gain_of_following(hours: float) -> None:
    """Between the times at the two limits, it changes between them: on a grid that is flat that is no gain."""
    training = run(ConstantSignal(380, "g/kWh", source="test"), hours=hours)
    training.finish()
    assert {300, 200} == {setting for setting, _ in training.blocks[2:]}
    credit = training.following.credit()
    assert credit is not None
    assert abs(credit.gain_fraction) < 0.001
    assert [point.setting for point in credit.static.points] == [200, 300]
    assert "at 300 and 200 W in turn all the time" in credit.rows()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({}, "are all None"),
        ({"budget": -1}, "budget is -1"),
        ({"deadline": MIDNIGHT, "max_slowdown": 1.2}, "give one of the two"),
        ({"max_slowdown": 0.9}, "max_slowdown is 0.9"),
        ({"max_slowdown": math.nan}, "max_slowdown is nan"),
        ({"deadline": "tomorrow"}, "deadline is 'tomorrow'"),
        ({"deadline": datetime(2026, 3, 1)}, "no zone"),
        ({"max_slowdown": 2.0, "interval_seconds": 1.0}, "interval_seconds is 1.0"),
        ({"max_slowdown": 2.0, "idle_watts": -1}, "idle_watts is -1"),
        ({"max_slowdown": 2.0, "checkpoint": 3}, "checkpoint is 3"),
        ({"max_slowdown": 2.0, "exit_from_seconds": -5}, "exit_from_seconds is -5"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        CarbonAware(ConstantSignal(380, "g/kWh"), **arguments)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="signal is 380"):
        CarbonAware(380, max_slowdown=2.0)  # type: ignore[arg-type]


def test_a_recorded_signal_that_ends_in_mid_run_becomes_its_average() -> None:
    hours = range(-14 * 24, 10)
    values = [300 + 100 * math.sin(math.tau * hour / 24) for hour in hours]
    signal = RecordedSignal([MIDNIGHT + HOUR * hour for hour in hours], values, "g/kWh")
    training = run(signal, hours=60)
    training.finish()
    assert training.time.seconds <= MIDNIGHT + 60 * HOUR


class _OfNoSteps(Run):
    """Trials of a profile, before the first step: activities have no share in a step yet."""

    @property
    def cycle_trials(self):
        return [1 / self.run_steps]

    @cycle_trials.setter
    def cycle_trials(self, trials):
        pass


def test_nothing_is_counted_before_the_first_decision():
    run = _OfNoSteps(CarbonAware(tariff(), max_slowdown=1.1), Clock())
    run.settings = (300, 200)
    following = Following(run.aware, run, IDLE_WATTS, run.time)
    following.count()
    assert following.credit() is None
    assert following.spent.energy_joules == 0
