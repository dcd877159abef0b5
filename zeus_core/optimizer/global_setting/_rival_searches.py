"""Searches for settings of several kinds in one training, which continues with the one that has the better choice."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from enum import Enum
from functools import partial

from zeus_core.device import Gpu
from zeus_core.errors import DeviceError, DeviceHeldError, NotSupportedError, PermissionDeniedError
from zeus_core.kinds import Kind
from zeus_core.optimizer.global_setting.phases import Phase, PhaseEnd
from zeus_core.optimizer.global_setting.setting_search import SettingSearch
from zeus_core.optimizer.limiter import knob_of
from zeus_core.ports.exchange import Exchange
from zeus_core.search.objectives import OptimumSelector, PowerLimitMeasurement
from zeus_core.settings.holders import KnobUser

_logger = logging.getLogger(__name__)


def possible_kinds(kinds: Sequence[Kind], gpus: Sequence[Gpu], user: KnobUser, exchange: Exchange) -> tuple[Kind, ...]:
    """Return the kinds of settings that all ranks can change; the first one if there is none. All ranks call this.

    Args:
        kinds: The kinds to try.
        gpus: The GPUs of this rank.
        user: The object that the settings are for.
        exchange: The exchanges with the other ranks.
    """
    possible, complaints = [], []
    for kind in kinds:
        obstacles = exchange.gather(partial(_obstacle_to, kind, gpus, user), Phase.PREPARE)
        if any(obstacles) and not kind.is_usual:
            _logger.info("%ss are not searched: %s", kind.words, exchange.complaint(obstacles))
        elif any(obstacles):
            complaints.append(f"{kind.words}s cannot be changed: {exchange.complaint(obstacles)}")
        else:
            possible.append(kind)
    if complaints and possible:
        searched = " and ".join(f"{kind.words}s" for kind in possible)
        _logger.warning("only %s are searched: %s", searched, "; ".join(complaints))
    return tuple(possible or kinds[:1])


def first_kind(kinds: Sequence[Kind], gpus: Sequence[Gpu], user: KnobUser, exchange: Exchange, changes: bool) -> Kind:
    """Return the first kind of setting that the boards of all ranks have; the first of all if they have none.

    Whether this process may set it is not asked: without the right, it is predicted. All ranks call this.

    Args:
        kinds: The kinds to try.
        gpus: The GPUs of this rank.
        user: The object that the settings are for.
        exchange: The exchanges with the other ranks.
        changes: Whether boards are asked by setting what is in force: many laptops show a limit and take none.
    """
    first_complaint = ""
    for kind in kinds:
        lacks = exchange.gather(partial(_lack_of, kind, gpus, user, changes), Phase.PREPARE)
        complaint = exchange.complaint(lacks)
        if not complaint:
            if first_complaint:
                _logger.warning("%ss are searched, and not %ss: %s", kind.words, kinds[0].words, first_complaint)
            return kind
        first_complaint = first_complaint or complaint
    return kinds[0]


def _obstacle_to(kind: Kind, gpus: Sequence[Gpu], user: KnobUser) -> str | None:
    """Return the reason that a kind of setting cannot be changed here; None if it can. Raises as `_refusal` does."""
    if not gpus:
        return "this rank has no GPU"
    refusal = _refusal(kind, gpus, user)
    return None if refusal is None else str(refusal)


def _lack_of(kind: Kind, gpus: Sequence[Gpu], user: KnobUser, changes: bool) -> str | None:
    """Return the reason that nobody can change a kind of setting here; None if somebody can."""
    refusal = _refusal(kind, gpus, user, changes) if gpus else None
    return str(refusal) if isinstance(refusal, NotSupportedError) else None


def _refusal(kind: Kind, gpus: Sequence[Gpu], user: KnobUser, changes: bool = True) -> DeviceError | None:
    """Return the error that a kind of setting meets here; None if it can be changed.

    Raises:
        DeviceError: A GPU fails in another way.
    """
    try:
        knob = knob_of(kind, gpus, user)
        if changes:
            knob.apply(knob.settings[0])
    except (NotSupportedError, PermissionDeniedError, DeviceHeldError) as error:
        return error
    knob.restore()
    return None


class RivalSearches:
    """One search after another, until each has chosen. Then the one with the better choice alone goes on.

    The steps at the original settings are measured once: the later searches take them over from the first.

    Args:
        searches: The searches, at least one.
        selector: The rule for the better choice. That of rank 0 is used.
        exchange: The exchanges with the other ranks.
    """

    def __init__(self, searches: Sequence[SettingSearch], selector: OptimumSelector, exchange: Exchange) -> None:
        first, *self._untried = searches
        self.current: SettingSearch = first
        """The search under way."""
        self._tried = [first]
        self._selector = selector
        self._exchange = exchange
        self._is_decided = False

    def rows(self) -> dict[str, str]:
        """Return the choices of the searches that do not go on, as labelled lines."""
        return {f"or {search.kind.words}": _choice_text(search) for search in self._tried if search is not self.current}

    def next(self, outcome: PhaseEnd, phase: Enum) -> PhaseEnd:
        """Go on with the next search once one has chosen; after the last, with the one that has the better choice."""
        while outcome is PhaseEnd.CHOSEN and self._untried and not self.current.limiter.observes:
            before, self.current = self.current, self._untried.pop(0)
            self._tried.append(self.current)
            before.rest()
            self.current.searched_steps[self.current.original] = before.searched_steps[before.original]
            self.current.measured.take_over(before.measured)
            outcome = self.current.begin() or outcome
        if outcome is PhaseEnd.CHOSEN and len(self._tried) > 1 and not self._is_decided:
            self._is_decided = True
            self._keep(self._tried[self._exchange.decide(self._better, phase)])
        return outcome

    def _better(self) -> int:
        originals = [
            PowerLimitMeasurement.from_trial(search.measured.trials[search.original], 1) for search in self._tried
        ]
        choices = [
            PowerLimitMeasurement(search.choice, original.energy * energy_factor, original.time * time_factor)
            for search, original in zip(self._tried, originals, strict=True)
            for energy_factor, time_factor in [_expected(search)]
        ]
        return better_choice(self._selector, originals, choices)

    def _keep(self, kept: SettingSearch) -> None:
        others = [_choice_state(search) for search in self._tried if search is not kept]
        _logger.info("the search goes on with %s, and not with %s", _choice_state(kept), " or ".join(others))
        if kept is not self.current:
            self.current.rest()
            self.current = kept


def better_choice(
    selector: OptimumSelector, originals: Sequence[PowerLimitMeasurement], choices: Sequence[PowerLimitMeasurement]
) -> int:
    """Return which of the choices of several searches is the best: its place.

    Args:
        selector: The rule by which each was chosen.
        originals: A step at the original setting, as each search knows it.
        choices: A step at the choice of each.
    """
    changes = list(zip(choices, originals, strict=True))
    best = 0
    for place in range(1, len(changes)):
        if selector.prefers(changes[place], changes[best]):
            best = place
    return best


def _expected(search: SettingSearch) -> tuple[float, float]:
    """Return the energy and the duration of a step at the choice of a search, over those at the original setting."""
    expected, trials = search.order.expected, search.measured.trials
    if expected is not None:
        return 1 - expected.saving_fraction, expected.slowdown_factor
    before, after = trials[search.original], trials[search.choice]
    return after.joules_per_step / before.joules_per_step, after.seconds_per_step / before.seconds_per_step


def _choice_state(search: SettingSearch) -> str:
    return search.kind.state_text(search.choice, is_original=search.choice == search.original)


def _choice_text(search: SettingSearch) -> str:
    """Return the choice of a search in words, with its expected effect and the steps it took to find."""
    energy_factor, time_factor = _expected(search)
    steps = sum(steps for setting, steps in search.searched_steps.items() if setting != search.original)
    return (
        f"{_choice_state(search)}, for {energy_factor - 1:+.1%} energy and {time_factor - 1:+.1%} time by "
        f"what is known, after {steps} steps of search"
    )
