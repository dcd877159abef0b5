"""The blocks that one search has measured, and the trials they make."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from zeus_core.optimizer._global_setting._trial_parts import pooled_trial
from zeus_core.optimizer._trial_store import ToldBlock
from zeus_core.search import Trial
from zeus_core.search._comparison import Comparison, time_error_fraction

__all__ = ["MeasuredBlocks"]


class MeasuredBlocks:
    """All blocks of a search. Those at one setting make one trial, and so do all those at its choices.

    Args:
        known: Blocks that were measured before.
        original: The original setting.
    """

    def __init__(self, known: Sequence[ToldBlock], original: int) -> None:
        self.blocks: list[ToldBlock] = list(known)
        """All that the search was told, in this order."""
        self.trials: dict[int, Trial] = _pooled(self.blocks)
        """All that was measured during the search, by setting."""
        self.confirmation: Trial | None = None
        """The steps measured at the latest choice that was measured; None until then, and if their energy was lost."""
        self._original = original
        self._confirmed: dict[int, Trial] = {}  # measured at each choice
        self._held: Trial | None = None  # at all choices, if the search moves its choice while training continues

    def comparison(self, chosen: int | None, is_fixed: bool) -> Comparison | None:
        """Compare steps at the original setting and at the choices; None until one was measured, and if they are one.

        Args:
            chosen: The choice.
            is_fixed: Whether the search is over once its choice is confirmed.
        """
        before, after = self.trials.get(self._original), self._held
        if before is None or after is None or chosen == self._original:
            return None
        if self._original in self._confirmed:  # where training has returned to it meanwhile
            before = pooled_trial([before, self._confirmed[self._original]])
        return Comparison(before, after, self.trials.get(after.setting) if is_fixed else None)

    @property
    def at_choices(self) -> Mapping[int, Trial]:
        """All that was measured since a setting was chosen, by setting."""
        return dict(self._confirmed)

    def run_slowdown(self, run_steps: int, setting: int) -> tuple[float, float] | None:
        """Return the slowdown of the whole run by its settings, and how far it can be off.

        None if it is unknown, and if all steps were at the original setting.

        With n(s) of n steps at a setting s, where a step takes t(s), and t(0) at the original one, it is

            sum over s of n(s) / n * t(s) / t(0).

        Args:
            run_steps: All steps of the run so far.
            setting: The setting of those after the latest block.
        """
        steps: dict[int, int] = defaultdict(int)
        counted = 0
        for block in self.blocks:
            if block.run_steps > counted:  # those of an earlier run count none
                steps[block.trial.setting] += block.run_steps - counted
                counted = block.run_steps
        steps[setting] += max(run_steps - counted, 0)
        trials, others = _pooled(self.blocks), {one for one, count in steps.items() if count} - {self._original}
        original = trials.get(self._original)
        if original is None or not others or not others <= trials.keys():
            return None
        count = sum(steps.values())
        terms = {s: steps[s] / count * trials[s].seconds_per_step / original.seconds_per_step for s in others}
        errors = [term * time_error_fraction(trials[s]) for s, term in terms.items()]
        total = sum(terms.values())
        uncertainty = math.hypot(*errors, total * time_error_fraction(original))
        return (steps[self._original] / count + total, uncertainty) if math.isfinite(uncertainty) else None

    def take_over(self, other: MeasuredBlocks) -> None:
        """Take over the steps that another search has measured at its original setting, if there are none here."""
        if self._original not in self.trials:
            self.blocks += [
                replace(block, trial=replace(block.trial, setting=self._original))
                for block in other.blocks
                if block.trial.setting == other._original
            ]
            self.trials = _pooled(self.blocks)

    def add_trial(self, block: ToldBlock) -> None:
        """Take in a block of the search."""
        trial = block.trial
        self.trials[trial.setting] = pooled_trial([self.trials.get(trial.setting), trial])
        self.blocks.append(block)

    def add_confirmation(self, block: ToldBlock, is_fixed: bool) -> None:
        """Take in a block at the choice. A search of fixed trials (`is_fixed`) asks for it again when it is resumed."""
        trial = block.trial
        self.confirmation = self._confirmed[trial.setting] = pooled_trial([self._confirmed.get(trial.setting), trial])
        if trial.setting != self._original:
            self._held = self.confirmation if is_fixed else pooled_trial([self._held, trial])
        if not is_fixed:
            self.blocks.append(block)

    def forget(self) -> None:
        """Forget all blocks."""
        self.blocks, self.trials = [], {}

    def sorted_trials(self) -> list[Trial]:
        """Return the trials so far, the highest setting first."""
        return sorted(self.trials.values(), key=lambda trial: -trial.setting)


def _pooled(blocks: Sequence[ToldBlock]) -> dict[int, Trial]:
    """Return one trial for each setting."""
    pooled: dict[int, Trial] = {}
    for trial in (block.trial for block in blocks):
        pooled[trial.setting] = pooled_trial([pooled.get(trial.setting), trial])
    return pooled
