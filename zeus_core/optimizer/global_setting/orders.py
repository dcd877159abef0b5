"""The search of rank 0, and what it has all ranks do next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from zeus_core.optimizer.global_setting.search_options import DEFAULT_STEPS, SETTLE_UPDATES, SearchArguments
from zeus_core.optimizer.global_setting.trials import SearchBlocks
from zeus_core.search import Trial
from zeus_core.search.comparison import Comparison, percentage
from zeus_core.search.run.fixed_trials import FixedTrials
from zeus_core.search.run.run_plan import Prediction
from zeus_core.search.run.run_search import Block, RunSearch
from zeus_core.search.verdict import is_worth_keeping

if TYPE_CHECKING:
    from zeus_core.search.adaptive_search import AdaptiveSearch

# In updates of the energy counter. Fewer say little of the power; more lengthen the trials of quick steps.
_MIN_BLOCK_UPDATES = 5
_MIN_PIECE_UPDATES = 3
_PIECES = 8  # of a block: one that is left out costs so little, and they are enough to tell whether the GPU has settled
_MIN_BASELINE_STEPS, _MAX_BASELINE_SHARE = 10, 0.05  # at the original setting in a run that is resumed; of its rest
# A choice whose saving may be none is measured until the last of so many parts of the run; or, in a run whose end
# nobody knows, until the edges of its blocks at an energy counter add less than 0.1 % (0.1 s of 120).
_LAST_SHARE, _LONG_ENOUGH_SECONDS = 8, 120.0
_FIRST = "it is measured once more, as steps of another process are not comparable"
_LAST = "it is measured once more, to see whether the work or the machine has changed since the search began"
_UNKNOWN_SETTLE_STEPS = 2  # where nobody knows how long a step is


@dataclass(frozen=True)
class Order:
    """The next block of steps of all ranks.

    Attributes:
        setting: The setting that the search, or an observer, asks for.
        steps: How many steps are measured at it; 0 for none any more.
        is_choice: Whether the search is over, and this is its choice.
        settle_steps: The steps before them, if the setting is changed.
        least_steps: The fewest steps of a block, as long as a number of updates of the energy counter.
        least_piece_steps: The same of a piece of it.
        is_fixed: Whether the search is over for good once its choice is confirmed.
        is_reference: Whether these steps are to compare others with, and nothing that the search has asked for.
        is_limited: Whether the search may end the block early.
        reason: The reason for this setting, for people.
        best: The best setting so far; None if nobody knows.
        announcement: The cost of the search, said once in advance.
        stepped_aside: The reason that training stays at the original setting; None if it need not.
        prediction: The expected effect of what the selector would choose, where no setting may be changed.
        expected: The expected effect of the choice; None if the search does not predict it.
    """

    setting: int
    steps: int
    is_choice: bool
    settle_steps: int = 0
    least_steps: int = 1
    least_piece_steps: int = 1
    is_fixed: bool = True
    is_reference: bool = False
    is_limited: bool = False
    reason: str = ""
    best: int | None = None
    announcement: str | None = None
    stepped_aside: str | None = None
    prediction: Prediction | None = None
    expected: Prediction | None = None

    @property
    def piece_steps(self) -> int:
        """The steps of a piece of the block."""
        return max(math.ceil(self.steps / _PIECES), self.least_piece_steps)


class Orders:
    """Asks a search what to do next, and says it so that all ranks can do it. That of rank 0 alone is asked.

    Args:
        arguments: Make the search, once it is needed.
        settings: The settings, the original one first.
    """

    def __init__(self, arguments: SearchArguments, settings: tuple[int, ...]) -> None:
        self._arguments = arguments
        self._settings = settings
        self.is_directed: bool = False
        """Whether an observer directs training: the search is over."""
        self.lacks_original: bool = False
        """Whether the original setting is to be measured before more steps at the choice."""
        self._predictor: AdaptiveSearch | None = None
        self._has_announced = False
        self._reported: list[tuple[Trial, int, float]] = []
        self._latest: dict[int, Trial] = {}  # the latest block at each setting
        self._chosen: int | None = None
        self._left_because: str | None = None  # the reason that the choice was left for the original
        self._cut_short: int | None = None  # the setting of a block that ended early: the next one there does not
        self._seconds_per_step: float | None = None

    @cached_property
    def _search(self) -> RunSearch:
        return self._arguments.search(self._settings)

    @property
    def _fixed_trials(self) -> FixedTrials | None:
        """The search, if it is over for good once its choice is confirmed."""
        search = self._search
        return search if isinstance(search, FixedTrials) and not self._arguments.options.is_followed else None

    def observe(self, trials: Sequence[Trial], predicts: bool = True) -> None:
        """Measure at the original setting alone from now on, and predict the rest. These trials were made before."""
        self._search, self.is_directed = self._arguments.search(self._settings[:1]), False
        if predicts and self._arguments.kind.has_curves:
            self._predictor = self._arguments.predictor(self._settings, self._arguments.selector)
        for trial in trials:
            self.tell(trial, 0, 0.0)

    def tell(self, trial: Trial, run_steps: int, run_seconds: float) -> None:
        """Report a block to the search; see `RunSearch.tell`."""
        self._seconds_per_step = trial.seconds_per_step
        self._latest[trial.setting] = trial
        if trial.setting == self._settings[0]:
            self.lacks_original = False
        if self._predictor is not None:
            self._predictor.tell(trial)
            if trial.setting != self._settings[0]:
                return
        if not self.is_directed:
            self._reported.append((trial, run_steps, run_seconds))
            self._search.tell(trial, run_steps, run_seconds)
            self.lacks_original |= self._is_one_sided(run_steps, trial.steps)

    def _is_one_sided(self, run_steps: int, steps: int) -> bool:
        """Return whether fixed trials and a choice were compared with earlier steps at the original alone.

        If the load of the machine changed right after those, that would be the saving, or the slowdown. Where the
        training ends first, no other visit of the original is made.
        """
        search, max_steps = self._fixed_trials, self._arguments.max_steps
        if search is None or not search.is_confirmed or self._settings[0] not in self._latest:
            return False
        return max_steps is None or run_steps + 2 * steps <= max_steps

    def begin_part(self, *, lacks_original: bool) -> None:
        """Begin a part of the run, after its earlier blocks were reported; see `SearchBlocks.lacks_original`."""
        self.lacks_original = lacks_original
        self._latest.clear()

    def note_reference(self, trial: Trial | None) -> None:
        """Note steps at the original setting that the search did not ask for; None if their energy was lost."""
        self.lacks_original = False
        if trial is not None:
            self._latest[self._settings[0]] = trial

    def leave_out(self, setting: int) -> None:
        """Search without a setting that cannot be had: by a new search, which has all reports of the one before."""
        self._settings = tuple(one for one in self._settings if one != setting)
        self._search = self._arguments.search(self._settings)
        for reported in self._reported:
            self._search.tell(*reported)

    def may_continue(self, steps: int, seconds: float) -> bool:
        """Return whether the block may go on; see `RunSearch.may_continue`."""
        may_continue = self._search.may_continue(steps, seconds)
        self._cut_short = None if may_continue else self._search.ask().setting
        return may_continue

    def next(self, run_steps: int, run_seconds: float) -> Order:
        """Return what to do next, so many steps into the run."""
        if self._seconds_per_step is None and run_steps > 0:
            self._seconds_per_step = run_seconds / run_steps
        search, options = self._search, self._arguments.options
        block, least_steps = search.ask(), self._steps_of(_MIN_BLOCK_UPDATES) or 1
        steps, is_fixed, is_confirmed = max(block.steps, least_steps), False, False
        if (fixed := self._fixed_trials) is not None:
            is_fixed, is_confirmed = True, fixed.is_confirmed
            steps = 0 if is_confirmed else block.steps
        cut_short, self._cut_short = self._cut_short, None
        settle_steps = options.warmup_steps
        if settle_steps is None:
            settle_steps = self._steps_of(SETTLE_UPDATES) or _UNKNOWN_SETTLE_STEPS
        # Trials of a fixed length are compared once the search is over: then this is measured beside its choice.
        is_first = self.lacks_original and block.setting != self._settings[0] and (search.is_done or not is_fixed)
        if is_first:
            steps = block.steps if is_fixed else max(self._baseline_steps(run_steps), least_steps)
            block = Block(self._settings[0], steps, is_choice=False)
        is_choice, again = search.is_done and not is_first, _LAST if is_confirmed else _FIRST
        return Order(
            setting=block.setting,
            steps=steps,
            is_choice=is_choice,
            settle_steps=settle_steps,
            least_steps=least_steps,
            least_piece_steps=self._steps_of(_MIN_PIECE_UPDATES) or 1,
            is_fixed=is_fixed,
            is_reference=is_fixed and is_first,
            is_limited=not is_fixed and block.setting != cut_short,
            reason=again if is_first else self._reason(block.setting, is_choice, cut_short),
            best=search.choice,
            announcement=self._announcement(),
            stepped_aside=search.stepped_aside,
            prediction=None if self._predictor is None else self._predictor.prediction(),
            expected=search.prediction() if search.is_done else None,
        )

    def kept(self, order: Order, measured: SearchBlocks, run_steps: int) -> Order:
        """Return an order; near the end of the run the original in place of a choice whose saving may be none.

        Until then such a choice is measured. In a run without a known end, that is for so many seconds at choices.
        """
        doubtful, max_steps = self._doubtful(order, measured), self._arguments.max_steps
        if self._left_because is None and doubtful is not None:
            steps_left = math.inf if max_steps is None else max_steps - run_steps
            last_steps = max((max_steps or 0) // _LAST_SHARE, order.least_steps)
            seconds = sum(trial.measurement.time for trial in measured.at_choices.values())
            if steps_left > last_steps + order.settle_steps and (max_steps or seconds < _LONG_ENOUGH_SECONDS):
                return replace(order, steps=round(min(order.steps, steps_left - last_steps)))
            at = self._arguments.kind.text(order.setting)
            saving = percentage(doubtful.saving_fraction, doubtful.saving_uncertainty)
            self._left_because = f"{at} is not kept, as its saving may be none: {saving} of the energy of a step"
        if self._left_because is None or not order.is_choice:
            return order
        return replace(
            order,
            setting=self._settings[0],
            best=self._settings[0],
            reason="the saving of the choice is not certain",
            stepped_aside=self._left_because,
        )

    def _doubtful(self, order: Order, measured: SearchBlocks) -> Comparison | None:
        """Return the comparison of a choice whose interval of the saving holds 0; None of another choice."""
        options = self._arguments.options
        if not order.is_choice or order.is_fixed or options.is_followed or options.is_extended:
            return None
        comparison = measured.comparison(order.setting)
        is_certain = comparison is None or is_worth_keeping(self._arguments.selector, comparison)
        return None if is_certain else comparison

    def _reason(self, setting: int, is_choice: bool, cut_short: int | None) -> str:
        """Return the reason for a setting. `cut_short` is that of a block that was too slow to go on; None for none."""
        before, original = self._chosen, self._latest.get(self._settings[0])
        if not is_choice:
            is_known = setting == self._settings[0] and original is not None
            return "the search measures it once more" if is_known else "the search tries it"
        self._chosen = setting
        latest = None if before is None else self._latest.get(before)
        if before in (None, setting, self._settings[0]) or original is None or latest is None:
            return "the search has chosen it"
        time = latest.seconds_per_step / original.seconds_per_step - 1
        energy = latest.joules_per_step / original.joules_per_step - 1
        text = f"the choice moves: at {self._arguments.kind.text(before)} a step took {time:+.1%} time and "
        return f"{text}{energy:+.1%} energy{', longer than expected' if cut_short == before else ''}"

    def prediction(self, setting: int) -> Prediction | None:
        """Predict what a setting would do; None if nobody knows."""
        return self._search.prediction(setting)

    def _baseline_steps(self, run_steps: int) -> int:
        """Return the steps at the original setting with which a run that is resumed compares all others."""
        max_steps = self._arguments.max_steps
        left = math.inf if max_steps is None else _MAX_BASELINE_SHARE * (max_steps - run_steps)
        return math.ceil(max(min(DEFAULT_STEPS, left), _MIN_BASELINE_STEPS))

    def _steps_of(self, updates: int) -> int | None:
        """Return the steps that last so many updates of a counter; None if nobody knows how long a step is."""
        if not self._seconds_per_step:
            return None
        return math.ceil(updates * self._arguments.period_seconds / self._seconds_per_step)

    def _announcement(self) -> str | None:
        cost = None if self._has_announced else self._search.cost
        if cost is None:
            return None
        self._has_announced = True
        return str(cost)
