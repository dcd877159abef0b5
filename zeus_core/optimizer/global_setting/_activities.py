"""A setting for each activity: its visits are measured on each rank, and rank 0 orders their settings with the steps'.

A visit begins and ends where the loop says so, and no rank waits for another one there. What the ranks have measured of
the activities is exchanged at the end of a block of steps, where they meet in any case; it ends early if that of an
activity is over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from zeus_core.events import Activity, Event, PassBegin, PassEnd, Pause, Resume, StepBegin, StepEnd
from zeus_core.measurement import DeviceEnergy, Measurement
from zeus_core.optimizer.activity_limiter import ActivityLimiter
from zeus_core.optimizer.global_setting._measuring import TrialRecorder
from zeus_core.optimizer.global_setting._orders import Order, Orders
from zeus_core.optimizer.global_setting._setting_search import CHECKED_STEPS, SettingSearch
from zeus_core.optimizer.global_setting._trials import MeasuredBlocks, TrialPart, trial_from_parts
from zeus_core.optimizer.global_setting.phases import Outcome, Phase
from zeus_core.optimizer.trial_store import MeasuredBlock
from zeus_core.search.run.activities_search import STEPS
from zeus_core.search.run.run_search import RunSearch
from zeus_core.search.run.safe_clock import SafeClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeus_core.search.run.activities_search import ActivitiesRunSearch

FOLLOWS = -1
"""The order for an activity that has the setting of the steps."""

MOST_ACTIVITIES = 32
"""Activities with a setting of their own; those beyond have that of the steps."""

_MIN_VISIT_LATENCIES = 20  # of a visit with a setting of its own, as in `activities_search`
_MAX_LATE_SHARE = 0.1  # of a visit at the setting before; one that was later tells little of its own
_MAX_DEPTH = 64  # of activities within activities
_MAX_BLOCK_VISITS = 4096  # that are measured: the readings of more would fill the memory
_FIRST_VISITS = 5  # in the first block of an activity, which rank 0 has not ordered
_MIN_STEPS = 4  # of a block that ends as that of an activity is over

# They have no setting of their own: the GPU computes nothing, or something that nobody has announced.
_OTHERS = frozenset({"steps", "idle", "between_steps", "checkpoint", "waiting"})


@dataclass(frozen=True)
class VisitsPart:
    """What one rank has measured of an activity.

    Attributes:
        setting: The setting of the measured visits.
        part: The measured visits since the last time.
        visits: All visits of the run so far.
    """

    setting: int
    part: TrialPart
    visits: int


@dataclass(frozen=True)
class LateSeconds:
    """The time that settings came late on one rank, since the last time.

    Attributes:
        seconds: How much longer steps and visits took by the settings before.
        latency: Of a change of the setting.
    """

    seconds: float
    latency: float


class Visits:
    """The activity under way, and the visits of all of them, on this rank.

    Args:
        steps: Measures the steps.
    """

    def __init__(self, steps: TrialRecorder) -> None:
        self._steps = steps
        self._limiter: ActivityLimiter | None = None
        self._under_way: list[ActivityVisits | None] = []  # none for what has no setting of its own
        self._is_in_step = False
        self.activities: dict[str, ActivityVisits] = {}
        """Those that were visited, by name, in this order."""
        self.late_seconds: float = 0.0
        """How much longer steps and visits took by the settings before, since `take_late_seconds`."""

    def begin(self, limiter: ActivityLimiter) -> None:
        """Begin a training."""
        self._limiter, self._under_way, self.activities, self.late_seconds = limiter, [], {}, 0.0

    def receive(self, event: Event) -> None:
        """Follow an event: activities begin and end."""
        limiter = self._limiter
        if limiter is None or limiter.is_over:
            return
        match event:
            case Pause() | PassBegin():
                self._enter(limiter, event.activity, isinstance(event, PassBegin))
            case Resume() | PassEnd():
                if self._under_way:
                    self._leave(limiter)
            case _:
                while self._under_way:
                    self._leave(limiter)
                if type(event) is StepEnd:
                    self._leave_out(limiter, self._steps, is_last=False)
                self._is_in_step = type(event) is StepBegin

    def take_late_seconds(self) -> float:
        """Return `late_seconds`, and begin to count anew."""
        seconds, self.late_seconds = self.late_seconds, 0.0
        return seconds

    def _enter(self, limiter: ActivityLimiter, activity: Activity, is_pass: bool) -> None:
        name = str(getattr(activity, "value", activity))
        is_part = name in _OTHERS or (is_pass and (self._under_way or not self._is_in_step))
        visits = None if is_part or len(self._under_way) >= _MAX_DEPTH else self._visits_of(name, limiter)
        self._under_way.append(visits)
        if visits is None:
            return
        outer = self._innermost(len(self._under_way) - 1)
        recorder = self._steps if outer is None else outer.recorder
        self._leave_out(limiter, recorder, is_last=True)
        recorder.interrupt()
        is_at_order = limiter.begin_stay(visits.order)
        visits.begin(limiter.requested, is_at_order)

    def _leave(self, limiter: ActivityLimiter) -> None:
        visits = self._under_way.pop()
        if visits is None:
            return
        late_seconds = self._leave_out(limiter, visits.recorder, is_last=True)
        visits.end(late_seconds)
        if not visits.is_ordered:
            visits.follow_if_short(_MIN_VISIT_LATENCIES * limiter.latency_seconds)
        outer = self._innermost(len(self._under_way))
        (self._steps if outer is None else outer.recorder).resume()
        limiter.begin_stay(None if outer is None else outer.order)

    def _innermost(self, place: int) -> ActivityVisits | None:
        """Return the activity under way, of the first ones; None for the steps."""
        return next((one for one in reversed(self._under_way[:place]) if one is not None), None)

    def _leave_out(self, limiter: ActivityLimiter, recorder: TrialRecorder, is_last: bool) -> float:
        """Charge the time at the setting before to no step or visit, as far as it made it longer. Returns that time."""
        late_seconds = limiter.late_seconds(is_last=is_last)
        if late_seconds > 0:
            excess = limiter.excess_seconds(late_seconds)
            recorder.leave_out(excess)
            self.late_seconds += excess
        return late_seconds

    def _visits_of(self, name: str, limiter: ActivityLimiter) -> ActivityVisits | None:
        visits = self.activities.get(name)
        if visits is None and len(self.activities) < MOST_ACTIVITIES:
            visits = self.activities[name] = ActivityVisits(self._steps.beside(), limiter.settings[0])
        return visits


class ActivityVisits:
    """The visits of one activity on this rank.

    Args:
        recorder: Measures them.
        original: The original setting, at which it is measured first.
    """

    def __init__(self, recorder: TrialRecorder, original: int) -> None:
        self.recorder: TrialRecorder = recorder
        """Measures them."""
        self.order: int | None = original
        """The setting of the visits to come; None for that of the steps."""
        self.is_ordered: bool = False
        """Whether rank 0 has ordered it."""
        self.visits: int = 0
        """All visits of the run so far."""
        self.measured: int = 0
        """Those of the block under way."""
        self._is_measured = False  # the visit under way
        self._setting = original
        self._begin_block()

    def _begin_block(self) -> None:
        self.measured, self._block_began = 0, self.recorder.run_seconds
        self.recorder.begin_trial(1)

    def begin(self, setting: int, is_at_order: bool) -> None:
        """Begin a visit at a setting, which is that of the order, if it could be requested."""
        if self.order is None and setting != self._setting:
            self._setting = setting
            self._begin_block()
        self._is_measured = is_at_order and self.measured < _MAX_BLOCK_VISITS
        self.recorder.begin_step()
        if self._is_measured:
            self.recorder.open_segment()

    def end(self, late_seconds: float) -> None:
        """End it."""
        recorder = self.recorder
        self.visits += 1
        before = recorder.run_seconds
        if not self._is_measured:
            recorder.end_step()
        else:
            recorder.end_measured_step()
            if late_seconds <= _MAX_LATE_SHARE * (recorder.run_seconds - before):
                recorder.close_segment()
                self.measured += 1
            else:
                recorder.drop_segment()
        recorder.pause()

    def follow_if_short(self, seconds: float) -> None:
        """Take the setting of the steps, until there is an order, if a visit is shorter than that."""
        if self.recorder.run_seconds < seconds * self.visits:
            self.order = None

    @property
    def block_seconds(self) -> float:
        """The time of the visits since the block began, also of those that were not measured."""
        return self.recorder.run_seconds - self._block_began

    def take_order(self, setting: int) -> None:
        """Follow an order from the next visit on."""
        self.is_ordered = True
        order = None if setting == FOLLOWS else setting
        if order != self.order:
            self.order = order
            self._begin_block()
        if order is not None:
            self._setting = order

    def take_part(self) -> VisitsPart | None:
        """Return what was measured since the last time; None without a whole visit."""
        if not self.measured:
            return None
        part = self.recorder.finish_trial()
        self._begin_block()
        return VisitsPart(self._setting, part, self.visits) if part.measurement is not None else None


class ActivityOrders(Orders):
    """`Orders` that hold the settings of all activities."""

    @cached_property
    def group(self) -> ActivitiesRunSearch:
        """The searches of all activities."""
        return self._arguments.activities_search(self._settings)

    @cached_property
    def _search(self) -> RunSearch:
        steps = self.group.of(STEPS)
        bound = self._arguments.safe_bound
        return steps if bound is None else _SafeWhileAlone(self, steps, self._settings, *bound)

    @cached_property
    def activities(self) -> list[str]:
        """The activities that were reported."""
        return []

    def tell_visits(self, name: str, block: MeasuredBlock) -> None:
        """Report a block of visits of an activity."""
        self.group.of(name).tell(block.trial, block.run_steps, block.run_seconds)
        if name not in self.activities:
            self.activities.append(name)

    def may_visit(self, name: str, visits: int, seconds: float) -> bool:
        """Return whether the block of an activity may go on; see `RunSearch.may_continue`."""
        return name not in self.activities or self.group.of(name).may_continue(visits, seconds)

    def next(self, run_steps: int, run_seconds: float) -> Order:
        """Return what to do next, also in visits of activities."""
        order = super().next(run_steps, run_seconds)
        following = self.group.following
        blocks = {name: self.group.of(name).ask() for name in self.activities}
        return replace(
            order,
            visits={name: -block.steps if block.is_choice else block.steps for name, block in blocks.items()},
            settings={name: FOLLOWS if name in following else block.setting for name, block in blocks.items()},
        )


class _SafeWhileAlone(SafeClock):
    """A `SafeClock` as long as steps are the only activity: of several, none may use the whole bound."""

    def __init__(self, orders: ActivityOrders, search: RunSearch, settings: Sequence[int], *bound: float) -> None:
        super().__init__(search, settings, *bound)
        self._orders = orders

    @property
    def safe_mhz(self) -> int | None:
        return None if self._orders.activities else super().safe_mhz

    @property
    def level_mhz(self) -> int | None:
        return None if self._orders.activities else super().level_mhz


class ActivitySearch(SettingSearch):
    """A `SettingSearch` of a training whose activities have settings of their own.

    Args:
        visits: The visits on this rank.
        arguments: Those of a `SettingSearch`.
    """

    make_orders = ActivityOrders
    limiter: ActivityLimiter
    _orders: ActivityOrders

    def __init__(self, visits: Visits, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.visits: Visits = visits
        """The visits on this rank."""
        self.of_activities: dict[str, MeasuredBlocks] = {}
        """All that was measured of the visits of each activity."""
        self._ended: Mapping[str, MeasuredBlock] = {}  # to be reported
        self._late: Sequence[LateSeconds] = ()
        visits.begin(self.limiter)

    def is_to_end_early(self, phase: Phase, steps_left: int) -> bool:
        """See `SettingSearch`. A block ends, too, if that of an activity is over, or may not go on."""
        if super().is_to_end_early(phase, steps_left):
            return True
        order, least_steps = self.order, max(self.order.least_steps, _MIN_STEPS)
        measured = order.steps - steps_left
        if self.block.steps not in CHECKED_STEPS or measured < (least_steps if order.is_choice else order.steps / 2):
            return False
        is_over = partial(_due, orders=order.visits, with_choices=False)
        return self._exchange.longest(lambda: float(bool(is_over([self._measured()]))), phase) > 0

    def conclude(self) -> Outcome | None:
        """See `SettingSearch`. The blocks of activities that are over end before."""
        phase, exchange, orders = Phase.CONCLUDE, self._exchange, self.order.visits
        conclude = partial(_due, orders=orders, with_choices=True)
        due = exchange.conclude_of(dict[str, int], self._measured, list[str], conclude, phase)
        ended = exchange.conclude_of(
            dict[str, VisitsPart], lambda: self._parts(due), dict[str, MeasuredBlock], _blocks, phase
        )
        late = LateSeconds(self.visits.take_late_seconds(), self.limiter.latency_seconds)
        self._late = exchange.gather_of(LateSeconds, lambda: late, phase)
        for name, block in ended.items():
            measured = self.of_activities.setdefault(name, MeasuredBlocks((), self.original))
            if self.chosen_of(name) == block.trial.setting:
                measured.add_confirmation(block, is_fixed=False)
            else:
                measured.add_trial(block)
        self._ended = ended
        return super().conclude()

    def chosen_of(self, name: str) -> int | None:
        """Return the setting that the visits of an activity continue at; None before it was chosen."""
        setting = self.order.settings.get(name)
        if setting is None or self.order.visits[name] > 0:
            return None
        return self.choice if setting == FOLLOWS else setting

    def _measured(self) -> dict[str, int]:
        """Return the visits of the blocks under way on this rank; as many as needed, for one that may not go on."""
        measured = {name: one.measured for name, one in self.visits.activities.items() if one.measured}
        if self._exchange.rank == 0:
            for name, one in self.visits.activities.items():
                visits = abs(self.order.visits.get(name, 0))
                if visits and not self._orders.may_visit(name, one.measured, one.block_seconds):
                    measured[name] = visits
        return measured

    def _parts(self, due: Sequence[str]) -> dict[str, VisitsPart]:
        activities = self.visits.activities
        parts = {name: activities[name].take_part() for name in due if name in activities}
        return {name: part for name, part in parts.items() if part is not None}

    def _ask(self, phase: Phase, tell: Callable[[], object] = lambda: None) -> Outcome | None:
        def tell_all() -> None:
            group = self._orders.group
            group.at_step(self.run.steps)
            if self._late:
                group.switch_seconds = max(one.latency for one in self._late)
                group.add_late(max(one.seconds for one in self._late))
            for name, block in self._ended.items():
                self._orders.tell_visits(name, block)
            tell()

        outcome = super()._ask(phase, tell_all)
        self._ended, self._late = {}, ()
        for name, setting in self.order.settings.items():
            if name in self.visits.activities:
                self.visits.activities[name].take_order(setting)
        return outcome


def _due(ranks: Sequence[Mapping[str, int]], orders: Mapping[str, int], with_choices: bool) -> list[str]:
    """Return the activities whose block is over on a rank, by the visits that were measured on each.

    Args:
        ranks: The measured visits of each rank, by activity.
        orders: See `Order.visits`.
        with_choices: Whether a block at a choice is over after any visit: it ends with that of the steps.
    """
    due = []
    for name in dict.fromkeys(name for measured in ranks for name in measured):
        ordered = orders.get(name, _FIRST_VISITS)
        enough = 1 if with_choices and ordered < 0 else abs(ordered)
        if max(measured.get(name, 0) for measured in ranks) >= enough:
            due.append(name)
    return due


def _blocks(ranks: Sequence[Mapping[str, VisitsPart]]) -> dict[str, MeasuredBlock]:
    """Return the blocks of activities from the parts of the ranks that have visited them.

    A visit lasts as long as on the slowest of them, and takes the energy of all of them.
    """
    blocks = {}
    for name in dict.fromkeys(name for parts in ranks for name in parts):
        parts = [one[name] for one in ranks if name in one]
        steps = max(one.part.steps for one in parts)
        trial = trial_from_parts(parts[0].setting, [_for_visits(one.part, steps) for one in parts])
        if trial is not None:
            seconds = max(one.part.run_seconds for one in parts)
            blocks[name] = MeasuredBlock(trial, max(one.visits for one in parts), seconds)
    return blocks


def _for_visits(part: TrialPart, steps: int) -> TrialPart:
    """Return a part as if it were of so many visits. The errors of visits are independent of each other.

    The energy of each is uncertain by where its ends lie between two updates of a counter.
    """
    measurement, times = part.measurement, steps / max(part.steps, 1)
    if measurement is None:
        return part
    devices = {
        device: DeviceEnergy.lost(energy.lost_because or "")
        if energy.energy_joules is None or energy.uncertainty_joules is None
        else DeviceEnergy(
            times * energy.energy_joules,
            times * energy.uncertainty_joules / math.sqrt(part.steps),
            energy.method,
        )
        for device, energy in measurement.devices.items()
    }
    return replace(part, steps=steps, measurement=Measurement(times * measurement.time, devices))
