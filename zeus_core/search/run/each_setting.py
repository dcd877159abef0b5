"""A search within a run that measures each setting, as nothing is known of what lies between: they have no order."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist, mean

from zeus_core.search._search import is_usable
from zeus_core.search.comparison import POWER_CV
from zeus_core.search.run._block_lengths import MIN_BLOCK_STEPS, BlockLengths
from zeus_core.search.run._run_estimate import RunBlock, pooled_cv
from zeus_core.search.run.run_plan import Prediction, RunProgress
from zeus_core.search.run.run_search import Block, RunSearch
from zeus_core.search.trial import Trial

_MAX_TRIAL_OF_REST = 0.6  # of the steps to come: for a trial, with the steps in which the device settles
_INTERVAL = NormalDist().inv_cdf(0.95)  # half of a 90 % interval, in standard errors


class EachSetting(RunSearch):
    """A `RunSearch` that measures one setting after another, and keeps a slowdown bound for the whole run.

    Between two settings it returns to the original one. A block of seconds t per step, between visits of the original
    of o1 and o2, has the slowdown 2 t / (o1 + o2), so that a drift of the work cancels; and so for the energy. With S
    seconds so far, that would have been Q at the original setting, and R to come there, the run keeps the factor f at
    a slowdown s if

        f (Q + R) - S - s R >= z sigma,

    with the standard error sigma of the left side, and the normal quantile z of the confidence. Among the settings that
    keep it, and are no slower than f, the one with the least energy is chosen; each later block corrects that.

    Args:
        settings: The settings, the original one first.
        factor: The slowdown bound of the whole run.
        max_steps: The steps of the whole run. If nobody knows, it is taken to last as long again as it has.
        settle_seconds: The time in which the device settles after a change.
        confidence: The probability with which the bound is to be kept.
    """

    def __init__(
        self,
        settings: Sequence[int],
        factor: float,
        *,
        max_steps: int | None = None,
        settle_seconds: float = 2.0,
        confidence: float = 0.98,
    ) -> None:
        self._original, *self._others = settings
        self._factor = factor
        self._max_steps = max_steps
        self._settle_seconds = settle_seconds
        self._quantile = NormalDist().inv_cdf(confidence)
        self._blocks: list[RunBlock] = []
        self._seconds: dict[int, float] = defaultdict(float)  # of the run, by setting
        self._run_steps, self._run_seconds = 0, 0.0
        self._next, self._is_done = Block(self._original, MIN_BLOCK_STEPS, is_choice=True), False
        self._choice: int | None = None

    def ask(self) -> Block:
        """Return the next block."""
        return self._next

    def may_continue(self, steps: int, seconds: float) -> bool:
        """Return whether the run can afford the block asked for."""
        if self._choice is None or self._next.setting == self._original or steps < MIN_BLOCK_STEPS:
            return True
        run = self._progress
        return steps < run.affordable_steps(self._factor, seconds / steps / run.original_seconds)

    def tell(self, trial: Trial, run_steps: int, run_seconds: float) -> None:
        """Add a block; see `RunSearch.tell`. One at another setting counts for the time of the run."""
        if run_steps > 0 or self._run_steps > 0:
            run_steps = max(self._run_steps + trial.steps, run_steps)
            run_seconds = max(self._run_seconds + trial.measurement.time, run_seconds)
            self._seconds[trial.setting] += run_seconds - self._run_seconds
            self._run_steps, self._run_seconds = run_steps, run_seconds
        if is_usable(trial):
            self._blocks.append(RunBlock(run_steps, trial))
        self._decide()

    @property
    def is_done(self) -> bool:
        """Whether no other trial is planned."""
        return self._is_done

    @property
    def choice(self) -> int | None:
        """The setting that training would continue at now; None before the original was measured."""
        return self._choice

    @property
    def stepped_aside(self) -> str | None:
        """The reason that the run stays at its original setting."""
        if not self._is_done or self._choice != self._original:
            return None
        return f"nothing else is known to save energy and to keep this run within {self._factor:g} times its duration"

    def prediction(self, setting: int | None = None) -> Prediction | None:
        """Return what was measured at a setting, by default the choice; None if nothing was."""
        setting = self._choice if setting is None else setting
        if setting is None or (setting != self._original and not self._trials(setting)):
            return None
        (slowdown, error), (energy, energy_error) = self._slowdown(setting), self._energy(setting)
        off, energy_off = _INTERVAL * error, _INTERVAL * energy_error
        saving = 1 - energy
        return Prediction(
            setting, saving, (saving - energy_off, saving + energy_off), slowdown, (slowdown - off, slowdown + off)
        )

    def _decide(self) -> None:
        lengths, original = self._lengths, self._trials(self._original)
        untried = [one for one in self._others if not self._trials(one)]
        has_begun = len(untried) < len(self._others)
        if not original:
            return
        affordable = lengths.settled_trial_steps <= _MAX_TRIAL_OF_REST * lengths.run.steps_left
        if lengths.is_noisy or not affordable:
            untried = []
        self._choice, self._is_done = self._best(), not untried
        latest = self._blocks[-1].trial.setting
        if lengths.missing_steps > 0 and (not has_begun or not untried):
            self._next = Block(self._original, lengths.original_steps, is_choice=self._choice == self._original)
        elif latest != self._original and (latest != self._choice or untried):
            steps = max(lengths.trial_steps // 2, lengths.shortest_steps)
            self._next = Block(self._original, steps, is_choice=self._choice == self._original)
        elif untried:
            self._next = Block(untried[0], lengths.trial_steps, is_choice=False)
        else:
            self._next = Block(self._choice, lengths.choice_steps, is_choice=True)

    def _best(self) -> int:
        keeping = [one for one in self._others if self._trials(one) and self._keeps(one)]
        return min([self._original, *keeping], key=lambda one: self._energy(one)[0])

    def _keeps(self, setting: int) -> bool:
        """Whether the run keeps its bound if the steps to come are at a setting."""
        run, slowdown = self._progress, {one: self._slowdown(one) for one in {*self._seconds, setting}}
        at_original = {one: seconds / slowdown[one][0] for one, seconds in self._seconds.items()}
        so_far = math.fsum(at_original.values())
        per_step = so_far / self._run_steps if self._run_steps else run.original_seconds
        left, left_per_so_far = per_step * run.steps_left, run.steps_left / max(self._run_steps, 1)
        spare = self._factor * (so_far + left) - self._run_seconds - slowdown[setting][0] * left
        weight = self._factor * (1 + left_per_so_far)
        errors = {one: weight * seconds * slowdown[one][1] for one, seconds in at_original.items()}
        errors[setting] = errors.get(setting, 0.0) + left * slowdown[setting][1]
        # Time that is left over buys no setting that breaks the bound by itself: it would come late, for a few steps.
        is_within = slowdown[setting][0] <= self._factor
        return is_within and spare >= self._quantile * math.hypot(*errors.values())

    def _slowdown(self, setting: int) -> tuple[float, float]:
        """Return how much longer a step takes than at the original setting, and the standard error."""
        return self._ratio(setting, "seconds_per_step", pooled_cv(self._blocks))

    def _energy(self, setting: int) -> tuple[float, float]:
        """Return the energy of a step over that at the original setting, and the standard error."""
        return self._ratio(setting, "joules_per_step", math.hypot(pooled_cv(self._blocks), POWER_CV))

    def _ratio(self, setting: int, quantity: str, cv: float) -> tuple[float, float]:
        if setting == self._original or not self._trials(setting):
            return 1.0, 0.0
        ratios, used = [], set[int]()
        visits = [number for number, block in enumerate(self._blocks) if block.trial.setting == self._original]
        for number, trial in ((number, block.trial) for number, block in enumerate(self._blocks)):
            if trial.setting != setting:
                continue
            before = [visit for visit in visits if visit < number]
            after = [visit for visit in visits if visit > number]
            # Without a visit since, the change between the two before may go on.
            beside = [*before[-1:], *after[:1]] if before and after else before[-2:] or after[:2]
            used.update(beside)
            costs = [float(getattr(self._blocks[one].trial, quantity)) for one in beside]
            reference = mean(costs) if before and after else costs[-1 if before else 0]
            drift = 0.5 * (max(costs) - min(costs)) / reference
            ratios.append((trial.steps, float(getattr(trial, quantity)) / reference, drift))
        steps = sum(steps for steps, _, _ in ratios)
        value = math.fsum(steps * ratio for steps, ratio, _ in ratios) / steps
        drift = math.fsum(steps * drift for steps, _, drift in ratios) / steps / math.sqrt(len(ratios))
        beside_steps = sum(self._blocks[one].trial.steps for one in used)
        return value, value * math.hypot(cv * math.sqrt(1 / steps + 1 / beside_steps), drift)

    def _trials(self, setting: int) -> list[Trial]:
        return [block.trial for block in self._blocks if block.trial.setting == setting]

    @property
    def _progress(self) -> RunProgress:
        original = self._trials(self._original)
        seconds = original[-1].seconds_per_step if original else 1.0
        return RunProgress(self._run_steps, self._run_seconds, seconds, self._max_steps)

    @property
    def _lengths(self) -> BlockLengths:
        return BlockLengths(
            self._progress,
            pooled_cv(self._blocks),
            sum(trial.steps for trial in self._trials(self._original)),
            self._settle_seconds,
            is_bound=True,
            planned_share=None,
            has_begun=any(one != other for one, other in pairwise(block.trial.setting for block in self._blocks)),
            is_unknown=not self._blocks,
        )
