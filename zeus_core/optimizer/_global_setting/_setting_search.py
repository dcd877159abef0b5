"""One search for a setting during training: its facts, and the effects of its phases."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from zeus_core.errors import DeviceError
from zeus_core.optimizer._global_setting._limiter import Answer, Limiter
from zeus_core.optimizer._global_setting._measuring import CommonBlock, RunSteps, TrialRecorder
from zeus_core.optimizer._global_setting._orders import CHECKED_STEPS, Order, Orders, SearchArguments
from zeus_core.optimizer._global_setting._phases import MEASURED, Outcome, Phase
from zeus_core.optimizer._global_setting._trials import MeasuredBlocks
from zeus_core.optimizer._trial_store import Conditions, ToldBlock, TrialStore
from zeus_core.ports._exchange import Exchange
from zeus_core.search import Trial
from zeus_core.search.run.run_plan import Prediction
from zeus_core.settings.kinds import Kind

__all__ = ["SettingSearch"]

# Readings are lost while a driver restarts or another process interferes, which passes. More tries lengthen a search
# that cannot succeed; fewer end one that could.
_MAX_TRIES = 3
_MIN_STEPS = 2  # measured before a block may end early: one step has no scatter

_logger = logging.getLogger(__name__)


class SettingSearch:
    """The search of one training, from PREPARE on. It is the same on all ranks, and rank 0 decides.

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

    def __init__(
        self,
        settings: tuple[int, ...],
        conditions: Conditions,
        known: Sequence[ToldBlock],
        limiter: Limiter,
        exchange: Exchange,
        recorder: TrialRecorder,
        store: TrialStore,
        arguments: SearchArguments,
        run: RunSteps,
    ) -> None:
        self.settings: tuple[int, ...] = settings
        """The settings that may be chosen: the original one first, then all lower ones."""
        self.measured: MeasuredBlocks = MeasuredBlocks(known, settings[0])
        """All that was measured."""
        self.chosen: int | None = None
        """The setting that training continues at; None until it is set."""
        self.original: int = settings[0]
        """The highest original setting."""
        self.not_changed_because: str | None = "as it is only observed" if arguments.options.observes else None
        """The reason that settings are not changed; None if they are."""
        self.is_held: bool = False
        """Whether another object or process controls a GPU, so that the setting in force is not known."""
        self.searched_steps: Counter[int] = Counter()
        """The steps of the search at each setting, with those that settle."""
        self.chosen_steps: int = 0
        """The steps at the choice."""
        self.stepped_aside: str | None = None
        """The reason that training stays at the original setting; None if it need not."""
        self.prediction: Prediction | None = None
        """The expected effect of what the selector would choose, where no setting may be changed."""
        self.conditions = conditions
        """The conditions of the blocks."""
        self.run = run
        """The steps of the training so far."""
        self.limiter: Limiter = limiter
        """Applies the settings on this rank."""
        self._exchange = exchange
        self._recorder = recorder
        self._store = store
        self._arguments = arguments
        self.observes: bool = arguments.options.observes
        """Whether no setting is changed."""
        self.best: int | None = None
        """The best setting so far; None if nobody knows."""
        self.run_seconds: float = recorder.run_seconds
        """The time of the steps until the end of the latest block, without pauses of training and outliers."""
        self.is_waiting: bool = False
        """Whether an observer is to direct what follows."""
        self._orders: Orders | None = None  # on rank 0
        self._order = Order(
            self.original,
            1,
            is_choice=False,
            settle_steps=0,
            least_steps=1,
            least_piece_steps=1,
            is_fixed=True,
            is_limited=False,
        )
        self._was_choice = False  # before the present order
        self._asked = self.original  # the setting that the search has asked for
        self._taken: dict[int, int] = {}  # by the setting that was asked for: the one that all boards take for it
        self._setting: int | None = None  # in force
        self._is_changed = False  # before this block
        self.block: CommonBlock = CommonBlock(limiter, exchange, recorder, run)
        """The block under way."""
        self._tries = 0
        self._expected: Prediction | None = None

    @property
    def kind(self) -> Kind:
        """The kind of setting."""
        return self.limiter.kind

    @property
    def unit(self) -> str:
        """The unit of the settings."""
        return self.limiter.kind.unit

    @property
    def max_steps(self) -> int | None:
        """The steps of the training; None if nobody knows."""
        return self._arguments.max_steps

    @property
    def left_steps(self) -> int | None:
        """The steps of the training to come, at least one; None if nobody knows."""
        return None if self.max_steps is None else max(self.max_steps - self.run.steps, 1)

    @property
    def run_steps(self) -> int:
        """The steps of the training so far."""
        return self.run.steps

    @property
    def is_done(self) -> bool:
        """Whether the search has chosen."""
        return self._order.is_choice

    @property
    def present(self) -> int:
        """The setting of the block under way, or of the latest one; the original one before the first."""
        return self.original if self._setting is None else self._setting

    @property
    def block_trials(self) -> list[Trial]:
        """All blocks that were measured."""
        return [block.trial for block in self.measured.blocks]

    def predicted(self, setting: int) -> Prediction | None:
        """Predict what a setting would do; None if nobody knows, and on other ranks than 0."""
        return None if self._orders is None else self._orders.prediction(setting)

    @property
    def in_force(self) -> int | None:
        """The setting in force as far as this rank knows, the highest of its GPUs; None while it rests."""
        return None if self.is_held else self.limiter.setting

    @property
    def is_fixed(self) -> bool:
        """Whether the search is over for good once its choice is confirmed."""
        return self._order.is_fixed

    @property
    def run_slowdown(self) -> tuple[float, float] | None:
        """The slowdown of the whole run; None if it is unknown, and where trials of a fixed length bound each step."""
        if self._order.is_fixed:
            return None
        return self.measured.run_slowdown(self.run.steps, self._order.setting)

    @property
    def reason(self) -> str:
        """The reason for the setting in force."""
        return self.not_changed_because or self._order.reason

    @property
    def expected(self) -> tuple[float, float]:
        """The energy and the duration of a step at the choice, over those at the original setting."""
        if self._expected is not None:
            return 1 - self._expected.saving_fraction, self._expected.slowdown_factor
        before, after = self.measured.trials[self.original], self.measured.trials[self._order.setting]
        return after.joules_per_step / before.joules_per_step, after.seconds_per_step / before.seconds_per_step

    @property
    def choice(self) -> int:
        """The setting that the search would continue at."""
        return self._order.setting

    @property
    def _original_text(self) -> str:
        return self.kind.state_text(self.original, is_original=True)

    @property
    def choice_state(self) -> str:
        """The choice in words, such as "300 W"."""
        return self.kind.state_text(self.choice, is_original=self.choice == self.original)

    @property
    def choice_text(self) -> str:
        """The choice in words, with what it would do and what it took to find."""
        energy_factor, time_factor = self.expected
        steps = sum(steps for setting, steps in self.searched_steps.items() if setting != self.original)
        return (
            f"{self.choice_state}, for {energy_factor - 1:+.1%} energy and {time_factor - 1:+.1%} time as "
            f"far as can be told, after {steps} steps of search"
        )

    def steps_of(self, phase: Phase) -> int:
        """Return the steps that a phase to come lasts; 0 for a phase that something else ends."""
        match phase:
            case Phase.WAIT:
                return self._arguments.options.wait_steps
            case Phase.WARM_UP | Phase.SETTLE:
                return 0 if self._setting == self._order.setting else self._order.settle_steps
            case _:
                return self._order.steps if phase in MEASURED else 0

    def continue_from(self, other: SettingSearch) -> None:
        """Take over the steps that another search has measured at the original settings, where this one has none."""
        self.searched_steps[self.original] = other.searched_steps[other.original]
        self.measured.take_over(other.measured)

    def rest(self) -> None:
        """Restore the original setting, until the search goes on."""
        self._setting = None
        self._exchange.attempt(lambda: self.limiter.set(self.original))

    def begin(self) -> Outcome | None:
        """Ask for the first block."""
        return self._follow(self._exchange.decide_of(Order, self._first_order, Phase.PREPARE))

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
        if self._order.is_choice and self.chosen is not None:
            self.chosen_steps += 1
        else:
            self.searched_steps[self._order.setting] += 1

    def is_to_end_early(self, phase: Phase, steps_left: int) -> bool:
        """Return whether the block under way ends here. All ranks call this at the end of the same steps."""
        order, steps = self._order, self.block.steps
        if not order.is_limited or steps not in CHECKED_STEPS or order.steps - steps_left < _MIN_STEPS:
            return False
        seconds = self.block.seconds(phase)
        may_continue: bool = self._exchange.decide(lambda: self._may_continue(seconds), phase)
        return not may_continue

    def forget(self) -> None:
        """Forget all blocks, also those that are kept."""
        self.measured.forget()
        self.save()

    def save(self) -> None:
        """Have the blocks kept, on rank 0."""
        if self._exchange.rank == 0:
            self._store.save(self.conditions, [block.trial for block in self.measured.blocks])

    def _first_order(self) -> Order:
        self._orders = Orders(self._arguments, self.settings)
        if self.observes:
            self._orders.observe(())
        for block in self.measured.blocks:
            self._orders.tell(block.trial, block.run_steps, block.run_seconds)
        return self._orders.next(self.run.steps, self._recorder.run_seconds)

    def _may_continue(self, seconds: float) -> bool:
        assert self._orders is not None, "rank 0 decides"
        return self._orders.may_continue(self.block.steps, seconds)

    def _follow(self, order: Order) -> Outcome | None:
        """Take an order of rank 0. Returns its outcome; None if an observer is to direct what follows."""
        self._asked = order.setting
        best = None if order.best is None else self._taken.get(order.best, order.best)
        order = replace(order, setting=self._taken.get(order.setting, order.setting), best=best)
        self._was_choice, self._order, self._tries = self._order.is_choice, order, 0
        self.prediction, self.best, self._expected = order.prediction, order.best, order.expected
        if order.announcement is not None:
            _logger.info("the search for a %s takes %s", self.limiter.kind.words, order.announcement)
        self.is_waiting = self._arguments.options.is_followed
        return None if self.is_waiting else self._outcome()

    def go_on(self, setting: int | None = None, steps: int = 0, reason: str = "") -> Outcome:
        """Go on after having waited, at a setting of the observer's for so many steps; as the search asked for if None.

        All ranks call this with the same arguments.
        """
        self.is_waiting = False
        if setting is not None:
            if self._orders is not None:
                self._orders.is_directed = True
            self._asked = setting
            setting = self.best = self._taken.get(setting, setting)
            steps = max(steps, self._order.least_steps)
            self._order = replace(
                self._order,
                setting=setting,
                steps=steps,
                is_choice=True,
                is_limited=False,
                reason=reason,
                stepped_aside=None,
            )
        return self._outcome()

    def _outcome(self) -> Outcome:
        order = self._order
        if order.stepped_aside is not None and self.stepped_aside is None:
            _logger.info("training stays at the original %s: %s", self._original_text, order.stepped_aside)
        self.stepped_aside = order.stepped_aside
        if not order.is_choice:
            return Outcome.ASKED
        is_moved_a_little = self._was_choice and not order.is_fixed and self.measured.confirmation is not None
        is_in_force = self.chosen == order.setting == self._setting
        return Outcome.HELD if is_in_force or is_moved_a_little else Outcome.CHOSEN

    def begin_block(self, phase: Phase) -> None:
        """Begin a block of steps: apply its setting on all ranks, or observe at the original one if a rank may not.

        It is applied also if it is in force: signals are caught, and the ranks meet.
        """
        before, asked = self._setting, self._asked
        tell = Answer if self.observes else partial(self.limiter.set, asked)
        answers = self._exchange.gather_of(Answer, tell, phase)
        if any(answer.denial for answer in answers):
            self._observe(answers)
        else:
            taken = answers[0].taken
            if asked != self.original and taken is not None and all(answer.taken == taken for answer in answers):
                self._note_taken(asked, min(taken, self.original))
        self._setting = self._order.setting
        self._is_changed = before != self._setting
        self.block.begin(self._order.piece_steps)
        if phase is not Phase.WARM_UP:
            self._choose(self._order.setting)

    def _choose(self, setting: int) -> None:
        if setting != self.chosen:
            kind, is_first, self.chosen = self.limiter.kind, self.chosen is None, setting
            text = "a %s of %d %s is chosen for the rest of this training" if is_first else "the %s moves to %d %s"
            _logger.info(text, kind.words, setting, kind.unit)

    def conclude(self) -> Outcome | None:
        """End the block, and ask for the next one.

        Returns:
            The outcome; None if an observer is to direct what follows.

        Raises:
            ReplacedError: Somebody else has set the setting of a GPU.
        """
        is_settling = self._is_changed and self._arguments.options.warmup_steps is None
        block = self.block.finish(self._order.setting, is_settling)
        trial, run_seconds = block.trial, block.run_seconds
        self.run_seconds = run_seconds
        if trial is not None:
            return self._conclude_with(trial, run_seconds)
        if self._order.steps == 0:  # the choice was confirmed before
            return Outcome.HELD
        if not block.is_spoiled:  # interference is no fault of the devices
            self._tries += 1
        if self._order.is_choice and self._arguments.options.is_followed:  # decisions do not wait for an energy
            return self._follow(self._exchange.decide_of(Order, lambda: self._order_at(run_seconds), Phase.CONCLUDE))
        if self._tries < _MAX_TRIES:
            self._setting = None  # it is set again
            return Outcome.CHOSEN if self._order.is_choice else Outcome.ASKED
        if not self._order.is_choice:
            at = f"{self._order.setting} {self.limiter.kind.unit}"
            raise DeviceError(f"the energy at {at} was lost {self._tries} times in a row")
        self._order = replace(self._order, steps=0)  # the choice holds even if its saving stays unknown
        return Outcome.HELD

    def _conclude_with(self, trial: Trial, run_seconds: float) -> Outcome | None:
        block = ToldBlock(trial, self.run.steps, run_seconds)
        if self._order.is_choice:
            self.measured.add_confirmation(block, self._order.is_fixed)
        else:
            self.measured.add_trial(block)
        if not (self._order.is_choice and self._order.is_fixed):
            self._exchange.attempt(self.save)
        return self._follow(
            self._exchange.decide_of(Order, lambda: self._next_order(trial, run_seconds), Phase.CONCLUDE)
        )

    def _next_order(self, trial: Trial, run_seconds: float) -> Order:
        assert self._orders is not None, "rank 0 decides"
        self._orders.tell(replace(trial, setting=self._asked), self.run.steps, run_seconds)
        return self._order_at(run_seconds)

    def _order_at(self, run_seconds: float) -> Order:
        assert self._orders is not None, "rank 0 decides"
        return self._orders.next(self.run.steps, run_seconds)

    def _observe(self, answers: Sequence[Answer]) -> None:
        """Change nothing from now on, as a rank may not. Nothing is measured at a setting that nobody here knows."""
        denial = self._exchange.complaint([answer.denial for answer in answers])
        self.is_held = any(answer.is_held for answer in answers)
        self._exchange.attempt(lambda: self.limiter.stay(denial, self.is_held))
        self.observes = True
        self.settings = self.settings[:1]
        self._order = replace(self._order, setting=self.original)
        if self.is_held:
            self.not_changed_because = f"as {denial}"
            self._order = replace(self._order, steps=0, is_limited=False)
            _logger.warning("%ss are not changed, and none is searched for: %s", self.limiter.kind.words, denial)
            return
        self.not_changed_because = "as setting it is not permitted here"
        if self._orders is not None:
            self._orders.observe(list(self.measured.trials.values()))
        _logger.warning(
            "%ss are not changed: %s. Training continues at the original %s, where it is measured",
            self.limiter.kind.words,
            denial,
            self._original_text,
        )

    def _note_taken(self, setting: int, taken: int) -> None:
        """Note the setting that all boards take for one that the search asks for: that of trials, results and logs."""
        if self._taken.get(setting) != taken:
            self._taken[setting] = taken
            kind = self.limiter.kind
            _logger.info("for a %s of %d %s the boards take %d", kind.words, setting, kind.unit, taken)
        self._order = replace(self._order, setting=taken)
