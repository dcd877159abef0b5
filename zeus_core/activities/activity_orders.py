"""The orders of rank 0 to the activities of a training: the next setting of each, and how long it is measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from zeus_core.activities.activities_search import STEPS, ActivitiesRunSearch
from zeus_core.activities.activity_visits import FOLLOWS
from zeus_core.activities.visits_of_ranks import VisitsPart, merged, waiting_share
from zeus_core.optimizer.global_setting.orders import Order, Orders
from zeus_core.optimizer.global_setting.search_options import SETTLE_UPDATES, SearchArguments
from zeus_core.optimizer.search_state import MeasuredBlock
from zeus_core.search import Trial
from zeus_core.search.objectives import Energy
from zeus_core.search.run.run_plan import Prediction
from zeus_core.search.run.run_search import RunSearch
from zeus_core.search.run.safe_clock import SafeClock

_PREDICTED_SHARE = 0.25  # of a run: later, more than its bound may be used up by the rest of it
_FAR_BELOW = 0.8  # of a limit: work whose mean power is below binds it at no moment, as power scatters by some percent
_UNTOUCHED = "it draws far less"
_LEAST_ADVANTAGE = 0.01  # of the energy: with less, one setting for all is as good; a step of the clock is worth more
_IDLE_FRACTION = 0.2  # of the power of work, at least, of a rank that waits for others; at most all of it: NCCL spins


@dataclass(frozen=True)
class ActivityOrder(Order):
    """An `Order` that holds those for activities.

    Attributes:
        settings: The settings of the activities that were visited, by name.
        visits: How many visits to measure at them, the negative number at a choice.
        following: The reasons of those that have the setting of the steps.
        is_common_as_good: Whether one setting for all of them is expected to save as much.
    """

    settings: Mapping[str, int] = field(default_factory=dict)
    visits: Mapping[str, int] = field(default_factory=dict)
    following: Mapping[str, str] = field(default_factory=dict)
    is_common_as_good: bool = False


class ActivityOrders(Orders):
    """`Orders` that hold the settings of all activities; see `Orders`."""

    def __init__(self, arguments: SearchArguments, settings: tuple[int, ...]) -> None:
        super().__init__(arguments, settings)
        self.activities: list[str] = []
        """The activities that were reported."""
        self.expected: dict[str, Prediction] = {}
        """The expected effect of the best settings, by activity, where nothing is changed."""
        self._shares: dict[str, list[tuple[float, int]]] = {}  # of ranks that wait, and the visits of each block
        self._watts: dict[str, float] = {}  # in the latest block of each activity, of the GPU that drew most

    @cached_property
    def group(self) -> ActivitiesRunSearch:
        """The searches of all activities."""
        arguments = self._arguments
        return ActivitiesRunSearch(
            self._settings,
            arguments.selector,
            max_steps=arguments.max_steps,
            max_changes_per_hour=arguments.options.changes_per_hour,
            knob=arguments.kind.option,
            settle_seconds=SETTLE_UPDATES * arguments.period_seconds,
        )

    @cached_property
    def _search(self) -> RunSearch:
        steps = self.group.of(STEPS)
        bound = self._arguments.safe_bound
        return steps if bound is None else SafeClock(steps, self._settings, *bound)

    def tell(self, trial: Trial, run_steps: int, run_seconds: float) -> None:
        """See `Orders.tell`. Where nothing is changed, the searches of all activities predict."""
        super().tell(trial, run_steps, run_seconds)
        if self._predictor is not None and trial.setting == self._settings[0]:
            self.group.of(STEPS).tell(trial, run_steps, run_seconds)

    def tell_visits(self, name: str, block: MeasuredBlock) -> None:
        """Report a block of visits of an activity."""
        trial = block.trial
        self.group.of(name).tell(trial, block.run_steps, block.run_seconds)
        watts = [energy.average_power_watts(trial.measurement.time) for energy in trial.measurement.devices.values()]
        self._watts[name] = max(one or 0.0 for one in watts)
        if not self.activities and not self.is_directed and self._predictor is None:
            self._search = self.group.of(STEPS)  # a safe clock may use the whole bound, of which each has a part now
        if name not in self.activities:
            self.activities.append(name)

    def merge(self, ranks: Sequence[Mapping[str, VisitsPart]]) -> dict[str, MeasuredBlock]:
        """Return the blocks of activities from the parts of the ranks, and note how long these wait for the slowest."""
        blocks = merged(ranks)
        for name, block in blocks.items():
            self._shares.setdefault(name, []).append((waiting_share(ranks, name), block.trial.steps))
        return blocks

    def waits(self, name: str, setting: int) -> tuple[float, float, float]:
        """Return the share of an activity in which ranks wait, and the part of the power of steps that is saved then.

        From and to: at the lowest clock in place of the setting of steps.
        """
        shares = self._shares.get(name, ())
        share = math.fsum(share * visits for share, visits in shares) / max(sum(visits for _, visits in shares), 1)
        steps = self.group.of(STEPS)
        least, most = _saved_at(steps.prediction(self._settings[-1]), steps.prediction(setting))
        return share, _IDLE_FRACTION * least, most

    def saved_idle(self, waited: Trial) -> float:
        """Return the part of the energy of waits that the lowest clock would save at most, by the prior."""
        settings = tuple(one for one in self._settings if one <= waited.setting)
        predictor = self._arguments.predictor(settings, Energy())
        predictor.tell(waited)
        return _saved_at(predictor.prediction(settings[-1]), predictor.prediction(settings[0]))[1]

    def may_visit(self, name: str, visits: int, seconds: float) -> bool:
        """Return whether the block of an activity may go on; see `RunSearch.may_continue`."""
        return name not in self.activities or self.group.of(name).may_continue(visits, seconds)

    def next(self, run_steps: int, run_seconds: float) -> ActivityOrder:
        """Return what to do next, also in visits of activities."""
        order = super().next(run_steps, run_seconds)
        blocks = {name: self.group.of(name).ask() for name in self.activities}
        following = {name: _UNTOUCHED for name in blocks if self._is_untouched(name, order.setting)}
        following |= self.group.following
        if self._predictor is not None and run_steps <= _PREDICTED_SHARE * self.group.horizon_steps:
            self.expected.update(self.group.expected())
        return ActivityOrder(
            **vars(order),
            visits={name: -block.steps if block.is_choice else block.steps for name, block in blocks.items()},
            following={name: because for name, because in following.items() if name in blocks},
            is_common_as_good=bool(blocks) and self._is_common_as_good(),
            settings={name: FOLLOWS if name in following else block.setting for name, block in blocks.items()},
        )

    def _is_untouched(self, name: str, setting: int) -> bool:
        """Return whether an activity draws so little that the limit of the steps never binds it, nor one that saves."""
        return self._arguments.kind.binds_power and self._watts.get(name, math.inf) <= _FAR_BELOW * setting

    def _is_common_as_good(self) -> bool:
        savings = self.group.common_saving()
        return savings is not None and savings[1] - savings[0] < _LEAST_ADVANTAGE


def _saved_at(lowest: Prediction | None, present: Prediction | None) -> tuple[float, float]:
    """Return the part of the power at a setting that the lowest one saves, from and to; 0 to 1 if nobody knows.

    Power is energy over time: (1 - saving) / slowdown of that at the original setting.
    """
    if lowest is None or present is None:
        return 0.0, 1.0
    watts = (1 - present.saving_fraction) / present.slowdown_factor
    least, most = (1 - (1 - saving) / lowest.slowdown_factor / watts for saving in lowest.saving_interval)
    return max(least, 0.0), max(most, 0.0)
