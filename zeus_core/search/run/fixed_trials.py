"""A `Search` within a run: trials of a fixed length, then the setting it has chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zeus_core.search._search import Search
from zeus_core.search.run.run_search import Block, RunSearch
from zeus_core.search.trial import Trial


class FixedTrials(RunSearch):
    """Runs any `Search` as a `RunSearch`: with trials of a fixed length, whether the run can afford them or not.

    Args:
        search: The search.
        settings: Its settings, the original one first.
        choose: Chooses among the latest trials at these settings, if the search leaves that to a rule. `tell` raises
            what it raises.
        trial_steps: The measured steps of a trial.
        keeps: Tells by two trials, one that confirms the choice and the one at the original setting, whether the choice
            keeps what the rule demands. If not, the rule chooses again, with the trial that confirmed it in place of
            the one before.
        breaks: Tells by the same trials whether the choice certainly breaks what the rule demands. If the search itself
            chooses, and holds on to it, training continues at the original setting.
    """

    def __init__(
        self,
        search: Search,
        settings: Sequence[int],
        choose: Callable[[Sequence[Trial]], int],
        trial_steps: int,
        keeps: Callable[[Trial, Trial], bool] = lambda trial, original: True,
        breaks: Callable[[Trial, Trial], bool] = lambda trial, original: False,
    ) -> None:
        self._search = search
        self._choose = choose
        self._trial_steps = trial_steps
        self._choice: int | None = None
        self._settings = settings
        self._trials: dict[int, Trial] = {}
        self._keeps, self._breaks = keeps, breaks
        self._confirmed: set[int] = set()
        self._broken: set[int] = set()

    def ask(self) -> Block:
        """Return the next trial; after the last one, the choice."""
        asked = self._search.ask()
        if asked is not None:
            return Block(asked, self._trial_steps, is_choice=False)
        return Block(self._settings[0] if self._choice is None else self._choice, self._trial_steps, is_choice=True)

    def tell(self, trial: Trial, run_steps: int, run_seconds: float) -> None:
        """Take in a trial. After the last one, a trial at the choice confirms it, or leads to another choice.

        Each choice is confirmed once. The trial that confirms it may have the search ask for further ones.
        """
        was_done = self.is_done
        if was_done and (trial.setting != self._choice or self.is_confirmed):
            return
        self._search.tell(trial)
        if was_done:
            self._confirmed.add(trial.setting)
            self._choice = self._choice_after(trial)
            return
        if trial.setting in self._settings:
            self._trials[trial.setting] = trial
        if self.is_done:
            self._choice = self._chosen()

    @property
    def is_confirmed(self) -> bool:
        """Whether the search is over and its choice was measured once more.

        The trial that confirms the choice may have the search ask for further ones.
        """
        return self.is_done and self._choice in self._confirmed

    def _choice_after(self, confirmation: Trial) -> int | None:
        original = self._trials.get(self._settings[0])
        if self._search.choice is None and (original is None or self._keeps(confirmation, original)):
            return self._choice
        self._trials[confirmation.setting] = confirmation
        if original is not None and self._breaks(confirmation, original):
            self._broken.add(confirmation.setting)
        choice = self._chosen()
        return self._settings[0] if choice in self._broken else choice

    def _chosen(self) -> int:
        choice = self._search.choice
        if choice is not None:
            return choice
        return self._choose(list(self._trials.values())) if self._trials else self._settings[0]

    @property
    def is_done(self) -> bool:
        """Whether all trials were made."""
        return self._search.ask() is None

    @property
    def choice(self) -> int | None:
        """The setting chosen; None before the last trial."""
        return self._choice
