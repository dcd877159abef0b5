"""The course of a search: what each event of training has it do, phase by phase, and its end by a fault."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from zeus_core.adapters import contained
from zeus_core.adapters.contained import log_fault
from zeus_core.device import Gpu
from zeus_core.errors import DeviceHeldError, NotSupportedError
from zeus_core.events import Event, StepBegin, StepEnd, TrainBegin
from zeus_core.optimizer.global_setting._preparation import Preparation
from zeus_core.optimizer.global_setting.measuring import TrialRecorder
from zeus_core.optimizer.global_setting.phases import (
    MEASURED,
    STEP_BOUNDARIES,
    Phase,
    PhaseEnd,
    State,
    WindowState,
    advance,
)
from zeus_core.optimizer.global_setting.search_options import SearchOptions
from zeus_core.optimizer.global_setting.setting_search import SettingSearch
from zeus_core.optimizer.limiter import ReplacedError
from zeus_core.optimizer.setting_history import SettingHistory
from zeus_core.optimizer.trial_store import TrialStore
from zeus_core.ports import World
from zeus_core.ports.exchange import Exchange
from zeus_core.settings.holders import KnobUser

if TYPE_CHECKING:
    from zeus_core.optimizer.global_setting._rival_searches import RivalSearches

_SETTING = frozenset({Phase.WARM_UP, Phase.SETTLE, Phase.DONE})  # the phases that set a setting
_DIRECTED = frozenset({Phase.PREPARE, Phase.CONCLUDE})  # the phases in which an observer may direct the search
_RESTING = frozenset({Phase.REST, Phase.OFF})
_UNSEARCHED = frozenset({Phase.PREPARE, *_RESTING})
_FAULT = "a fault, which was logged, has ended the search"

_logger = logging.getLogger(__name__)


class SearchCourse:
    """Follows the phase table through one training after another.

    Args:
        options: The arguments of the optimizer.
        gpus: The GPUs of this rank.
        world: All ranks.
        recorder: Measures.
        store: Keeps the trials.
        history: Records each setting.
        user: The object that the settings are for.
    """

    def __init__(
        self,
        options: SearchOptions,
        gpus: Sequence[Gpu],
        world: World,
        recorder: TrialRecorder,
        store: TrialStore,
        history: SettingHistory,
        user: KnobUser,
    ) -> None:
        self.state: State = State()
        """The present state."""
        self.ended_because: str | None = None
        """The reason that the search was given up, in phase OFF; None before."""
        self.searches: Sequence[SettingSearch] = ()
        """The searches of the latest training."""
        self.search: SettingSearch | None = None
        """The one under way, or the latest one."""
        self._rivals: RivalSearches | None = None  # where there are several
        self.gpus = gpus
        """The GPUs of this rank."""
        self._recorder = recorder
        self._history = history
        self._steps_left: int | None = None  # of the training when it began, if the loop knows
        self._replaced: ReplacedError | None = None  # the reason to begin the search anew
        this = weakref.ref(self)  # a reference cycle would delay restoring the limits when the optimizer is dropped

        def step_aside(error: Exception) -> None:
            course = this()
            if course is not None:
                course._step_aside(error)

        self.exchange: Exchange = Exchange(world, step_aside)
        """The exchanges with the other ranks."""
        self.preparation: Preparation = Preparation(options, gpus, self.exchange, recorder, store, user)
        """Makes the searches."""

    @property
    def rival_rows(self) -> dict[str, str]:
        """The choices of the searches that do not go on, as labelled lines."""
        return {} if self._rivals is None else self._rivals.rows()

    @contained(on_fault=lambda self, error: self.fail(error))
    def receive(self, event: Event) -> None:
        """Follow an event: the one entrance of all hooks."""
        kind, state, is_measured = type(event), self.state, False
        if kind is StepBegin:
            self._recorder.begin_step()
        elif kind is StepEnd:
            is_measured = state.window is WindowState.OPEN
            self.exchange.attempt(self._recorder.end_measured_step if is_measured else self._recorder.end_step)
            if state.phase not in _RESTING:
                self._search.count_step(is_original=state.phase is Phase.WAIT)
        else:
            self._recorder.pause()
            if isinstance(event, TrainBegin):
                self._steps_left = event.steps_left
        self._follow(kind)
        phase, steps_left, *_ = self.state
        if is_measured and steps_left > 0 and phase in MEASURED and self._search.is_to_end_early(phase, steps_left):
            self._follow(PhaseEnd.SPENT)

    @property
    def _search(self) -> SettingSearch:
        assert self.search is not None, "each phase from PREPARE on has one"
        return self.search

    @property
    def waiting(self) -> SettingSearch | None:
        """The search, if it waits for an observer to direct it: PREPARE and CONCLUDE last no longer otherwise."""
        return self.search if self.state.phase in _DIRECTED else None

    def go_on(self, cause: Event, setting: int | None, steps: int, reason: str) -> None:
        """Have the search that waits since an event go on; see `SettingSearch.go_on`."""
        self._follow(self._search.go_on(setting, steps, reason), type(cause))

    def fail(self, error: Exception) -> None:
        """End the search by a fault."""
        self.exchange.fail(error)
        if self.search is not None:
            self.search.chosen = None
        self._follow(PhaseEnd.FAULT)

    def _step_aside(self, error: Exception) -> None:
        is_first = self.ended_because is None  # what follows is no reason of its own
        if is_first:
            self.ended_because = _reason_of(error)
        self.restore()
        if isinstance(error, NotSupportedError):
            if is_first:
                _logger.warning("the search for a %s is off for the rest of this run: %s", self.preparation.name, error)
        elif self.gpus:  # without one, the warning of its monitor has said so
            log_fault(self, f"the search for a {self.preparation.name} is off for the rest of this run", error)

    def _follow(self, event: type[Event] | PhaseEnd, cause: type[Event] | None = None) -> None:
        """Follow what has happened, and then the outcome of entering each phase, or state of its window, in turn.

        Args:
            event: An event, or an outcome.
            cause: The event that led to this outcome, where that is over.
        """
        is_boundary = (cause or event) in STEP_BOUNDARIES
        happening: type[Event] | PhaseEnd | None = event
        while happening is not None:
            before, self.state = self.state, advance(self.state, happening, self._steps_of)
            if (self.state.phase, self.state.window) == (before.phase, before.window):
                return
            happening, phase = None, self.state.phase
            if phase is Phase.PREPARE:
                happening = self._prepare()
            elif phase is Phase.CONCLUDE:
                happening = self._conclude()
            elif phase in _RESTING:
                self.restore()
                self._recorder.drop_trial()
            else:
                if phase in _SETTING and phase is not before.phase:
                    try:
                        happening = self._search.begin_block(phase)
                    finally:
                        self._note_setting(self._search.reason)
                if happening is None:
                    self._search.block.follow(self.state.window)
            if happening is None and is_boundary and self.state.is_spent:
                happening = PhaseEnd.SPENT

    def _steps_of(self, phase: Phase) -> int:
        return 0 if phase in _UNSEARCHED else self._search.steps_of(phase)

    def _conclude(self) -> PhaseEnd | None:
        try:
            return self._continued(self._search.conclude())
        except ReplacedError as error:
            self._replaced = error
            return PhaseEnd.LOWERED

    def _continued(self, outcome: PhaseEnd | None) -> PhaseEnd | None:
        """Return the outcome of a search; that of the next one, if it has chosen and others are to be made."""
        if self._rivals is None or outcome is None:
            return outcome
        outcome = self._rivals.next(outcome, self.state.phase)
        self.search = self._rivals.current
        return outcome

    def _prepare(self) -> PhaseEnd | None:
        replaced, self._replaced = self._replaced, None
        if replaced is None:
            self.searches, self.search, self._rivals = (), None, None
        searches = self.preparation.searches(self._steps_left, replaced)
        if replaced is not None:
            _logger.warning("%s, and the search for a %s begins anew below it", replaced, self.preparation.name)
        self.searches, self.search = searches, searches[0]
        if len(searches) > 1:
            from zeus_core.optimizer.global_setting._rival_searches import RivalSearches  # for knob="auto" alone

            self._rivals = RivalSearches(searches, self.preparation.selector, self.exchange)
        if replaced is None:
            self._history.begin()
        self._note_setting("somebody else has set it")
        return self._continued(self.search.begin())

    def _note_setting(self, reason: str) -> None:
        in_force = self._search.limiter.setting
        if in_force is not None:
            self._history.note(in_force, self._search.unit, reason)

    @property
    def unrestored(self) -> dict[str, str] | None:
        """The commands for the GPUs of this rank that are not known to be restored; None while training goes on."""
        return self.preparation.unrestored if self.state.phase in _RESTING else None

    def restore(self) -> None:
        """Restore the original settings. Never raises; `unrestored` names the GPUs that refuse."""
        if self.preparation.restore() and not self.preparation.unrestored:
            self._history.note_restored(self.ended_because or "training has ended")


def _reason_of(error: Exception) -> str:
    """Return why a search has ended, for people. A board that lacks what is searched is not at fault."""
    if isinstance(error, NotSupportedError):
        return f"not searched: {error}"
    return f"the search has ended: {error}" if isinstance(error, DeviceHeldError) else _FAULT
