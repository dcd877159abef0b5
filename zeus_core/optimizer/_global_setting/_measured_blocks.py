"""The blocks that one search has measured, and the trials they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from zeus_core.optimizer._global_setting._trial_parts import pooled_trial
from zeus_core.optimizer._trial_store import ToldBlock
from zeus_core.search import Trial
from zeus_core.search._comparison import Comparison

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
        return Comparison(before, after, self.trials.get(after.setting) if is_fixed else None)

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
