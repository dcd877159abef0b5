"""One search for a power limit: its facts, and the effects of its phases."""

from __future__ import annotations

import logging
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from zeus_core._codec import decode, encode
from zeus_core.errors import DeviceError, DeviceHeldError, UsageError
from zeus_core.optimizer._trial_store import Conditions, TrialStore
from zeus_core.optimizer.power_limit._limiter import Limiter
from zeus_core.optimizer.power_limit._phases import MEASURING, SPOILED, SUSPENDED, Outcome, Phase
from zeus_core.optimizer.power_limit._recorder import TrialPart, TrialRecorder, trial_from_parts
from zeus_core.optimizer.power_limit._search_group import SearchGroup
from zeus_core.ports._exchange import Exchange
from zeus_core.search import GridSearch, Search, Trial
from zeus_core.search._objectives import OptimumSelector, PowerLimitMeasurement

__all__ = ["LimitSearch"]

# Readings are lost while a driver restarts or another process interferes, which passes. More tries lengthen a search
# that cannot succeed; fewer end one that could.
_MAX_TRIES_PER_LIMIT = 3

_logger = logging.getLogger(__name__)


class LimitSearch:
    """The search of one training, from PREPARE on. It is the same on all ranks.

    Args:
        group: The ranks.
        conditions: The conditions of the trials, for the store.
        trials: The known trials, by limit.
        limiter: Sets the limits of this rank.
        exchange: The exchanges with the other ranks.
        recorder: Measures this rank's part in the trials.
        store: Keeps the trials. That of rank 0 is used.
        selector: Chooses the limit. That of rank 0 is used.
        steps: The number of steps that the energies and times the selector is shown are for.
    """

    def __init__(
        self,
        group: SearchGroup,
        conditions: Conditions,
        trials: Mapping[int, Trial],
        limiter: Limiter,
        exchange: Exchange,
        recorder: TrialRecorder,
        store: TrialStore,
        selector: OptimumSelector,
        steps: int,
    ) -> None:
        self.settings = group.settings
        """The limits that may be chosen, in watts: the original one first, then all lower ones."""
        self.trials = dict(trials)
        """The trials so far, by limit."""
        self.chosen_watts: int | None = None
        """The limit that training continues at; None until it is set."""
        self.confirmation: Trial | None = None
        """The chosen limit, measured once more; None until then, and if its energy was lost."""
        self.original_watts = group.settings[0]
        """The highest original limit."""
        self.is_denied = False
        """Whether a rank may not set limits."""
        self.steps = 0
        """The steps since training began."""
        self.searched_steps: Counter[int] = Counter()
        """The steps of the search at each limit, with those that settle."""
        self.chosen_steps = 0
        """The steps at the chosen limit."""
        self._conditions = conditions
        self._limiter = limiter
        self._exchange = exchange
        self._recorder = recorder
        self._store = store
        self._selector = selector
        self._steps = steps
        self._limit_watts = self.original_watts
        self._tries = 0
        self._search: Search = GridSearch(self.settings)
        for trial in self.trials.values():
            self._search.tell(trial)

    def count_step(self, is_original: bool) -> None:
        """Count a step that has ended, before the search changes anything (`is_original`) or at the limit in force."""
        self.steps += 1
        if is_original:
            return
        if self.chosen_watts is None:
            self.searched_steps[self._limit_watts] += 1
        else:
            self.chosen_steps += 1

    def ask(self) -> Outcome:
        """Ask for the limit to measure next."""
        asked_watts = self._search.ask()
        if asked_watts is None:
            return Outcome.KNOWN
        self._aim_at(asked_watts)
        return Outcome.ASKED

    def enter(self, phase: Phase) -> Outcome | None:
        """Have the effects of entering a phase. Returns their outcome; None if there is none yet."""
        if phase in MEASURING:
            self._exchange.attempt(self._recorder.open_segment)
        elif phase in SUSPENDED:
            self._exchange.attempt(self._recorder.close_segment)
        elif phase in SPOILED:
            self._exchange.attempt(self._recorder.drop_segment)
        match phase:
            case Phase.WARM_UP:
                self._limit_watts = self._applied(phase)
            case Phase.CONCLUDE:
                return self._conclude()
            case Phase.CHOOSE:
                return self._choose()
            case Phase.SETTLE:
                self.chosen_watts = self._limit_watts = self._applied(phase)
            case Phase.VERIFY:
                return self._verify()
        return None

    def save(self) -> None:
        """Have the trials kept, on rank 0."""
        if self._exchange.rank == 0:
            self._store.save(self._conditions, self.sorted_trials())

    def sorted_trials(self) -> list[Trial]:
        """Return the trials so far, the highest limit first."""
        return sorted(self.trials.values(), key=lambda trial: -trial.setting)

    def measurements(self) -> list[PowerLimitMeasurement]:
        """Return the trials within the settings, as the selector is shown them."""
        shown = [trial for trial in self.sorted_trials() if self.settings[-1] <= trial.setting <= self.settings[0]]
        return [PowerLimitMeasurement.from_trial(trial, self._steps) for trial in shown]

    def _conclude(self) -> Outcome:
        trial = self._finished_trial(Phase.CONCLUDE)
        if trial is None:
            if self._tries == _MAX_TRIES_PER_LIMIT:
                at = f"{self._limit_watts} {self._limiter.kind.unit}"
                raise DeviceError(f"the energy at {at} was lost {self._tries} times in a row")
            return Outcome.LOST
        self.trials[trial.setting] = trial
        self._exchange.attempt(self.save)
        self._search.tell(trial)
        return self.ask()

    def _choose(self) -> Outcome:
        chosen_watts = self._exchange.decide(self._selected, Phase.CHOOSE)
        kind = self._limiter.kind
        _logger.info("a %s of %d %s is chosen for the rest of this training", kind.name, chosen_watts, kind.unit)
        self._aim_at(chosen_watts)
        return Outcome.CHOSEN

    def _selected(self) -> int:
        choice: object = self._selector.select(self.measurements())
        try:
            limit_watts = operator.index(choice)  # type: ignore[arg-type]
        except TypeError:
            raise UsageError(
                f"{type(self._selector).__name__}.select returned {choice!r}; it must return a power limit in whole "
                "watts, such as measurements[0].power_limit"
            ) from None
        self._limiter.kind.check(limit_watts, self.settings)
        return limit_watts

    def _verify(self) -> Outcome:
        self.confirmation = self._finished_trial(Phase.VERIFY)
        is_lost = self.confirmation is None and self._tries < _MAX_TRIES_PER_LIMIT
        return Outcome.LOST if is_lost else Outcome.CONFIRMED  # the choice holds even if its saving stays unknown

    def _finished_trial(self, phase: Phase) -> Trial | None:
        """Return the trial that all ranks have measured; None if it cannot be used."""
        told = self._exchange.gather(self._finished_part, phase)
        parts = decode(list[TrialPart], [part for part, _ in told])
        held = [because for _, because in told]
        if any(held):
            raise DeviceHeldError(self._exchange.complaint(held))
        trial = trial_from_parts(self._limit_watts, parts)
        if trial is not None:
            unit = self._limiter.kind.unit
            _logger.info(
                "%d %s: %.4g s, %.4g J per step", trial.setting, unit, trial.seconds_per_step, trial.joules_per_step
            )
        elif not any(part.is_spoiled for part in parts):  # interference is no fault of the devices
            self._tries += 1
        return trial

    def _finished_part(self) -> tuple[Any, str | None]:
        """Return this rank's part in the trial, in JSON types, and the words for the limit of somebody else."""
        part = self._recorder.finish_trial()
        try:
            is_undisturbed = self._limiter.is_undisturbed()
        except DeviceHeldError as error:
            return encode(part), str(error)
        if not is_undisturbed:
            _logger.warning("the power limit in force has changed during a trial, which is repeated")
            part = replace(part, is_spoiled=True)
        return encode(part), None

    def _aim_at(self, limit_watts: int) -> None:
        self._limit_watts, self._tries = limit_watts, 0

    def _applied(self, phase: Phase) -> int:
        """Set the limit on all ranks, or observe at the original one if a rank may not. Returns the limit in force."""
        denials: Sequence[str | None] = self._exchange.gather(lambda: self._limiter.set(self._limit_watts), phase)
        if not any(denials):
            return self._limit_watts
        denial = self._exchange.complaint(denials)
        self._exchange.attempt(lambda: self._limiter.stay(denial))
        self.is_denied = True
        self.settings = self.settings[:1]
        self._search = GridSearch(self.settings)
        _logger.warning(
            "%ss are not changed: %s. Training continues at the original %d %s, where it is measured",
            self._limiter.kind.name,
            denial,
            self.original_watts,
            self._limiter.kind.unit,
        )
        return self.original_watts
