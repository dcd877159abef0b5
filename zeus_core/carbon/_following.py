"""The decisions of a training that follows the carbon intensity or the price of electricity, and its account."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace

from zeus_core.carbon._controller import WorkController
from zeus_core.carbon._credit import Credit, RunSpent, credit_of
from zeus_core.carbon._decision import DecisionLog, signal_name, time_text
from zeus_core.carbon._terms import Terms
from zeus_core.carbon.operating_points import TrainingPoint
from zeus_core.electricity import ElectricityAccount
from zeus_core.measurement import DeviceEnergy
from zeus_core.optimizer.global_setting.director import Decision, DirectedSearch, DuePause
from zeus_core.ports import TimeSource
from zeus_core.ports.time_source import clock_seconds
from zeus_core.search import Trial
from zeus_core.search.trial import pooled_by_setting

# A block of steps ends near the next decision, not at it. So near it that decision is made, and not one for the rest.
_EARLY_FRACTION = 0.02

# Of what is left. A training that aims at all of it ends some steps too early: settings are chosen for whole hours.
_BUDGET_RESERVE_FRACTION = 0.02

_logger = logging.getLogger(__name__)


class Following:
    """Decides whether training runs hard, softly or not at all, once its search is over. It is on rank 0 alone.

    Args:
        aware: The signal, the deadline and what else the user has said.
        search: The search. It is asked for operating points, and is not changed.
        idle_watts: The power of all devices in a pause; None if it is unknown: there is no pause then.
        time_source: The time, with its date.
        spent: The energy and time that the run took before, if it is resumed.
    """

    def __init__(
        self,
        aware: Terms,
        search: DirectedSearch,
        idle_watts: float | None,
        time_source: TimeSource,
        spent: RunSpent | None = None,
    ) -> None:
        self.spent: RunSpent = RunSpent() if spent is None else spent
        """The energy and time that the run took until the latest `count`."""
        self._search = search
        self._aware = aware
        self._idle_watts = idle_watts if aware.idle_watts is None else aware.idle_watts
        self._time_source = time_source
        self._controller: WorkController | None = None
        self._setting: int | None = None  # decided last
        self._pause_seconds = 0.0  # of this process
        self._first: _Moment | None = None  # decision of this process
        self._latest: _Moment | None = None
        self._log = DecisionLog(aware.signal, search.unit)
        if search.max_steps is None:
            _logger.warning(
                "training does not follow the %s: pass max_steps to the optimizer", signal_name(aware.signal)
            )

    def note_pause(self, seconds: float, energy: DeviceEnergy) -> None:
        """Count the energy of a pause that is over."""
        self._pause_seconds += seconds
        if energy.energy_joules is not None and seconds > 0:
            if self._aware.idle_watts is None:
                self._idle_watts = energy.energy_joules / seconds
            now = clock_seconds(self._time_source)
            self._add(now - seconds, now, energy)
            if self._latest is not None:
                self._latest = replace(self._latest, seconds=now)

    def count(self) -> None:
        """Count what the steps since the latest call emitted or cost: so many times what a measured step does."""
        if self._latest is None or not (measured := self._measured()):
            return
        now, steps = clock_seconds(self._time_source), self._search.run_steps
        usual = measured.get(self._search.present) or next(iter(measured.values()))
        joules = (steps - self._latest.steps) * usual.joules_per_step
        self._add(self._latest.seconds, now, DeviceEnergy(joules, joules * _error_fraction(usual)))
        self._latest = replace(self._latest, seconds=now, steps=steps)

    def decide(self) -> Decision:
        """Decide what to do next, at the end of a block of steps."""
        search, now = self._search, clock_seconds(self._time_source)
        self.count()
        self._latest = _Moment(now, search.run_steps, search.cycle_seconds)
        if self._first is None:
            self._first = self._latest
            if self.spent.begun_seconds is None:
                self.spent = replace(self.spent, begun_seconds=now)
        points = self._points()
        if search.max_steps is None or not search.is_done or not points:
            return Decision()
        controller = self._controller_of(points)
        boundary = controller.next_decision_seconds(now)
        is_near = boundary - now < _EARLY_FRACTION * self._aware.interval_seconds
        at = boundary if is_near else now
        until = controller.next_decision_seconds(at)
        steps_left = max(search.max_steps - search.run_steps, 1)
        left = self._budget_left()
        if left is not None and left <= 0:
            _logger.warning("the budget is spent: training ends here")
            return self._decided(None, 1, self._log.reason(now), DuePause(0.0, None, ends_process=True))
        deadline = self._deadline_of(controller, at, steps_left)
        controller.use_deadline(deadline)
        point = controller.choose(at, steps_left)
        if not controller.schedule.is_possible:
            quickest = max(point.steps_per_second for point in points)
            self._log.warn_late(deadline, at + steps_left / quickest)
        elif left is not None and controller.schedule.amount > left:
            self._log.warn_dear(left, steps_left, f"by {time_text(deadline)}")
        pause, steps = None, 1
        if point.setting is None:
            expected = controller.pause_until_seconds(at)
            pause = DuePause(until - now, expected, expected - now >= self._aware.exit_from_seconds)
        else:
            steps = max(math.ceil((until - now) * point.steps_per_second), 1)
        reason = self._log.reason(at)
        self._log.note(point.setting, pause, reason, self._budget_left())
        return self._decided(point.setting, steps, reason, pause)

    def _decided(self, setting: int | None, steps: int, reason: str, pause: DuePause | None) -> Decision:
        """Return a decision, which keeps the present setting in a pause."""
        search = self._search
        if setting is None:
            setting = self._setting
        if setting is None or not search.settings[-1] <= setting <= search.settings[0]:
            setting = search.choice
        self._setting = setting
        return Decision(setting, steps, reason, pause)

    def credit(self) -> Credit | None:
        """Return what the run emitted or cost so far, beside what it would have; None before enough is known."""
        if self._latest is None or self._latest.steps == 0 or (trial := self._search.original_trial) is None:
            return None
        points = {point.setting: point for point in self._points()}
        points.pop(trial.setting, None)
        original = self._point(trial)
        errors = {setting: _error_fraction(trial) for setting, trial in self._measured().items()}
        others = [*points.values(), *self._predicted(original, errors)]
        run = self._latest.steps, self._latest.seconds
        return credit_of(self.spent, original, others, errors, self._aware.signal, *run, self._search.unit)

    def _controller_of(self, points: list[TrainingPoint]) -> WorkController:
        aware = self._aware
        points = list(points)
        if aware.may_pause and self._idle_watts is not None:
            points.append(TrainingPoint.pause(self._idle_watts))
        if self._controller is None:
            self._controller = WorkController(
                points, aware.signal, clock_seconds(self._time_source), aware.interval_seconds
            )
        self._controller.use_points(points)
        return self._controller

    def _budget_left(self) -> float | None:
        """Return what is surely left of the budget; None if there is none."""
        if self._aware.budget is None:
            return None
        return self._aware.budget - self.spent.amount - self.spent.uncertainty

    def _deadline_of(self, controller: WorkController, now: float, steps_left: int) -> float:
        """Return the deadline; without one, the soonest that the budget allows."""
        deadline, left = self._own_deadline_seconds(), self._budget_left()
        if deadline is not None:
            return deadline
        assert left is not None
        soonest = controller.soonest_deadline_seconds(now, steps_left, (1 - _BUDGET_RESERVE_FRACTION) * left)
        if soonest is None:
            self._log.warn_dear(left, steps_left, "within 30 days")
        return now + 30 * 86_400.0 if soonest is None else soonest

    def _own_deadline_seconds(self) -> float | None:
        aware = self._aware
        if aware.deadline_seconds is not None:
            return aware.deadline_seconds
        if aware.max_slowdown is None:
            return None
        assert self.spent.begun_seconds is not None
        assert self._search.max_steps is not None
        original = self._search.original_trial or next(iter(self._measured().values()))
        seconds = self._search.max_steps * self._lag() * original.seconds_per_step
        return self.spent.begun_seconds + aware.max_slowdown * seconds

    def _measured(self) -> dict[int, Trial]:
        """Return all that was measured, by setting."""
        return pooled_by_setting(self._search.cycle_trials)

    def _points(self) -> list[TrainingPoint]:
        """Return what was measured, as fast as training is with all that happens between its steps."""
        settings = self._search.settings
        return [self._point(one) for one in self._measured().values() if settings[-1] <= one.setting <= settings[0]]

    def _point(self, trial: Trial) -> TrainingPoint:
        point, lag = TrainingPoint.from_trial(trial), self._lag()
        return TrainingPoint(trial.setting, point.steps_per_second / lag, point.power_watts / lag)

    def _predicted(self, original: TrainingPoint, errors: dict[int, float]) -> list[TrainingPoint]:
        """Return what settings between those that were measured would do; add how far the energy can be off."""
        lowest = min(errors)
        points = []
        for setting in self._search.settings:
            prediction = self._search.predicted(setting) if setting > lowest and setting not in errors else None
            if prediction is not None:
                speed = original.steps_per_second / prediction.slowdown_factor
                watts = original.power_watts * (1 - prediction.saving_fraction) / prediction.slowdown_factor
                points.append(TrainingPoint(setting, speed, watts))
                low, high = prediction.saving_interval
                errors[setting] = (high - low) / 2 / (1 - prediction.saving_fraction)
        return points

    def _lag(self) -> float:
        """Return how much more time passes than the steps take: evaluations and checkpoints are no steps."""
        if self._first is None or self._latest is None:
            return 1.0
        training = self._latest.run_seconds - self._first.run_seconds
        seconds = self._latest.seconds - self._first.seconds - self._pause_seconds
        return max(seconds / training, 1.0) if training > 0 else 1.0

    def _add(self, begin_seconds: float, end_seconds: float, energy: DeviceEnergy) -> None:
        """Count an energy that is evenly spread: steps are alike, and a pause has no others."""
        account = ElectricityAccount([self._aware.signal])
        joules, uncertainty = energy.energy_joules or 0.0, energy.uncertainty_joules or 0.0
        for part in self._aware.signal.parts(begin_seconds, max(begin_seconds, end_seconds)):
            share = part.seconds / (end_seconds - begin_seconds) if end_seconds > begin_seconds else 1.0
            account.add(part.begin_seconds, part.end_seconds, DeviceEnergy(share * joules, share * uncertainty))
        (amount,) = account.amounts.values()
        self.spent = replace(
            self.spent,
            energy_joules=self.spent.energy_joules + joules,
            amount=self.spent.amount + (amount.amount or 0.0),
            uncertainty=self.spent.uncertainty + (amount.uncertainty or 0.0),
        )


def _error_fraction(trial: Trial) -> float:
    """Return how far the energy of some steps can be off, as a fraction of it."""
    joules = trial.measurement.total_energy or 0.0
    return (trial.measurement.total_uncertainty_joules or 0.0) / joules if joules > 0 else 0.0


@dataclass(frozen=True)
class _Moment:
    """A point in a run: the time since 1970, the steps so far, and the time these took."""

    seconds: float
    steps: int
    run_seconds: float
