"""A search within a run whose choice follows the carbon intensity or the price of electricity."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from zeus_core.adapters._result import amount_text
from zeus_core.electricity import ElectricityAccount
from zeus_core.measurement import DeviceEnergy
from zeus_core.optimizer._global_setting._pause import Pause
from zeus_core.optimizer._trial_store import RunSpent
from zeus_core.optimizer.carbon_aware._carbon_aware import CarbonAware
from zeus_core.optimizer.carbon_aware._controller import WorkController
from zeus_core.optimizer.carbon_aware._credit import Credit, credit_of
from zeus_core.optimizer.carbon_aware._operating_points import OperatingPoint
from zeus_core.search._run_plan import Prediction, SearchCost
from zeus_core.search._run_search import Block, RunSearch
from zeus_core.search._trial import Trial

__all__ = ["AwareSearch"]

# A block of steps ends near the next decision, not at it. So near it that decision is made, and not one for the rest.
_EARLY_FRACTION = 0.02

# Of what is left. A training that aims at all of it ends some steps too early: settings are chosen for whole hours.
_BUDGET_RESERVE_FRACTION = 0.02

_logger = logging.getLogger(__name__)


class AwareSearch:
    """A `RunSearch` that leaves the trials to another one, and then has training run hard, softly or not at all.

    Args:
        search: Makes the trials.
        aware: The signal, the deadline and what else the user has said.
        settings: The settings that may be chosen, the original one first.
        max_steps: The steps of the run; None if nobody knows, which leaves the choice to `search`.
        idle_watts: The power of all devices in a pause; None if it is unknown: there is no pause then.
        now: Tells the date and time, in seconds since 1970 (Unix time).
        unit: The unit of the settings, such as "W".
        spent: The energy and time that the run took before, if it is resumed.
    """

    def __init__(
        self,
        search: RunSearch,
        aware: CarbonAware,
        settings: Sequence[int],
        max_steps: int | None,
        idle_watts: float | None,
        now: Callable[[], float],
        unit: str,
        spent: RunSpent | None = None,
    ) -> None:
        self.spent: RunSpent = RunSpent() if spent is None else spent
        """The energy and time that the run took so far."""
        self.pause: Pause | None = None
        """The pause before the block asked for; None for none."""
        self.reason: str | None = None
        """The reason for the setting asked for, once training follows the signal; None before."""
        self._search = search
        self._aware = aware
        self._settings = settings
        self._max_steps = max_steps
        self._idle_watts = idle_watts if aware.idle_watts is None else aware.idle_watts
        self._now, self._unit = now, unit
        self._measured: dict[int, _Sum] = {}
        self._controller: WorkController | None = None
        self._block: Block | None = None  # once the search is over
        self._pause_seconds = 0.0  # of this process
        self._first: _Moment | None = None  # plan of this process
        self._latest: _Moment | None = None
        self._present = settings[0]  # the setting of the block asked for
        self._told_of = ""
        self._has_warned = self._has_warned_of_budget = False
        if max_steps is None:
            _logger.warning("training does not follow the %s: pass max_steps to the optimizer", self._what)

    def use_search(self, search: RunSearch, settings: Sequence[int]) -> None:
        """Take another search, and other settings: not all may be set here."""
        self._search, self._settings, self._block = search, settings, None

    def ask(self) -> Block:
        """Return what to run next. It changes with `plan`."""
        block = self._search.ask() if self._block is None else self._block
        self._present = block.setting
        return block

    def may_continue(self, steps: int, seconds: float) -> bool:
        """Return whether the block may go on; see `RunSearch.may_continue`. Later ones end by their length."""
        return self._block is not None or self._search.may_continue(steps, seconds)

    def tell(self, trial: Trial, run_steps: int, run_seconds: float) -> None:
        """Take in a block; see `RunSearch.tell`."""
        self._measured.setdefault(trial.setting, _Sum()).add(trial)
        if self._block is None:
            self._search.tell(trial, run_steps, run_seconds)

    def tell_pause(self, seconds: float, energy: DeviceEnergy) -> None:
        """Take in the energy of a pause that is over."""
        self._pause_seconds += seconds
        if energy.energy_joules is not None and seconds > 0:
            if self._aware.idle_watts is None:
                self._idle_watts = energy.energy_joules / seconds
            now = self._now()
            self._add(now - seconds, now, energy)
            if self._latest is not None:
                self._latest = replace(self._latest, seconds=now)

    def count(self, run_steps: int) -> None:
        """Count what the steps since the latest call emitted or cost: so many times what a measured step does."""
        if self._latest is None or not self._measured:
            return
        now = self._now()
        measured = self._measured.get(self._present) or next(iter(self._measured.values()))
        joules = (run_steps - self._latest.steps) * measured.joules_per_step
        self._add(self._latest.seconds, now, DeviceEnergy(joules, joules * measured.error_fraction))
        self._latest = replace(self._latest, seconds=now, steps=run_steps)

    def plan(self, run_steps: int, run_seconds: float) -> None:
        """Decide what to run next, so many steps into the run, which took so long without pauses."""
        now = self._now()
        self.count(run_steps)
        self._latest = _Moment(now, run_steps, run_seconds)
        self.pause = None
        if self._first is None:
            self._first = self._latest
            if self.spent.begun_seconds is None:
                self.spent = replace(self.spent, begun_seconds=now)
        points = self._points()
        if self._max_steps is None or (self._block is None and not self._search.is_done) or not points:
            return
        controller = self._controller_of(points)
        boundary = controller.next_decision_seconds(now)
        is_near = boundary - now < _EARLY_FRACTION * self._aware.interval_seconds
        at = boundary if is_near else now
        until = controller.next_decision_seconds(at)
        steps_left = max(self._max_steps - run_steps, 1)
        left = self._budget_left()
        if left is not None and left <= 0:
            self._end_for_good()
            return
        deadline = self._deadline_of(controller, at, steps_left)
        controller.use_deadline(deadline)
        point = controller.choose(at, steps_left)
        if not controller.schedule.is_possible:
            self._warn_late(at, deadline, steps_left, points)
        elif left is not None and controller.schedule.amount > left:
            self._warn_dear(left, steps_left, f"by {_time_text(deadline)}")
        if point.setting is None:
            expected = controller.pause_until_seconds(at)
            self.pause = Pause(until - now, expected, expected - now >= self._aware.exit_from_seconds)
            self._block = Block(self.ask().setting, 1, is_choice=True)
        else:
            steps = max(math.ceil((until - now) * point.steps_per_second), 1)
            self._block = Block(point.setting, steps, is_choice=True)
        self._tell_of(point, at)

    @property
    def is_done(self) -> bool:
        """Whether no other trial is planned."""
        return self._block is not None or self._search.is_done

    @property
    def choice(self) -> int | None:
        """The setting that training would continue at now."""
        return self._search.choice if self._block is None else self._block.setting

    @property
    def cost(self) -> SearchCost | None:
        """The cost of the search; see `RunSearch.cost`."""
        return self._search.cost

    @property
    def stepped_aside(self) -> str | None:
        """The reason that the run stays at its original setting; None if it need not."""
        return self._search.stepped_aside if self._block is None else None

    def prediction(self, setting: int | None = None) -> Prediction | None:
        """Predict what a setting would do; see `RunSearch.prediction`."""
        return self._search.prediction(self.choice if setting is None else setting)

    def credit(self) -> Credit | None:
        """Return what the run emitted or cost so far, beside what it would have; None before enough is known."""
        points = {point.setting: point for point in self._points()}
        original = points.pop(self._settings[0], None)
        if self._latest is None or original is None or self._latest.steps == 0:
            return None
        errors = {setting: measured.error_fraction for setting, measured in self._measured.items()}
        others = [*points.values(), *self._predicted(original, errors)]
        run = self._latest.steps, self._latest.seconds
        return credit_of(self.spent, original, others, errors, self._aware.signal, *run, self._unit)

    @property
    def _what(self) -> str:
        return "price of electricity" if self._aware.signal.facts.is_price else "carbon intensity of electricity"

    def _controller_of(self, points: list[OperatingPoint]) -> WorkController:
        aware = self._aware
        points = list(points)
        if aware.may_pause and self._idle_watts is not None:
            points.append(OperatingPoint.pause(self._idle_watts))
        if self._controller is None:
            self._controller = WorkController(points, aware.signal, self._now(), aware.interval_seconds)
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
            self._warn_dear(left, steps_left, "within 30 days")
        return now + 30 * 86_400.0 if soonest is None else soonest

    def _own_deadline_seconds(self) -> float | None:
        aware = self._aware
        if aware.deadline_seconds is not None:
            return aware.deadline_seconds
        if aware.max_slowdown is None:
            return None
        assert self.spent.begun_seconds is not None
        assert self._max_steps is not None
        original = self._measured.get(self._settings[0]) or next(iter(self._measured.values()))
        return self.spent.begun_seconds + aware.max_slowdown * self._max_steps * self._lag() * original.seconds_per_step

    def _points(self) -> list[OperatingPoint]:
        """Return what was measured, as fast as training is with all that happens between its steps."""
        lag = self._lag()
        return [
            OperatingPoint(setting, 1.0 / (lag * measured.seconds_per_step), measured.watts / lag)
            for setting, measured in self._measured.items()
            if self._settings[-1] <= setting <= self._settings[0]
        ]

    def _predicted(self, original: OperatingPoint, errors: dict[int, float]) -> list[OperatingPoint]:
        """Return what settings between those that were measured would do; add how far the energy can be off."""
        lowest = min(self._measured)
        points = []
        for setting in self._settings:
            prediction = self._search.prediction(setting) if setting > lowest else None
            if prediction is not None and setting not in self._measured:
                speed = original.steps_per_second / prediction.slowdown_factor
                watts = original.power_watts * (1 - prediction.saving_fraction) / prediction.slowdown_factor
                points.append(OperatingPoint(setting, speed, watts))
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

    def _end_for_good(self) -> None:
        _logger.warning("the budget is spent: training ends here")
        self.pause = Pause(0.0, None, ends_process=True)
        self._block = Block(self.ask().setting, 1, is_choice=True)

    def _warn_dear(self, left: float, steps_left: int, until: str) -> None:
        if not self._has_warned_of_budget:
            self._has_warned_of_budget = True
            _logger.warning(
                "the budget cannot be kept: %s of it is left, too little for the %d steps left %s; training ends "
                "when it is spent",
                amount_text(left, 0.0, self._aware.signal.facts.amount_unit),
                steps_left,
                until,
            )

    def _warn_late(self, now: float, deadline: float, steps_left: int, points: Sequence[OperatingPoint]) -> None:
        if not self._has_warned:
            self._has_warned = True
            earliest = now + steps_left / max(point.steps_per_second for point in points)
            _logger.warning(
                "the deadline, %s, cannot be kept: at full speed training ends %s, and it runs so",
                _time_text(deadline),
                _time_text(earliest),
            )

    def _tell_of(self, point: OperatingPoint, now: float) -> None:
        if self.pause is None or self.pause.until_seconds is None:
            text = f"training runs at {point.setting} {self._unit}"
        elif self.pause.ends_process:
            text = f"training ends, to go on at {_time_text(self.pause.until_seconds)}"
        else:
            text = f"training pauses, as far as can be told until {_time_text(self.pause.until_seconds)}"
        (part,) = self._aware.signal.parts(now, now)
        facts = self._aware.signal.facts
        self.reason = f"the {self._what} is {part.value:.4g} {facts.unit}"
        if text != self._told_of:
            self._told_of = text
            left = self._budget_left()
            rest = "" if left is None else f"; of the budget {amount_text(left, 0.0, facts.amount_unit)} is left"
            _logger.info("%s: %s%s", text, self.reason, rest)


@dataclass(frozen=True)
class _Moment:
    """A point in a run: the time since 1970, the steps so far, and the time these took."""

    seconds: float
    steps: int
    run_seconds: float


@dataclass
class _Sum:
    """The steps that were measured at one setting."""

    steps: int = 0
    seconds: float = 0.0
    joules: float = 0.0
    uncertain_joules: float = 0.0

    def add(self, trial: Trial) -> None:
        self.steps += trial.steps
        self.seconds += trial.measurement.time
        self.joules += trial.measurement.total_energy or 0.0
        self.uncertain_joules += trial.measurement.total_uncertainty_joules or 0.0

    @property
    def seconds_per_step(self) -> float:
        return self.seconds / self.steps

    @property
    def joules_per_step(self) -> float:
        return self.joules / self.steps

    @property
    def error_fraction(self) -> float:
        return self.uncertain_joules / self.joules if self.joules > 0 else 0.0

    @property
    def watts(self) -> float:
        return self.joules / self.seconds


def _time_text(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M} UTC"
