"""One search for a setting during training: what each phase does on every rank, as rank 0 orders it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from zeus_core.kinds import Kind
from zeus_core.optimizer.global_setting._common_block import CommonBlock, RunSteps
from zeus_core.optimizer.global_setting.measuring import TrialRecorder
from zeus_core.optimizer.global_setting.orders import Order, Orders
from zeus_core.optimizer.global_setting.phases import MEASURED, Phase, PhaseEnd
from zeus_core.optimizer.global_setting.search_options import SearchArguments
from zeus_core.optimizer.global_setting.trials import SearchBlocks
from zeus_core.optimizer.limiter import Answer, Limiter
from zeus_core.optimizer.search_state import MeasuredBlock, SearchState
from zeus_core.optimizer.trial_store import Conditions, TrialStore
from zeus_core.ports.exchange import Exchange
from zeus_core.ports.world import WholeNumbers
from zeus_core.search import Trial
from zeus_core.search.run.run_plan import Prediction
from zeus_core.search.trial import pooled_trial

# Readings are lost while a driver restarts or another process interferes, which passes. More tries lengthen a search
# that cannot succeed; fewer end one that could.
_MAX_TRIES = 3
_MIN_STEPS = 2  # measured before a block may end early: one step has no scatter

# Steps of a block after which the search is asked whether it may go on: seldom enough for exchanges of many ranks.
CHECKED_STEPS: frozenset[int] = frozenset(round(1.25**power) for power in range(3, 90))

_logger = logging.getLogger(__name__)


class SettingSearch:
    """The search of one training, from PREPARE on. It is the same on all ranks, and follows the orders of rank 0.

    A block of steps is ordered by `begin`, or by `conclude` of the one before; it begins with `begin_block`.

    Args:
        settings: The settings that may be chosen on all ranks, the original one first.
        conditions: The conditions of the blocks, for the store.
        known: Blocks that were measured before.
        limiter: Applies the settings on this rank.
        exchange: The exchanges with the other ranks.
        recorder: Measures this rank's part in the blocks.
        store: Keeps the blocks. That of rank 0 is used.
        arguments: Make the search. Those of rank 0 are used.
        run: Counts the steps of the training.
    """

    make_orders: ClassVar[type[Orders]] = Orders
    order_type: ClassVar[type[Order]] = Order

    def __init__(
        self,
        settings: tuple[int, ...],
        conditions: Conditions,
        known: Sequence[MeasuredBlock],
        limiter: Limiter,
        exchange: Exchange,
        recorder: TrialRecorder,
        store: TrialStore,
        arguments: SearchArguments,
        run: RunSteps,
    ) -> None:
        self.kind: Kind = limiter.kind
        """The kind of setting."""
        self.unit: str = limiter.kind.unit
        """The unit of the settings."""
        self.settings: tuple[int, ...] = settings
        """The settings that may be chosen: the original one first, then all lower ones."""
        self.original: int = settings[0]
        """The highest original setting."""
        self.conditions: Conditions = conditions
        """The conditions of the blocks."""
        self.max_steps: int | None = arguments.max_steps
        """The steps of the training; None if nobody knows."""
        self.run: RunSteps = run
        """The steps of the training so far."""
        self.limiter: Limiter = limiter
        """Applies the settings on this rank."""
        self.measured: SearchBlocks = SearchBlocks(known, settings[0], limiter.kind)
        """All that was measured."""
        self.temperatures_celsius: Sequence[float] = recorder.temperatures_celsius
        """The temperature of the hottest GPU of this rank at the end of each block, where it is known."""
        self.block: CommonBlock = CommonBlock(limiter, exchange, recorder, run)
        """The block under way."""
        self.order: Order = self.order_type(settings[0], 1, is_choice=False)
        """The order for the block under way, or for the next one."""
        self.chosen: int | None = None
        """The setting that training continues at; None until it is set."""
        self.not_changed_because: str | None = "as it is only observed" if limiter.observes else None
        """The reason that settings are not changed; None if they are."""
        self.waits: bool = False
        """Whether it waits at the original setting, as the energy of a GPU was lost again and again."""
        self.is_held: bool = False
        """Whether another object or process controls a GPU, so that the setting in force is not known."""
        self.refused: dict[int, str] = {}
        """The settings that a board does not enforce, which are tried no more, each with the reason."""
        self.searched_steps: Counter[int] = Counter()
        """The steps of the search at each setting, with those that settle."""
        self.chosen_steps: int = 0
        """The steps at the choice."""
        self._exchange = exchange
        self._store = store
        self._options = arguments.options
        self._orders = self.make_orders(arguments, settings)
        self._before = self.order
        self._taken: dict[int, int] = {}  # by the setting that was asked for: the one that all boards take for it
        self._setting: int | None = None  # of the latest block, unless it is to be set again
        self._tries = 0

    @property
    def run_steps(self) -> int:
        """The steps of the training so far."""
        return self.run.steps

    @property
    def cycle_seconds(self) -> float:
        """See `DirectedSearch`."""
        return self.run.seconds

    @property
    def is_done(self) -> bool:
        """Whether the search has chosen."""
        return self.order.is_choice

    @property
    def choice(self) -> int:
        """The setting of the block that is ordered, as the boards take it; once the search has chosen, its choice."""
        return self._taken.get(self.order.setting, self.order.setting)

    @property
    def present(self) -> int:
        """The setting of the block under way, or of the latest one; the original one before the first."""
        return self.original if self._setting is None else self._setting

    @property
    def block_trials(self) -> list[Trial]:
        """All blocks that were measured."""
        return [block.trial for block in self.measured.blocks]

    @property
    def cycle_trials(self) -> list[Trial]:
        """See `DirectedSearch`."""
        return self.block_trials

    @property
    def original_trial(self) -> Trial | None:
        """See `DirectedSearch`."""
        trials = [trial for trial in self.block_trials if trial.setting == self.original]
        return pooled_trial(trials) if trials else None

    @property
    def best(self) -> int | None:
        """The best setting so far, as the boards take it; None if nobody knows."""
        best = self.order.best
        return best if best is None else self._taken.get(best, best)

    @property
    def saving(self) -> tuple[float, float] | None:
        """The energy that the choice saves, as a fraction, and how far it can be off; None if it is not known."""
        comparison = self.measured.comparison(self.chosen)
        if comparison is None or comparison.doubt is not None:
            return None
        return comparison.saving_fraction, comparison.saving_uncertainty

    def run_slowdown(self) -> tuple[float, float] | None:
        """Return the slowdown of the whole run; see `SearchBlocks.run_slowdown`."""
        return self.measured.run_slowdown(self.run.steps, self.choice)

    def rows(self) -> dict[str, str]:
        """Return what an extension of the search knows of activities, as labelled lines."""
        return {}

    def activity_facts(self) -> dict[str, Any]:
        """Return the same by the name of the activity, in JSON types."""
        return {}

    def predicted(self, setting: int) -> Prediction | None:
        """Predict what a setting would do; None if nobody knows. On rank 0 alone."""
        return self._orders.prediction(setting)

    @property
    def reason(self) -> str:
        """The reason for the setting in force."""
        return self.not_changed_because or self.order.reason

    def steps_of(self, phase: Phase) -> int:
        """Return the steps that a phase to come lasts; 0 for a phase that something else ends."""
        match phase:
            case Phase.WAIT:
                return self._options.wait_steps
            case Phase.WARM_UP | Phase.SETTLE:
                return 0 if self._setting == self.choice else self.order.settle_steps
            case _:
                return self.order.steps if phase in MEASURED else 0

    def begin(self) -> PhaseEnd | None:
        """Order the first block; see `conclude`."""

        def tell() -> None:
            if self.limiter.observes:
                self._orders.observe(())
            self._tell_known()
            self._orders.begin_part(lacks_original=self.measured.lacks_original)

        return self._ask(Phase.PREPARE, tell)

    def _tell_known(self) -> None:
        """Report what was measured before."""
        for block in self.measured.blocks:
            self._orders.tell(block.trial, block.run_steps, block.run_seconds)

    def begin_block(self, phase: Phase) -> PhaseEnd | None:
        """Begin a block of steps: apply its setting on all ranks, or observe at the original one if a rank may not.

        It is applied also if it is in force: signals are caught, and the ranks meet.

        Returns:
            `REFUSED` if a board does not enforce it, so that no block begins; else None.
        """
        asked = self.order.setting
        own = self._exchange.make(partial(self.limiter.set, asked), phase=phase)
        taken = -1 if own.taken is None else own.taken
        known = WholeNumbers((), (own.denial is not None, own.refused is not None, taken, -taken))
        is_denied, is_refused, highest, lowest = self._exchange.reduce(lambda: known, phase).largest
        if is_refused and not is_denied:
            answers = self._exchange.gather_of(Answer, lambda: own, phase)
            self.refused[asked] = self._exchange.complaint([answer.refused for answer in answers])
            _logger.warning("%s is not tried: %s", self.kind.text(asked), self.refused[asked])
            self._setting = None
            return PhaseEnd.REFUSED
        if is_denied:
            self._observe(self._exchange.gather_of(Answer, lambda: own, phase))
        elif asked != self.original and highest == -lowest and highest >= 0:
            self._note_taken(asked, min(highest, self.original))
        before, self._setting = self._setting, self.choice
        is_settling = before != self._setting and self._options.warmup_steps is None
        self.block.begin(self._setting, self.order.piece_steps, is_settling)
        if phase is not Phase.WARM_UP and self._setting != self.chosen:
            text = "a %s of %s is chosen for the rest of this training" if self.chosen is None else "the %s moves to %s"
            self.chosen = self._setting
            if self.not_changed_because is None:
                _logger.info(text, self.kind.words, self.kind.text(self.chosen))
        return None

    def count_step(self, is_original: bool) -> None:
        """Count a step that has ended, before the search changes anything (`is_original`) or at the setting in force.

        Call it before the phase changes.

        Raises:
            DeviceHeldError: Another object of this process has taken a GPU over since.
        """
        if self.limiter.setting is None:
            self.limiter.is_undisturbed()
        self.run.steps += 1
        self.block.steps += 1
        if is_original:
            return
        if self.order.is_choice and self.chosen is not None:
            self.chosen_steps += 1
        else:
            self.searched_steps[self.choice] += 1

    def is_to_end_early(self, phase: Phase, steps_left: int) -> bool:
        """Return whether the block under way ends here. All ranks call this at the end of the same steps."""
        order, steps = self.order, self.block.steps
        if not order.is_limited or steps not in CHECKED_STEPS or order.steps - steps_left < _MIN_STEPS:
            return False
        seconds = self.block.seconds(phase)
        return not self._exchange.decide(lambda: self._orders.may_continue(steps, seconds), phase)

    def conclude(self) -> PhaseEnd | None:
        """End the block, and order the next one.

        Returns:
            The outcome; None if an observer is to direct what follows.

        Raises:
            ReplacedError: Somebody else has set the setting of a GPU.
        """
        order = self.order
        if order.setting in self.refused:
            return self._ask(Phase.CONCLUDE, lambda: self._orders.leave_out(order.setting))
        trial = self.block.finish()
        if trial is not None:
            return self._conclude_with(trial)
        if order.steps == 0:  # the choice was confirmed before
            return PhaseEnd.HELD
        if not self.block.is_spoiled:  # interference is no fault of the devices
            self._tries += 1
        if order.is_choice and self._options.is_followed:  # decisions do not wait for an energy
            return self._ask(Phase.CONCLUDE)
        if self.waits or self._tries < _MAX_TRIES:
            self._setting = None  # it is set again
            return PhaseEnd.CHOSEN if order.is_choice else PhaseEnd.ASKED
        if order.is_reference:  # the choice holds without
            return self._ask(Phase.CONCLUDE, lambda: self._orders.note_reference(None))
        if not order.is_choice:
            return self._wait()
        self.order = replace(order, steps=0)  # the choice holds even if its saving stays unknown
        return PhaseEnd.HELD

    def _wait(self) -> PhaseEnd:
        """Measure at the original setting until the energy is known again. Then the search goes on."""
        text = "the search for a %s waits at the original %s, as the energy at %s was lost %d times in a row"
        at = self.kind.text(self.choice)
        _logger.warning(text, self.kind.words, self._original_text, at, self._tries)
        self.waits = True
        if self.order.setting != self.original:
            self.order = replace(self.order, setting=self.original, is_reference=True, is_limited=False)
        self._setting = None
        return PhaseEnd.ASKED

    def _conclude_with(self, trial: Trial) -> PhaseEnd | None:
        if self.block.is_idle and not self.measured.blocks:
            if self.not_changed_because is None:
                self.not_changed_because = "as its GPUs compute nothing"
                _logger.warning("no %s is searched for while no GPU of this job computes anything", self.kind.words)
            return self._ask(Phase.CONCLUDE)
        if not self.limiter.observes and not self.is_held:
            self.not_changed_because = None
        order, block = self.order, MeasuredBlock(trial, self.run.steps, self.run.seconds)
        if order.is_reference:
            self.measured.add_reference(block)
            return self._ask(Phase.CONCLUDE, lambda: self._orders.note_reference(trial))
        if order.is_choice:
            self.measured.add_confirmation(block, order.is_fixed)
        else:
            self.measured.add_trial(block)
        if not (order.is_choice and order.is_fixed):
            self._exchange.attempt(self.save)
        asked = replace(trial, setting=order.setting)
        return self._ask(Phase.CONCLUDE, lambda: self._orders.tell(asked, block.run_steps, block.run_seconds))

    def _ask(self, phase: Phase, tell: Callable[[], object] = lambda: None) -> PhaseEnd | None:
        """Have rank 0 report to its search, and order the next block. Returns as `conclude` does."""

        def decide() -> Order:
            tell()
            order = self._orders.next(self.run.steps, self.run.seconds)
            return self._orders.kept(order, self.measured, self.run.steps)

        self._before, self._tries, self.waits = self.order, 0, False
        self.order = order = self._exchange.decide_of(self.order_type, decide, phase)
        if order.announcement is not None:
            _logger.info("the search for a %s takes %s", self.kind.words, order.announcement)
        return None if self._options.is_followed else self._outcome()

    def go_on(self, setting: int | None, steps: int, reason: str) -> PhaseEnd:
        """Go on as an observer directs, at its setting for so many steps; as the search asked for if None.

        All ranks call this with the same arguments.
        """
        if setting is not None:
            self._orders.is_directed = True
            self.order = replace(
                self.order,
                setting=setting,
                best=setting,
                steps=max(steps, self.order.least_steps),
                is_choice=True,
                is_limited=False,
                reason=reason,
                stepped_aside=None,
            )
        return self._outcome()

    def _outcome(self) -> PhaseEnd:
        before, order = self._before, self.order
        if order.stepped_aside is not None and before.stepped_aside is None:
            stays = "stays at" if set(self.searched_steps) <= {self.original} else "returns to"
            _logger.info("training %s the original %s: %s", stays, self._original_text, order.stepped_aside)
        if not order.is_choice:
            return PhaseEnd.ASKED
        is_moved_a_little = before.is_choice and not order.is_fixed and self.measured.confirmation is not None
        is_in_force = self.chosen == self.choice == self._setting
        return PhaseEnd.HELD if is_in_force or is_moved_a_little else PhaseEnd.CHOSEN

    def rest(self) -> None:
        """Restore the original setting, until the search goes on."""
        self._setting = None
        self._exchange.attempt(lambda: self.limiter.set(self.original))

    def forget(self) -> None:
        """Forget all blocks, also those that are kept."""
        self.measured.forget()
        self.save()

    def states(self, run_seconds: float) -> list[SearchState]:
        """Return what was measured, for a checkpoint after so many seconds of steps; empty before the first trial."""
        blocks = tuple(self.measured.blocks)
        return [SearchState(self.conditions, blocks, self.run.steps, run_seconds)] if blocks else []

    def save(self) -> None:
        """Have the blocks kept, on rank 0."""
        if self._exchange.rank == 0:
            self._store.save(self.conditions, self.block_trials)

    @property
    def _original_text(self) -> str:
        return self.kind.state_text(self.original, is_original=True)

    def _observe(self, answers: Sequence[Answer]) -> None:
        """Change nothing from now on, as a rank may not, or cannot.

        Nothing is measured at a setting that nobody here knows, and nothing predicted that nobody can set.
        """
        denial = self._exchange.complaint([answer.denial for answer in answers])
        self.is_held = any(answer.is_held for answer in answers)
        self._exchange.attempt(lambda: self.limiter.stay(denial, self.is_held))
        self.settings = self.settings[:1]
        self.order = replace(self.order, setting=self.original)
        if self.is_held:
            self.not_changed_because = f"as {denial}"
            self.order = replace(self.order, steps=0, is_limited=False)
            _logger.warning("%ss are not changed, and none is searched for: %s", self.kind.words, denial)
            return
        is_lacking = any(answer.is_lacking for answer in answers)
        self.not_changed_because = f"as {denial}" if is_lacking else "as setting it is not permitted here"
        if self._exchange.rank == 0:
            self._orders.observe(list(self.measured.trials.values()), predicts=not is_lacking)
        _logger.warning(
            "%ss are not changed: %s. Training continues at the original %s, where it is measured",
            self.kind.words,
            denial,
            self._original_text,
        )

    def _note_taken(self, setting: int, taken: int) -> None:
        """Note the setting that all boards take for one that the search asks for: that of trials, results and logs."""
        if self._taken.get(setting) != taken:
            self._taken[setting] = taken
            texts = self.kind.text(setting), self.kind.text(taken)
            _logger.info("for a %s of %s the boards take %s", self.kind.words, *texts)
