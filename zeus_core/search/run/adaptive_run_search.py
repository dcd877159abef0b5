"""The adaptive search within a run of training: its own steps are a part of what it minimises."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from zeus_core.search._aims import aim_for, best_place
from zeus_core.search._curves import Array
from zeus_core.search._next_trial import most_promising
from zeus_core.search._observation import Observation
from zeus_core.search._prior import CurvePrior, read_prior
from zeus_core.search._search import checked_settings, is_usable, selected
from zeus_core.search.adaptive_search import AdaptiveSearch, predicted
from zeus_core.search.belief import Curves, Knob
from zeus_core.search.comparison import POWER_CV, Comparison
from zeus_core.search.objectives import OptimumSelector, longest_factor
from zeus_core.search.run._block_lengths import MIN_BLOCK_STEPS, BlockLengths, planned_share
from zeus_core.search.run._run_estimate import RunBlock, RunEstimate, pooled_cv
from zeus_core.search.run.run_account import RunAccount, Spare
from zeus_core.search.run.run_plan import Prediction, RunProgress, SearchCost, search_cost
from zeus_core.search.run.run_search import Block
from zeus_core.search.trial import Trial

MAX_TRIAL_OF_REST = 0.6  # of the steps to come: for a trial, with the steps in which the device settles
_MAX_COST_TRIALS = 5

# So late in the run, time that is left over buys little, for a setting that the run would end at by chance: the choice
# only moves to safer settings.
_LATE_SHARE = 0.125

# A run may be beyond its bound by more than this with so much of the probability with which it may be beyond at all.
# Bounds kept with 98 % alone were broken by more than 1 % in 4 of 3,600 runs, by up to 1.2 % (search_run.py).
MAX_EXCESS, EXCESS_SHARE = 0.01, 0.005

_ALONE: Spare = (0.0, 0.0)  # what the other activities of a run leave of its bound, where there are none

MIN_GAIN = 0.003  # of the energy: where a better setting is likely to keep the bound, it is tried
_LIKELY = 0.5
_SURPRISE = 3.0  # standard deviations
_DRIFT = 0.01  # of the duration of the steps of a block, for that


class AdaptiveRunSearch:
    """A `RunSearch` that needs few trials, by what is known of GPUs, and keeps a bound for the whole run.

    It measures the original setting first, for about (N cv)^(2/3) of N steps whose durations have a coefficient of
    variation cv; under a tight bound for more, up to half of the run, in turns with the choice. It tries the setting
    that is best by its expectation, and continues at the best one that keeps the bound with the probability
    `confidence`: the whole run, this search included, lasts no longer than the factor times its duration at the
    original setting. Every block corrects the estimate, so the choice moves closer to the bound as more is known. The
    best is the least energy; for `MaxSlowdownConstraint`, the lowest setting that takes no more energy than any higher
    one that was measured. A drift of the work is estimated together with the curves.

    For costs (`Energy`, `ZeusCost`, an `Objective` of your own) it tries where most is to be gained, and continues at
    the lowest expected cost. It does not bound their time. Another rule of your own is asked like in `AdaptiveSearch`.

    Args:
        settings: The settings. The highest one is the original.
        selector: The rule for the best setting. A slowdown bound is for the whole run.
        knob: "power limit" if the settings are watts, "clock" if they are MHz.
        confidence: The probability with which a slowdown bound is to be kept, at least 0.5.
        max_steps: The steps of the whole run. If nobody knows, it is taken to last as long again as it has.
        settle_seconds: The time in which the device settles after a change.
        prior: The curves of known GPUs; the file that ships with the package if None.

    Raises:
        UsageError: An argument is wrong; the message names it.
    """

    def __init__(
        self,
        settings: Sequence[int],
        selector: OptimumSelector,
        *,
        knob: Knob = "power limit",
        confidence: float = 0.98,
        max_steps: int | None = None,
        settle_seconds: float = 2.0,
        prior: CurvePrior | None = None,
    ) -> None:
        self._settings = checked_settings(settings)
        self._search = AdaptiveSearch(self._settings, selector, knob=knob, confidence=confidence, prior=prior)
        self._selector, self._confidence = selector, confidence
        self._aim, self._bound = aim_for(selector, confidence), longest_factor(selector)
        self._factor = self._bound  # that of these steps
        self._others: tuple[Spare, Spare] = (_ALONE, _ALONE)  # of the bound, and of one that is 1 % higher
        self._max_steps = max_steps
        self._settle_seconds = settle_seconds
        self._estimate = RunEstimate(self._settings, read_prior() if prior is None else prior, self._search.kind)
        self._blocks: list[RunBlock] = []
        self._run_steps, self._run_seconds = 0, 0.0
        self._earlier_steps = 0  # of the blocks of an earlier run
        self._seconds: dict[int, float] = defaultdict(float)
        self._curves: Curves | None = None
        self._planned_share: float | None = None  # of the run, at the original setting
        self._chosen = self._expected = 0
        self._excluded = len(self._settings)  # the place from which on steps were beyond the bound
        self._doubted: int | None = None  # the place of a choice that was left, until the original was measured again
        self._is_done = self._has_begun = False
        self._prediction: Prediction | None = None  # of the next block; asked for after every few of its steps
        self._next = self._decided()

    def ask(self) -> Block:
        """Return the next block."""
        return self._next

    def may_continue(self, steps: int, seconds: float) -> bool:
        """Return whether the run can afford the block asked for, and whether it is as fast as expected."""
        factor, block = self._factor, self._next
        if factor is None or self._curves is None or block.setting == self._settings[0] or steps < MIN_BLOCK_STEPS:
            return True
        run = self._progress
        slowdown_factor = seconds / steps / run.original_seconds
        if steps >= run.affordable_steps(factor, slowdown_factor):
            return False
        if not block.is_choice:
            return True
        if self._prediction is None:
            self._prediction = predicted(self._curves, self._settings.index(block.setting))
        prediction = self._prediction
        error = math.hypot(
            math.log(prediction.slowdown_interval[1] / prediction.slowdown_factor),
            pooled_cv(self._blocks) / math.sqrt(steps),
            _DRIFT,
        )
        return slowdown_factor <= prediction.slowdown_factor * math.exp(_SURPRISE * error)

    def tell(self, trial: Trial, run_steps: int, run_seconds: float) -> None:
        """Take in a block. One at a setting that is not in the grid, or without a finite cost, teaches nothing."""
        if run_steps == 0 and self._run_steps == 0:
            self._learn(trial, self._earlier_steps)
            self._earlier_steps += trial.steps
            return
        run_steps = max(self._run_steps + trial.steps, run_steps)
        seconds = trial.measurement.time
        least_seconds = self._run_seconds + (seconds if math.isfinite(seconds) else 0.0)
        run_seconds = max(least_seconds, run_seconds) if math.isfinite(run_seconds) else least_seconds
        nearest = min(range(len(self._settings)), key=lambda place: abs(self._settings[place] - trial.setting))
        self._seconds[nearest] += run_seconds - self._run_seconds
        self._run_steps, self._run_seconds = run_steps, run_seconds
        self._learn(trial, self._earlier_steps + run_steps - trial.steps)

    def _learn(self, trial: Trial, begin: int) -> None:
        if is_usable(trial) and trial.setting in self._settings:
            self._blocks.append(RunBlock(begin, trial))
            self._search.tell(trial)
        self._next, self._prediction = self._decided(), None

    @property
    def is_done(self) -> bool:
        """Whether no trial is planned."""
        return self._is_done

    @property
    def choice(self) -> int | None:
        """The setting that training would continue at now; None before the original was measured."""
        return None if self._curves is None else self._settings[self._chosen]

    @property
    def cost(self) -> SearchCost | None:
        """The cost of the rest of the search, and what it brings; None before the original was measured."""
        if self._curves is None:
            return None
        lengths = self._lengths
        trial_steps = 0 if self._is_done else lengths.settled_trial_steps
        prediction = predicted(self._curves, self._expected)
        return search_cost(lengths.run, prediction, lengths.original_steps_left, trial_steps, self._factor)

    @property
    def stepped_aside(self) -> str | None:
        """The reason that the run stays at its original setting."""
        if not self.is_done or self._chosen > 0:
            return None
        text, horizon = self._search.kind.text, self._progress.horizon_steps
        original = text(self._settings[0])
        if len(self._settings) == 1:
            return f"{original} is the only setting"
        beyond = self._excluded if self._doubted is None else self._doubted
        if self._factor is not None and beyond < len(self._settings):
            return f"steps at {text(self._settings[beyond])} took more than {self._factor:g} times as long"
        if self._factor is None:
            return f"no setting below {original} is expected to cost less"
        return (
            f"no setting below {original} is known to save energy and to keep this run of {horizon:,} steps within "
            f"{self._bound:g} times its duration with a probability of {self._confidence:.1%}"
        )

    def prediction(self, setting: int | None = None) -> Prediction | None:
        """Predict what a setting would do, by default the choice; None before the original was measured."""
        if self._curves is None:
            return None
        chosen = self._settings[self._chosen]
        place = self._settings.index(chosen if setting is None else setting)
        return predicted(self._curves, place)

    @property
    def _progress(self) -> RunProgress:
        if self._estimate.changed:  # as if the steps so far had done the work of now
            seconds, slowdowns = self._seconds_since(), self._slowdowns
            original = math.fsum(seconds / slowdowns[place] for place, seconds in self._seconds.items())
            so_far = self._run_seconds / original * self._run_steps * seconds if self._run_steps else 0.0
            return RunProgress(self._run_steps, so_far, seconds, self._max_steps)
        at_original = [block.trial for block in self._blocks if block.trial.setting == self._settings[0]]
        steps = sum(trial.steps for trial in at_original)
        seconds = math.fsum(trial.measurement.time for trial in at_original) / steps if steps else 1.0
        return RunProgress(self._run_steps, self._run_seconds, seconds, self._max_steps)

    @property
    def _lengths(self) -> BlockLengths:
        return BlockLengths(
            self._progress,
            pooled_cv(self._blocks),
            sum(block.trial.steps for block in self._blocks if block.trial.setting == self._settings[0]),
            self._settle_seconds,
            is_bound=self._factor is not None,
            planned_share=self._planned_share,
            has_begun=self._has_begun,
            is_unknown=not self._run_seconds and not self._blocks,
        )

    @property
    def _trial_steps(self) -> int:
        """The steps of the next trial."""
        return self._lengths.trial_steps

    @property
    def _account(self) -> RunAccount:
        run = self._progress
        if not self._run_steps:  # all is still to come: as after one step at the original setting
            return RunAccount(1, run.steps_left, {0: run.original_seconds})
        planned_steps = 0 if self._planned_share is None else self._lengths.original_steps_left
        return RunAccount(self._run_steps, run.steps_left, self._seconds, self._seconds_to_come, planned_steps)

    @property
    def _seconds_to_come(self) -> float | None:
        """The duration of a step to come at the original setting; None for that of those so far."""
        return self._seconds_since() if self._estimate.changed else None

    @property
    def _slowdowns(self) -> list[float]:
        """The expected duration of a step at each setting over that at the original one."""
        curves = self._curves
        if curves is None:
            return [1.0] * len(self._settings)
        return [float(one) for one in curves.mean(np.exp(curves.log_seconds - curves.log_seconds[:, :1]))]

    def _seconds_since(self, begin: float = 0.0) -> float:
        """Return the duration of a step since a step of the run, and since the work has changed, at the original."""
        blocks, slowdowns = self._blocks[self._estimate.changed :], self._slowdowns
        blocks = [block for block in blocks if block.begin + block.trial.steps > begin] or blocks[-1:]
        slowed = [block.trial.steps * slowdowns[self._settings.index(block.trial.setting)] for block in blocks]
        return math.fsum(block.trial.measurement.time for block in blocks) / math.fsum(slowed)

    def _decided(self) -> Block:
        """Estimate the curves, and return the next block."""
        original = self._settings[0]
        if not any(block.trial.setting == original for block in self._blocks):
            return Block(original, self._lengths.shortest_steps, is_choice=True)
        curves = self._curves = self._estimate.after(self._blocks)
        self._share_bound(curves)
        if not self._progress.steps_left:
            return self._next
        if self._factor is not None:
            share = None if self._lengths.is_noisy else self._best_share(curves, self._factor)
            # Work that gets faster looks like settings that cost no time, for which fewer of these steps would do.
            if not self._has_begun or (share or 0.0) > (self._planned_share or 0.0):
                self._planned_share = share
        if self._factor is not None and self._is_to_be_left(self._factor):
            self._chosen, self._expected, self._is_done = 0, 0, True
            return Block(original, self._lengths.trial_steps, is_choice=True)
        chosen, trial = self._judged(curves)
        lengths = self._lengths
        if lengths.missing_steps > 0:
            self._is_done = self._has_begun and trial is None
            self._expected = chosen if trial is None else trial
            return Block(original, lengths.original_steps, is_choice=self._chosen == 0)
        if self._has_begun and self._progress.steps_left <= _LATE_SHARE * self._progress.horizon_steps:
            chosen, trial = min(chosen, self._chosen), None
        self._has_begun = True
        self._chosen, self._is_done = chosen, trial is None
        if trial is not None:
            self._expected = trial
            return Block(self._settings[trial], self._trial_steps, is_choice=False)
        self._expected = chosen
        return Block(self._settings[chosen], lengths.choice_steps, is_choice=True)

    def _share_bound(self, curves: Curves) -> None:
        """Find the part of the bound that these steps may use; all of it, unless they are one activity of several."""

    def _best_share(self, curves: Curves, factor: float) -> float | None:
        """Return the share of the run at its original setting with which it saves most; None for the usual one."""
        return planned_share(curves, self._progress, factor, self._confidence, pooled_cv(self._blocks))

    def _group_costs(self, log_joules: Array) -> Array:
        """Return the logarithm of the energy at each setting, with that of other activities that follow it."""
        return log_joules

    def _is_to_be_left(self, factor: float) -> bool:
        """Return whether the choice is to be left for the original: its latest steps were certainly beyond the bound.

        The estimate knows usual curves and drifts, and takes the rest for one of them. Steps at the original, measured
        next, tell whether the work has got slower. If not, this choice and all below it are excluded.
        """
        latest = {block.trial.setting: block.trial for block in self._blocks}
        place = self._chosen if self._doubted is None else self._doubted
        if place == 0 or self._settings[place] not in latest:
            return False
        comparison = Comparison(latest[self._settings[0]], latest[self._settings[place]])
        lowest = comparison.slowdown_factor - comparison.slowdown_uncertainty
        is_beyond = lowest > max(factor, self._progress.factor_left(factor))
        measured = self._blocks[-1].trial.setting
        if measured == self._settings[0] and self._doubted is not None:
            self._doubted = None
            if is_beyond:
                self._excluded = min(self._excluded, place)
        elif measured == self._settings[place] and is_beyond:
            self._doubted = place
        return self._doubted is not None

    def _judged(self, curves: Curves) -> tuple[int, int | None]:
        """Return the places of the choice and of the next trial."""
        tried = {self._settings.index(block.trial.setting) for block in self._blocks}
        if self._factor is not None:
            return self._judged_by_bound(curves, tried, self._bound or self._factor)
        if self._aim is None:
            return self._judged_by_rule(tried)
        try:
            prospects = self._aim.prospects(curves, self._alike.seconds_stderr)
        except Exception:  # a cost of the user's may raise anything
            return self._judged_by_rule(tried)
        chosen = int(np.where(prospects.keeps, prospects.expected_costs, math.inf).argmin())
        untried = sorted(set(range(len(self._settings))) - tried)
        trial = most_promising(curves, prospects, chosen, untried, self._alike)
        return chosen, None if len(tried) > _MAX_COST_TRIALS else trial

    def _judged_by_bound(self, curves: Curves, tried: set[int], factor: float) -> tuple[int, int | None]:
        log_joules = self._group_costs(curves.mean(curves.log_seconds + curves.log_watts))
        account, (others, others_nearly) = self._account, self._others
        keeps = account.keeps(curves, factor, others)
        nearly_keeps = account.keeps(curves, factor * (1 + MAX_EXCESS), others_nearly)
        keeps[self._excluded :] = 0.0
        keeps[0] = 1.0
        nearly_keeps[keeps == 1.0] = 1.0
        may_exceed = EXCESS_SHARE * (1 - self._confidence)
        chosen, likely = (
            best_place(self._selector, log_joules, is_known, tried)
            for is_known in (
                (keeps >= self._confidence) & (nearly_keeps >= 1 - may_exceed),
                keeps >= min(_LIKELY, self._confidence),
            )
        )
        lengths = self._lengths
        is_affordable = lengths.settled_trial_steps <= MAX_TRIAL_OF_REST * lengths.run.steps_left
        pays = log_joules[chosen] - log_joules[likely] >= MIN_GAIN and is_affordable
        return chosen, likely if pays and not lengths.is_noisy and len(tried) == 1 else None

    def _judged_by_rule(self, tried: set[int]) -> tuple[int, int | None]:
        """Ask for the trials of an `AdaptiveSearch`; then have the rule choose among them."""
        asked = self._search.ask()
        choice = self._search.choice
        if choice is None:
            choice = selected(self._selector, [block.trial for block in self._blocks])
        chosen = 0 if choice is None else self._settings.index(choice)
        trial = None if asked is None else self._settings.index(asked)
        return chosen, None if trial in tried else trial

    @property
    def _alike(self) -> Observation:
        """An observation as precise as that of the next trial will be."""
        steps = math.sqrt(self._lengths.trial_steps)
        return Observation(self._settings[0], 0.0, 0.0, 1, pooled_cv(self._blocks) / steps, POWER_CV / steps)
