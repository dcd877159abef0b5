"""A setting for each activity: its visits are measured on each rank, and rank 0 orders their settings with the steps'.

A visit begins and ends where the loop says so, and no rank waits for another one there. At the end of a block of steps,
where they meet in any case, ranks exchange the blocks of visits. It ends early if that of an activity is over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from zeus_core.activities.activities_search import STEPS
from zeus_core.activities.activity_limiter import ActivityLimiter
from zeus_core.activities.activity_orders import ActivityOrder, ActivityOrders
from zeus_core.activities.activity_parts import ActivityPart, ActivityResult
from zeus_core.activities.activity_visits import FOLLOWS, WAITING, RankActivities
from zeus_core.activities.visits_of_ranks import VisitsPart, due_of
from zeus_core.codec import encode
from zeus_core.measurement import Measurement
from zeus_core.optimizer.global_setting.orders import Order, Orders
from zeus_core.optimizer.global_setting.phases import Phase, PhaseEnd
from zeus_core.optimizer.global_setting.setting_search import CHECKED_STEPS, SettingSearch
from zeus_core.optimizer.global_setting.trials import SearchBlocks, trial_from_parts
from zeus_core.optimizer.search_state import MeasuredBlock, SearchState, parts_from_state
from zeus_core.optimizer.trial_store import Conditions
from zeus_core.search import Trial
from zeus_core.search.comparison import percentage
from zeus_core.search.trial import pooled_trial
from zeus_core.units import duration_text, energy_text

_ACTIVITY = "activity"  # a fact of the work of visits
_ONLY_WAITS = "nothing is computed"
_MIN_STEPS = 4  # of a block that ends as that of an activity is over
# Activities that are decided on at the end of a block. Training waits for 12 ms each, and for 19 ms if there are 32.
_MOST_AT_ONCE = 4


class ActivitySearch(SettingSearch):
    """A `SettingSearch` of a training whose activities have settings of their own.

    Args:
        visits: The visits on this rank.
        before: The search of the training before; None for the first one of this process.
        resumed: The state of the checkpoint that the training continues from; None if it begins anew.
        arguments: Those of a `SettingSearch`.
    """

    make_orders: ClassVar[type[Orders]] = ActivityOrders
    order_type: ClassVar[type[Order]] = ActivityOrder
    limiter: ActivityLimiter
    _orders: ActivityOrders
    order: ActivityOrder

    def __init__(self, visits: RankActivities, before: ActivitySearch | None, resumed: Any, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.visits: RankActivities = visits
        """The visits on this rank."""
        self.of_activities: dict[str, SearchBlocks] = {}
        """All that was measured of the visits of each activity."""
        self._ended: list[tuple[str, MeasuredBlock]] = []  # to be reported
        self._waited: Trial | None = None  # for a server, by this rank
        self._late: tuple[float, float] | None = None  # of the latest block: seconds, and the latency of a change
        visits.begin(self.limiter)
        known = partial(self._known, before, resumed)
        for name, state in self._exchange.decide_of(dict[str, SearchState], known, Phase.PREPARE).items():
            visits.resume(self.limiter, name, state.run_steps, state.run_seconds)
            self.of_activities[name] = SearchBlocks(state.blocks, self.original, self.kind)

    def _known(self, before: ActivitySearch | None, resumed: Any) -> dict[str, SearchState]:
        """Return what is known of the visits of activities, by name; see `Preparation`."""
        conditions, trials = self.conditions, self._store.load_parts(self.conditions, _ACTIVITY)
        if before is not None and before.conditions == conditions:
            trials = {**trials, **{name: before.trials_of(name) for name in before.activities}}
        states = {} if resumed is None else parts_from_state(conditions, _ACTIVITY, resumed)
        found = {}
        for name in dict.fromkeys([*trials, *states]):
            state = states.get(name, SearchState(self._during(name), (), 0, 0.0))
            own = [block.trial for block in state.blocks]
            others = [MeasuredBlock(trial) for trial in trials.get(name, ()) if trial not in own]
            found[name] = replace(state, blocks=(*others, *state.blocks))
        return found

    def _during(self, name: str) -> Conditions:
        """Return the conditions of visits of an activity."""
        return self.conditions.of_part(_ACTIVITY, name)

    def _tell_known(self) -> None:
        """See `SettingSearch`. The blocks of steps and activities are reported in the order of the run."""
        steps, order = max(self.run.steps, 1), []
        for name, measured in {STEPS: self.measured, **self.of_activities}.items():
            visits = steps if name == STEPS else max((block.run_steps for block in measured.blocks), default=0)
            order += [(block.run_steps / max(visits, 1), name, block) for block in measured.blocks]
        for share, name, block in sorted(order, key=lambda one: one[0]):
            self._orders.group.at_step(round(share * steps))
            if name == STEPS:
                self._orders.tell(block.trial, block.run_steps, block.run_seconds)
            else:
                self._orders.tell_visits(name, block)

    def is_to_end_early(self, phase: Phase, steps_left: int) -> bool:
        """See `SettingSearch`. A block ends, too, if that of an activity is over, or may not go on."""
        if super().is_to_end_early(phase, steps_left):
            return True
        order, least_steps = self.order, max(self.order.least_steps, _MIN_STEPS)
        measured = order.steps - steps_left
        if self.block.steps not in CHECKED_STEPS or measured < (least_steps if order.is_choice else order.steps / 2):
            return False
        is_over = partial(due_of, orders=order.visits, with_choices=False)
        return self._exchange.longest(lambda: float(bool(is_over([self._measured()]))), phase) > 0

    def conclude(self) -> PhaseEnd | None:
        """See `SettingSearch`. The blocks of activities that are over end before."""
        phase, exchange = Phase.CONCLUDE, self._exchange
        due = exchange.conclude_of(dict[str, int], self._measured, list[str], self._due_first, phase)
        ended = exchange.conclude_of(
            dict[str, VisitsPart], lambda: self._parts(due), dict[str, MeasuredBlock], self._orders.merge, phase
        )
        self._note_waits()
        late_seconds, latency = self.visits.take_late_seconds(), self.limiter.latency_seconds
        self._late = (exchange.longest(lambda: late_seconds, phase), exchange.longest(lambda: latency, phase))
        self._ended = list(ended.items())
        for name, block in self._ended:
            measured = self.of_activities.setdefault(name, SearchBlocks((), self.original, self.kind))
            if self.chosen_of(name) == block.trial.setting:
                measured.add_confirmation(block, is_fixed=False)
            else:
                measured.add_trial(block)
        if ended:
            self._exchange.attempt(self.save)
        return super().conclude()

    def _due_first(self, ranks: Sequence[Mapping[str, int]]) -> list[str]:
        """Return the activities that are due; of many, those of which fewest blocks are known."""
        due = due_of(ranks, self.order.visits, with_choices=True)
        if len(due) <= _MOST_AT_ONCE:
            return due
        blocks = {name: len(measured.blocks) for name, measured in self.of_activities.items()}
        return sorted(due, key=lambda name: blocks.get(name, 0))[:_MOST_AT_ONCE]

    def chosen_of(self, name: str) -> int | None:
        """Return the setting that the visits of an activity continue at; None before it was chosen."""
        setting = self.order.settings.get(name)
        if setting is None or self.order.visits[name] > 0:
            return None
        return self.choice if setting == FOLLOWS else setting

    @property
    def cycle_seconds(self) -> float:
        """See `DirectedSearch`."""
        return self.run.seconds + math.fsum(one.recorder.run_seconds for one in self.visits.activities.values())

    @property
    def cycle_trials(self) -> list[Trial]:
        """See `DirectedSearch`. A signal moves the setting of the steps, and activities that follow them."""
        return [self._cycle_trial(trial) for trial in self.block_trials]

    @property
    def original_trial(self) -> Trial | None:
        """See `DirectedSearch`."""
        trial = super().original_trial
        return None if trial is None else self._cycle_trial(trial, self.original)

    def _cycle_trial(self, trial: Trial, at: int | None = None) -> Trial:
        """Return a trial of steps with the visits in a step, at a setting; by default where activities were lately."""
        seconds = joules = 0.0
        for name, measured in self.of_activities.items():
            blocks = [block.trial for block in measured.blocks]
            is_following = self.order.settings.get(name) == FOLLOWS
            setting = at or (trial.setting if is_following else blocks[-1].setting)
            visit = pooled_trial([one for one in blocks if one.setting == setting] or blocks)
            own = self.visits.activities.get(name)  # None if other ranks alone have it
            visits = (measured.blocks[-1].run_steps if own is None else own.visits) / self.run.steps
            joules += visits * visit.joules_per_step
            seconds += 0.0 if own is None else visits * visit.seconds_per_step
        return _with(trial, seconds, joules)

    def predicted(self, setting: int) -> None:
        """See `SettingSearch`: nobody knows it of steps with their activities."""

    @property
    def activities(self) -> tuple[str, ...]:
        """The activities that were measured."""
        return tuple(self.of_activities)

    def trials_of(self, activity: str) -> list[Trial]:
        """Return the trials of one of them."""
        return [block.trial for block in self.of_activities[activity].blocks]

    def states(self, run_seconds: float) -> list[SearchState]:
        """See `SettingSearch`; also of the activities."""
        visits = self.visits.activities
        return super().states(run_seconds) + [
            SearchState(
                self._during(name),
                tuple(measured.blocks),
                visits[name].visits,
                visits[name].recorder.run_seconds,
            )
            for name, measured in self.of_activities.items()
            if measured.blocks and name in visits
        ]

    def save(self) -> None:
        """See `SettingSearch`; also of the activities."""
        super().save()
        if self._exchange.rank == 0:
            for name in self.of_activities:
                self._store.save(self._during(name), self.trials_of(name))

    def forget(self) -> None:
        """See `SettingSearch`; also of the activities."""
        for measured in self.of_activities.values():
            measured.forget()
        super().forget()

    @property
    def saving(self) -> tuple[float, float] | None:
        """The energy that the choices of all activities save, as a fraction, and how far it can be off.

        By the energies E(a) of all visits at the original settings, it is the sum of E(a) s(a) over that of E(a).
        """
        parts = [(part.original_joules, part.saving) for part in self.parts().values()]
        joules = math.fsum(original for original, _ in parts)
        known = [(original / joules, *saving) for original, saving in parts if saving is not None and joules > 0]
        if not known or any(math.isinf(off) for _, _, off in known):
            return None
        return math.fsum(part * saved for part, saved, _ in known), math.hypot(*(part * off for part, _, off in known))

    def run_slowdown(self) -> tuple[float, float] | None:
        """See `SettingSearch`: the time of all activities over that at the original settings.

        With the times T(a) and the slowdowns f(a), it is the sum of T(a) over the sum of T(a) / f(a).
        """
        seconds = original = variance = 0.0
        for part in self.parts().values():
            slowdown = part.measured.run_slowdown(part.visits, part.setting)
            if slowdown is None and part.is_changed:
                return None
            factor, off = slowdown or (1.0, 0.0)
            seconds, original = seconds + part.seconds, original + part.seconds / factor
            variance += (part.seconds * off / factor) ** 2
        if not original:
            return None
        return (seconds + self.visits.all_late_seconds) / original, math.sqrt(variance) / original

    def parts(self) -> dict[str, ActivityPart]:
        """Return what is known of steps and activities, by name."""
        found = {}
        for name, measured in {STEPS: self.measured, **self.of_activities}.items():
            blocks = measured.blocks
            if not blocks:
                continue
            setting = self.choice if name == STEPS else self.setting_of(name)
            visits, seconds = blocks[-1].run_steps, blocks[-1].run_seconds
            if name == STEPS:
                visits, seconds = self.run.steps, self.run.seconds
            found[name] = ActivityPart(measured, self.original, setting, visits, seconds)
        return found

    def setting_of(self, name: str) -> int:
        """Return the setting of the visits of an activity, as it was ordered last."""
        setting = self.order.settings.get(name, self.original)
        if self.limiter.observes:
            return self.original
        return self.choice if setting == FOLLOWS else setting

    def activity_facts(self) -> dict[str, Any]:
        """See `SettingSearch`."""
        return {name: encode(result) for name, result in self.activity_results().items()}

    def activity_results(self) -> dict[str, ActivityResult]:
        """Return the facts of steps and activities by name; empty where there are steps alone."""
        parts, observes, waited = self.parts(), self.limiter.observes, self._waited
        results = {
            name: ActivityResult(
                part.visits,
                part.seconds,
                part.joules,
                part.setting,
                part.choices,
                _known(part.saving),
                _known(part.slowdown),
                None if observes else self.order.following.get(name),
                self._orders.expected.get(name) if observes else None,
                self._waiting(name, part, parts[STEPS]) if name != STEPS else None,
            )
            for name, part in (parts.items() if len(parts) > 1 or waited else ())
        }
        if waited is not None:
            amounts = waited.steps, waited.measurement.time, waited.measurement.total_energy or 0.0
            waiting = (1.0, 0.0, self._orders.saved_idle(waited)) if self.kind.saves_waiting else None
            setting = self.original if observes else self.choice
            results[WAITING] = ActivityResult(*amounts, setting, follows_because=_ONLY_WAITS, waiting=waiting)
        return results

    def _waiting(self, name: str, part: ActivityPart, steps: ActivityPart) -> tuple[float, float, float] | None:
        """Return the waits of ranks for each other; see `ActivityResult.waiting`. Rank 0 alone knows.

        With the share w, the time T and the energy E of the activity, and the power P of steps, these take up to
        w T P, of which a part s is saved: w s T P / E of its energy.
        """
        share, least, most = self._orders.waits(name, self.choice)
        if share <= 0 or not self.kind.saves_waiting or not steps.seconds or not part.joules:
            return None
        full = share * part.seconds * steps.joules / steps.seconds / part.joules
        return share, full * least, full * most

    def rows(self) -> dict[str, str]:
        """Return what is known of steps and activities as labelled lines; empty where there are steps alone."""
        results, parts = self.activity_results(), self.parts()
        if not results:
            return {}
        seconds = math.fsum(part.seconds for part in parts.values())
        joules = math.fsum(part.joules for part in parts.values())
        following, state = self.order.following, self.kind.state_text
        rows, saving = {}, self.saving
        if saving is not None:
            rows["saving"] = f"{percentage(*saving)} of the energy of steps and activities"
        for name, part in parts.items() if len(parts) > 1 else ():
            shares = f"{part.seconds / seconds:.0%} of the time, {part.joules / joules:.0%} of the energy"
            setting = state(part.setting, is_original=part.setting == self.original)
            is_following = name in following and not self.limiter.observes
            because = f", that of steps, as {following[name]}" if is_following else ""
            text = self._expected_text(name) if self.limiter.observes else part.text
            rows[f"during {name.replace('_', ' ')}"] = f"{setting}{because}; {shares}{text}{results[name].waiting_text}"
        if (waited := results.get(WAITING)) is not None:
            setting = state(waited.setting, is_original=waited.setting == self.original)
            amounts = f"{duration_text(waited.seconds)} and {energy_text(waited.joules)} on this rank"
            rows["during waiting"] = f"{setting}, that of steps; {amounts}{waited.waiting_text}"
        limiter = self.limiter
        if limiter.observes:
            return rows
        rows["changes"] = (
            f"{limiter.switches:,} of the setting, {duration_text(limiter.switching_seconds)} of driver calls beside "
            f"training; {duration_text(self.visits.all_late_seconds)} longer as settings came late"
        )
        if limiter.is_limited:
            rows["changes"] += f"; visits were without their own beyond {limiter.changes_per_hour} changes an hour"
        if self.order.is_common_as_good:
            rows["one for all"] = "one common setting is as good here"
        return rows

    def _expected_text(self, name: str) -> str:
        """Return what a setting of its own would save an activity, to continue a sentence. Rank 0 alone knows."""
        expected = self._orders.expected.get(name)
        if expected is None or expected.setting == self.original:
            return ""
        lowest, highest = expected.saving_interval
        return (
            f"; {expected.setting} {self.unit} would save {expected.saving_fraction:.1%} ({lowest:.1%} to "
            f"{highest:.1%}) of it, for {expected.slowdown_factor - 1:+.1%} time, by what is known of GPUs"
        )

    def _note_waits(self) -> None:
        waiting = self.visits.waiting
        part = None if waiting is None else waiting.take_part()
        trial = None if part is None else trial_from_parts(part.setting, [part.part])
        self._waited = self._waited if trial is None else pooled_trial([self._waited, trial])

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

    def _ask(self, phase: Phase, tell: Callable[[], object] = lambda: None) -> PhaseEnd | None:
        def tell_all() -> None:
            group = self._orders.group
            group.at_step(self.run.steps)
            if self._late is not None:
                late_seconds, group.switch_seconds = self._late
                group.add_late(late_seconds)
            for name, block in self._ended:
                self._orders.tell_visits(name, block)
            tell()

        outcome = super()._ask(phase, tell_all)
        self._ended, self._late = [], None
        for name, setting in self.order.settings.items():
            if name in self.visits.activities:
                self.visits.activities[name].take_order(self.original if self.limiter.observes else setting)
        return outcome


def _with(trial: Trial, seconds: float, joules: float) -> Trial:
    """Return a trial each of whose steps takes so much more."""
    measured, steps = trial.measurement, trial.steps
    total = (measured.total_energy or 0.0) + steps * joules
    off = (measured.total_uncertainty_joules or 0.0) * total / (measured.total_energy or 1.0)
    together = Measurement.from_energies(measured.time + steps * seconds, {0: total}, uncertainty_joules=off)
    return replace(trial, measurement=together)


def _known(value: tuple[float, float] | None) -> tuple[float, float] | None:
    return None if value is None or math.isinf(value[1]) else value
