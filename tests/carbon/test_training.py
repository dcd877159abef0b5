"""Training that follows a tariff or a grid, on simulated GPUs in virtual time."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.variants import long_but_first
from zeus_core.carbon import CarbonAware
from zeus_core.carbon._controller import WorkController
from zeus_core.carbon._credit import RunSpent
from zeus_core.carbon.follower import Follower
from zeus_core.carbon.operating_points import TrainingPoint
from zeus_core.device import SimulatedGpu, SimulatedNoise, Work, find_preset
from zeus_core.electricity import Electricity, RecordedSignal, Signal, WeeklyTariff
from zeus_core.errors import UsageError
from zeus_core.events import Activity, Event, Pause, StepBegin, StepEnd, TrainingHooks
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer.global_setting.search_optimizer import search_record
from zeus_core.optimizer.power_limit import GlobalPowerLimitOptimizer, MaxSlowdownConstraint
from zeus_core.ports import World
from zeus_core.testing import ThreadWorld, VirtualTime
from zeus_core.training import TrainingEnergy

HOUR, DAY = 3600.0, 86_400.0
MIDNIGHT = 1_772_323_200.0
WORK = Work(40.0, 484.9, 0.938, 0.744)  # a long step, so that days pass in a test
STEPS = 2500  # 28 hours at the original limit
TARIFF = WeeklyTariff({"Mon-Sun 20:00-17:00": 0.05, "Mon-Sun 17:00-20:00": 1.0}, "EUR/kWh", "UTC")


class Run:
    """A training on a simulated A100 that begins at midnight, and what it took."""

    def __init__(
        self,
        signal: Signal = TARIFF,
        *,
        grants_control: bool = True,
        world: World | None = None,
        knob: str = "power limit",
        clock_offset: float = 0.0,
        max_steps: int = STEPS,
        work: Work = WORK,
        **options: object,
    ) -> None:
        self.time_source = VirtualTime()
        self.time_source.set_clock(MIDNIGHT + clock_offset)
        self.clock_offset, self.work = clock_offset, work
        self.arguments: dict[str, Any] = {"world": world, "knob": knob, "max_steps": max_steps, "quiet": True}
        self.begun = self.time_source.now()
        noise = SimulatedNoise(0.01, 0.01, 0)
        self.gpu = SimulatedGpu(
            find_preset("A100"),
            0 if world is None else world.rank,
            time_source=self.time_source,
            noise=noise,
            grants_control=grants_control,
        )
        self.monitor = ZeusMonitor(gpus=[self.gpu], time_source=self.time_source)
        self.signal = signal
        self.aware = CarbonAware(signal, **options)  # type: ignore[arg-type]
        self.limits: list[float] = []
        self.pauses: list[int] = []  # the steps before which it paused
        self.amount = self.joules = self.step_joules = self.paused_hours = 0.0
        self.start()

    def start(self, state: object = None) -> None:
        self.optimizer = GlobalPowerLimitOptimizer(
            self.monitor, MaxSlowdownConstraint(1.2), carbon_aware=self.aware, **self.arguments
        )
        self.observer: TrainingHooks = self.optimizer
        if state is not None:
            self.optimizer.load_state_dict(state)

    def now(self) -> float:
        return MIDNIGHT + self.clock_offset + self.time_source.now() - self.begun

    @property
    def spent(self) -> RunSpent:
        follower = self.optimizer._director
        assert isinstance(follower, Follower)
        assert follower.spent is not None
        return follower.spent

    def seconds_at(self, limit_watts: float) -> float:
        return self.gpu.preset.physics.operating_point(self.work, limit_watts).seconds

    def train(self, steps: int = STEPS) -> Run:
        for _ in range(steps):
            begin, joules = self.now(), self.gpu.exact_energy_joules()
            self.observer.on_step_begin()
            waited, waited_joules = self.now() - begin, self.gpu.exact_energy_joules() - joules
            if waited > 10:
                self.pauses.append(len(self.limits))
                self.paused_hours += waited / HOUR
                self._count(begin, waited_joules)
            begin, joules = self.now(), self.gpu.exact_energy_joules()
            self.limits.append(self.gpu.read_power_limit_watts())
            self.gpu.execute(self.work)
            self.step_joules += self.gpu.exact_energy_joules() - joules
            self._count(begin, self.gpu.exact_energy_joules() - joules)
            self.observer.on_step_end()
        return self

    def _count(self, begin: float, joules: float) -> None:
        """Integrate by itself what was emitted or cost."""
        parts = self.signal.parts(begin, self.now())
        self.joules += joules
        self.amount += joules / 3.6e6 * sum(part.value * part.seconds for part in parts) / (self.now() - begin)


def grid() -> RecordedSignal:
    """An hourly intensity that follows the day, known from two weeks before the begin."""
    hours = range(-14 * 24, 8 * 24)
    values = [400 * (1 + 0.8 * math.sin(math.tau * hour / 24)) for hour in hours]
    return RecordedSignal([MIDNIGHT + HOUR * hour for hour in hours], values, "g/kWh")


def test_it_waits_out_the_dear_hours_and_keeps_its_deadline() -> None:
    run = Run(deadline=MIDNIGHT + 2 * DAY).train()
    assert run.now() <= MIDNIGHT + 2 * DAY
    assert run.paused_hours == pytest.approx(3.0, abs=0.1), "from 17:00 to 20:00"
    assert run.spent.amount == pytest.approx(run.amount, rel=0.005)
    assert run.spent.energy_joules == pytest.approx(run.joules, rel=0.005)
    rows = run.optimizer.result()
    assert "EUR" in rows["cost"]
    assert "gained beyond it" in next(text for name, text in rows.items() if "all the time" in name)
    run.optimizer.close()
    assert run.gpu.read_power_limit_watts() == 400
    record = search_record(run.optimizer)
    followed = {change.reason for change in record.changes if "electricity" in change.reason}
    assert followed <= {"the price of electricity is 0.05 EUR/kWh", "the price of electricity is 1 EUR/kWh"}
    assert followed
    assert "by the price of electricity; the original 400 W" in rows["power limit"], "and not by its selector"


def test_its_choices_are_those_of_the_pure_policy() -> None:
    """A new policy, told the same at the same time, chooses the same; and training runs at what was chosen."""
    decisions: list[tuple[list[TrainingPoint], float, float, float, TrainingPoint, int]] = []

    class Watched(WorkController):
        def use_points(self, points: Sequence[TrainingPoint]) -> None:
            self.points = list(points)
            super().use_points(points)

        def use_deadline(self, deadline_seconds: float) -> None:
            self.deadline = deadline_seconds
            super().use_deadline(deadline_seconds)

        def choose(self, now_seconds: float, steps_left: float) -> TrainingPoint:
            point = super().choose(now_seconds, steps_left)
            decisions.append((self.points, self.deadline, now_seconds, steps_left, point, len(run.limits)))
            return point

    run = Run(grid(), max_slowdown=1.5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zeus_core.carbon._following.WorkController", Watched)
        run.train()
    assert len({point.setting for *_, point, _ in decisions}) >= 3, "it paused, and ran at several limits"
    for points, deadline, now, steps_left, point, step in decisions:
        assert WorkController(points, run.signal, deadline).choose(now, steps_left) == point
        if point.setting is not None and step < STEPS:
            assert run.limits[step] == point.setting


@pytest.mark.parametrize("may_pause", long_but_first([True, False]))
def test_without_the_right_to_set_a_limit_it_still_pauses(may_pause: bool) -> None:
    run = Run(grants_control=False, deadline=MIDNIGHT + 2 * DAY, may_pause=may_pause).train()
    assert set(run.limits) == {400}
    assert run.paused_hours == pytest.approx(3.0 if may_pause else 0.0, abs=0.1)


class Events:
    """Keeps what it receives."""

    def __init__(self, received: list[Event]) -> None:
        self.received = received

    def receive(self, event: Event) -> None:
        self.received.append(event)


def test_a_pause_belongs_to_no_step_of_the_energy_account() -> None:
    """Minutes in place of hours: the account reads the counter many times a second."""
    minutes = range(30)
    values = [1.0 if minute == 1 else 0.05 for minute in minutes]
    signal = RecordedSignal([MIDNIGHT + 60 * minute for minute in minutes], values, "EUR/kWh", is_known_ahead=True)
    states: list[dict[str, Any]] = []
    work = Work(1.0, 484.9, 0.938, 0.744)
    run = Run(
        signal,
        max_slowdown=2.0,
        interval_seconds=60.0,
        max_steps=130,
        work=work,
        checkpoint=lambda: states.append(energy.state_dict()),
    )
    energy = TrainingEnergy(optimizer=run.optimizer, electricity=Electricity(price=signal), quiet=True)
    run.observer = energy
    events: list[Event] = []
    energy.add_observer(Events(events))
    energy.on_train_begin(max_steps=130)
    run.train(130)
    energy.on_train_end()
    (paused,) = (number for number, event in enumerate(events) if event == Pause())
    assert events[paused - 1 : paused + 2] == [StepEnd(), Pause(), StepBegin()], "and all observers hear of it"
    assert energy.summary.not_measured is None
    activities = energy.summary.account.activities
    assert run.paused_hours == pytest.approx(1 / 60, rel=0.1)
    assert activities[Activity.IDLE].seconds == pytest.approx(run.paused_hours * HOUR, rel=0.05)
    assert activities[Activity.STEPS].measured.energy_joules == pytest.approx(run.step_joules, rel=0.002)
    (state,) = states
    assert state["search"]["searches"], "a checkpoint before the pause holds the search, though a hook is under way"
    assert energy.overhead_seconds >= 0
    assert energy.summary.cost == pytest.approx(run.amount, rel=0.005)


def test_a_journal_lacks_at_most_a_minute_of_a_killed_pause(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    values = [1.0 if 1 <= minute < 20 else 0.05 for minute in range(60)]
    times = [MIDNIGHT + 60 * minute for minute in range(60)]
    signal = RecordedSignal(times, values, "EUR/kWh", is_known_ahead=True)
    work = Work(1.0, 484.9, 0.938, 0.744)
    run = Run(signal, max_slowdown=12.0, interval_seconds=600.0, max_steps=130, work=work, idle_watts=10.0)
    run.observer = energy = TrainingEnergy(optimizer=run.optimizer, folder=tmp_path, quiet=True)
    energy.on_train_begin(max_steps=130)
    begin = run.gpu.exact_energy_joules()
    sleep = run.time_source.sleep

    def sleep_until_killed(seconds: float) -> None:
        sleep(seconds)
        if seconds == 60.0 and run.now() > MIDNIGHT + 300:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run.time_source, "sleep", sleep_until_killed)
        with pytest.raises(Killed):
            run.train(130)
    truth = run.gpu.exact_energy_joules()
    (journal,) = tmp_path.rglob("rank-0.jsonl")
    entry = json.loads(journal.read_text(encoding="utf-8").splitlines()[-1])
    joules = entry["account"]["total"]["measured"]["energy_joules"]
    idle_watts = run.gpu.preset.physics.blocking_power_watts
    assert truth - begin - 62 * idle_watts <= joules <= truth - begin


def test_a_killed_and_resumed_run_keeps_its_account_and_deadline() -> None:
    run = Run(max_slowdown=1.6).train(1000)
    state = json.loads(json.dumps(run.optimizer.state_dict()))
    amount, joules = run.spent.amount, run.spent.energy_joules
    assert amount > 0
    run.optimizer.close()
    run.time_source.advance(2 * HOUR)
    run.start(state)
    run.optimizer.on_train_begin(max_steps=STEPS - 1000)
    assert run.spent.amount == pytest.approx(amount)
    assert run.spent.energy_joules == pytest.approx(joules)
    run.train(STEPS - 1000)
    assert run.now() <= MIDNIGHT + 1.6 * 1.003 * STEPS * run.seconds_at(400)
    assert run.spent.amount == pytest.approx(run.amount, rel=0.01)


def test_a_damaged_account_in_a_checkpoint_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    run = Run(max_slowdown=1.6).train(600)
    state = {**run.optimizer.state_dict(), "spent": {"amount": "much"}}
    run.start(state)
    run.train(10)
    assert "counted from here on" in caplog.text
    assert run.optimizer.trials, "the search itself is continued"


def test_a_long_pause_ends_the_process_after_a_checkpoint(tmp_path: Path) -> None:
    saved: list[str] = []
    path = tmp_path / "resume.json"
    run = Run(
        deadline=MIDNIGHT + 2 * DAY,
        exit_from_seconds=2 * HOUR,
        resume_path=path,
        checkpoint=lambda: saved.append("checkpoint"),
    )
    with pytest.raises(SystemExit) as ended:
        run.train()
    assert ended.value.code == 75
    assert saved == ["checkpoint"]
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["not_before"] == "2026-03-01T20:00:00+00:00"
    assert document["not_before_seconds"] == MIDNIGHT + 20 * HOUR
    run.optimizer.close()
    assert run.gpu.read_power_limit_watts() == 400


def test_a_checkpoint_that_fails_costs_the_pause_and_no_training(caplog: pytest.LogCaptureFixture) -> None:
    def full_disk() -> None:
        raise OSError("no space left on device")

    run = Run(deadline=MIDNIGHT + 2 * DAY, checkpoint=full_disk).train()
    assert len(run.limits) == STEPS
    assert "no space left on device" in caplog.text
    assert run.gpu.read_power_limit_watts() == 400


@pytest.mark.parametrize("ends", long_but_first([False, True]))
def test_all_ranks_pause_at_the_same_step(tmp_path: Path, ends: bool) -> None:
    """Rank 1 has another idea of the time: rank 0 decides, and each waits as long by its own clock."""

    def rank_main(world: World) -> tuple[list[int], object]:
        run = Run(
            deadline=MIDNIGHT + 2 * DAY,
            world=world,
            clock_offset=5 * HOUR * world.rank,
            exit_from_seconds=2 * HOUR if ends else None,
            resume_path=tmp_path / "resume.json",
        )
        try:
            run.train()
        except SystemExit as ended:
            return run.pauses, ended.code
        finally:
            run.optimizer.close()
            assert run.gpu.read_power_limit_watts() == 400
        return run.pauses, None

    first, second = ThreadWorld.run(2, rank_main, timeout_seconds=60.0)
    assert first == second
    assert first[1] == (75 if ends else None)
    assert ends or len(first[0]) == 3


def test_one_knob_is_followed_and_not_two() -> None:
    with pytest.raises(UsageError, match='carbon_aware follows one knob, and knob is "auto"'):
        Run(max_slowdown=1.5, knob="auto")
    with pytest.raises(UsageError, match="carbon_aware is 'yes'"):
        GlobalPowerLimitOptimizer(ZeusMonitor(gpu_indices=[]), carbon_aware="yes")  # type: ignore[arg-type]
