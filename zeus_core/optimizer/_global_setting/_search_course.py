"""The course of a search: what each event of training has it do, phase by phase, and its end by a fault."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence

from zeus_core.adapters import contained
from zeus_core.adapters._contained import log_fault
from zeus_core.device import Gpu
from zeus_core.errors import DeviceHeldError
from zeus_core.events import Event, StepBegin, StepEnd, TrainBegin
from zeus_core.optimizer._global_setting._limiter import ReplacedError
from zeus_core.optimizer._global_setting._phases import (
    MEASURED,
    STEP_BOUNDARIES,
    Outcome,
    Phase,
    State,
    Window,
    advance,
)
from zeus_core.optimizer._global_setting._preparation import Preparation
from zeus_core.optimizer._global_setting._recorder import TrialRecorder
from zeus_core.optimizer._global_setting._rival_searches import RivalSearches
from zeus_core.optimizer._global_setting._search_options import SearchOptions
from zeus_core.optimizer._global_setting._setting_history import SettingHistory
from zeus_core.optimizer._global_setting._setting_search import SettingSearch
from zeus_core.optimizer._trial_store import TrialStore
from zeus_core.ports import World
from zeus_core.ports._exchange import Exchange
from zeus_core.settings.holders import KnobUser

__all__ = ["SearchCourse"]

_SETTING = frozenset({Phase.WARM_UP, Phase.SETTLE, Phase.DONE})  # the phases that set a setting
_RESTING = frozenset({Phase.REST, Phase.OFF})
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
        history: Takes in each setting.
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
        self.ended_state: State = State()
        """The state in which the latest training ended."""
        self.ended_because: str | None = None
        """The reason that the search was given up, in phase OFF; None before."""
        self.rivals: RivalSearches | None = None
        """The searches of the latest training."""
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
    def search(self) -> SettingSearch | None:
        """The search under way, or the latest one."""
        return None if self.rivals is None else self.rivals.current

    @contained(on_fault=lambda self, error: self.fail(error))
    def receive(self, event: Event) -> None:
        """Follow an event: the one entrance of all hooks."""
        kind, phase = type(event), self.state.phase
        is_measured = self.state.window is Window.OPEN
        if kind is StepBegin:
            self._recorder.begin_step()
        elif kind is StepEnd:
            self._recorder.end_step()
            if is_measured:
                self.exchange.attempt(self._recorder.mark_step)
            if self.rivals is not None and phase not in _RESTING:
                self.rivals.current.count_step(is_original=phase is Phase.WAIT)
        else:
            self._recorder.pause()
        if isinstance(event, TrainBegin):
            self._steps_left = event.steps_left
        self._follow(kind)
        if kind is StepEnd and is_measured and self._is_to_end_early():
            self._follow(Outcome.SPENT)

    def _is_to_end_early(self) -> bool:
        phase, steps_left = self.state.phase, self.state.steps_left
        if self.rivals is None or steps_left == 0 or phase not in MEASURED:
            return False
        return self.rivals.current.is_to_end_early(phase, steps_left)

    def fail(self, error: Exception) -> None:
        """End the search by a fault."""
        self.exchange.fail(error)
        if self.search is not None:
            self.search.chosen = None
        self._follow(Outcome.FAULT)

    def _step_aside(self, error: Exception) -> None:
        if self.ended_because is None:  # what follows is no reason of its own
            self.ended_because = f"the search has ended: {error}" if isinstance(error, DeviceHeldError) else _FAULT
        self.restore()
        if self.gpus:  # without one, the warning of its monitor has said so
            log_fault(self, f"the search for a {self.preparation.name} is off for the rest of this run", error)

    def _follow(self, event: type[Event] | Outcome) -> None:
        """Follow what has happened, and then the outcome of entering each phase, or state of its window, in turn."""
        happening: type[Event] | Outcome | None = event
        while happening is not None:
            before, self.state = self.state, advance(self.state, happening, self._steps_of)
            if (self.state.phase, self.state.window) == (before.phase, before.window):
                return
            happening = self._enter(is_new=self.state.phase is not before.phase)
            if happening is None and event in STEP_BOUNDARIES and self.state.is_spent:
                happening = Outcome.SPENT

    def _steps_of(self, phase: Phase) -> int:
        return 0 if self.search is None else self.search.steps_of(phase)

    def _enter(self, is_new: bool) -> Outcome | None:
        """Have the effects of entering the current phase, or the state of its window.

        Returns:
            Their outcome; None if there is none yet.
        """
        if self.state.phase is Phase.PREPARE:
            return self._prepare()
        if self.state.phase in _RESTING:
            self.restore()
            self._recorder.drop_trial()
            return None
        try:
            return None if self.rivals is None else self.rivals.enter(self.state.phase, self.state.window, is_new)
        except ReplacedError as error:
            self._replaced = error
            return Outcome.LOWERED
        finally:
            if is_new and self.state.phase in _SETTING and self.search is not None:
                self._note_setting(self.search.reason)

    def _prepare(self) -> Outcome:
        replaced, self._replaced = self._replaced, None
        if replaced is None:
            self.rivals = None
        searches = self.preparation.searches(self._steps_left, replaced)
        if replaced is not None:
            _logger.warning("%s, and the search for a %s begins anew below it", replaced, self.preparation.name)
        self.rivals = RivalSearches(searches, self.preparation.selector, self.exchange)
        if replaced is None:
            self._history.begin()
        self._note_setting("somebody else has set it")
        return self.rivals.begin()

    def _note_setting(self, reason: str) -> None:
        if self.search is not None and self.search.in_force is not None:
            self._history.note(self.search.in_force, self.search.kind.unit, reason)

    @property
    def unrestored(self) -> dict[str, str] | None:
        """The commands for the GPUs of this rank that are not known to be restored; None while training goes on."""
        return self.preparation.unrestored if self.state.phase in _RESTING else None

    def restore(self) -> None:
        """Restore the original settings. Never raises; `unrestored` tells where a GPU refuses."""
        if self.preparation.restore() and not self.preparation.unrestored:
            self._history.note_restored(self.ended_because or "training has ended")
