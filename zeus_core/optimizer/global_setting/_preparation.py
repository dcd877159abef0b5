"""The searches that an optimizer begins a training with."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from zeus_core.device import Gpu
from zeus_core.errors import DeviceError, NoDeviceError, UsageError
from zeus_core.kinds import Kind
from zeus_core.optimizer.global_setting._common_block import RunSteps
from zeus_core.optimizer.global_setting.extension import Extension, extension_of
from zeus_core.optimizer.global_setting.measuring import TrialRecorder
from zeus_core.optimizer.global_setting.phases import Phase
from zeus_core.optimizer.global_setting.search_options import SearchArguments, SearchOptions
from zeus_core.optimizer.global_setting.setting_search import SettingSearch
from zeus_core.optimizer.gpu_facts import GpuFacts, conditions_on, with_power
from zeus_core.optimizer.limiter import Limiter, ReplacedError
from zeus_core.optimizer.search_state import (
    MeasuredBlock,
    SearchState,
    search_from_state,
    searches_to_state,
)
from zeus_core.optimizer.trial_store import Conditions, TrialStore, checked_facts
from zeus_core.ports.exchange import Exchange
from zeus_core.search.objectives import OptimumSelector, ZeusCost
from zeus_core.settings.holders import KnobUser

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RankInformation:
    """The facts about one rank that the others need.

    Attributes:
        arguments: The arguments of its optimizer that must be the same on all ranks, by name.
        settings: The settings to try on its GPUs, highest first.
        gpus: The facts of its GPUs, by UUID.
    """

    arguments: Mapping[str, int | str]
    settings: tuple[int, ...]
    gpus: Mapping[str, GpuFacts]


class Preparation:
    """Makes the searches of one training after another, the same on all ranks.

    Args:
        options: The arguments of the optimizer.
        gpus: The GPUs of this rank.
        exchange: The exchanges with the other ranks.
        recorder: Measures.
        store: Keeps the trials.
        user: The object that the settings are for.
    """

    def __init__(
        self,
        options: SearchOptions,
        gpus: Sequence[Gpu],
        exchange: Exchange,
        recorder: TrialRecorder,
        store: TrialStore,
        user: KnobUser,
    ) -> None:
        self._user = user
        self.options = options
        """The arguments of the optimizer."""
        self.selector: OptimumSelector = options.selector or ZeusCost(world_size=max(len(gpus), 1))
        """The rule for the best setting."""
        self._gpus = gpus
        self._exchange = exchange
        self._recorder = recorder
        self._store = store
        self._kinds = options.kinds[:1] if options.observes and not options.takes_first else options.kinds
        self._has_checked = len(self._kinds) == 1
        self._work: dict[str, int | str] = {}
        self._resumed: Any = None  # the state of a checkpoint, until a training begins
        self._has_forgotten = False  # the stored trials of this work are of other work
        self.extension: Extension | None = extension_of(options, recorder)
        """Extends the searches; None if nothing does."""
        self._limiters: list[Limiter] = []
        self._is_restored = True  # what an earlier training has changed
        self._searches: list[SettingSearch] = []  # of the latest training

    @property
    def name(self) -> str:
        """The name of what is searched."""
        return " or ".join(kind.words for kind in self._kinds)

    def use_work(self, work: Mapping[str, int | str]) -> None:
        """State the work of a step: trials of other work are not used.

        Raises:
            UsageError: It is no mapping of names to whole numbers or text.
        """
        facts = checked_facts("work", work)
        if facts != self._work:
            self._work, self._has_forgotten = facts, False

    def forget(self) -> None:
        """Drop the trials of the work, also the stored ones."""
        for search in self._searches:
            search.forget()
        self._has_forgotten = True

    def state(self, others: Mapping[str, Any]) -> dict[str, Any]:
        """Return what was measured so far, for a checkpoint, in JSON types; empty before the first trial.

        Args:
            others: The other members of the checkpoint, in JSON types.
        """
        return searches_to_state(
            [
                state
                for search in self._searches
                for state in search.states(self._recorder.run_seconds - search.run.excess_seconds)
            ],
            others,
        )

    def load_state(self, state: Any) -> None:
        """Begin the next training with the blocks of a checkpoint."""
        self._resumed = state or None

    def searches(self, steps_left: int | None, replaced: ReplacedError | None = None) -> list[SettingSearch]:
        """Read what is in force, and make the searches of a training. All ranks call this.

        Args:
            steps_left: The steps of the training when it began, if the loop knows.
            replaced: The end of the searches before, in the same training; None in a new one.

        Raises:
            ReplacedError: The value that somebody else has set is no lower ceiling, or leaves nothing to search.
        """
        if not self._has_checked:
            self._kinds, self._has_checked = self._checked_kinds(), True
        before = self._limiters
        self._limiters = [limiter for limiter in before if not limiter.restore()]
        self._is_restored = not self._limiters
        run = RunSteps()
        max_steps = self.options.max_steps
        if replaced is not None and self._searches[0].max_steps is not None:
            max_steps = max(self._searches[0].max_steps - self._searches[0].run.steps, 1)
        searches = [self._search(kind, run, max_steps, steps_left) for kind in self._kinds]
        # Each ceiling is below the one before, so that two who set limits by turns come to an end.
        if replaced is not None and not (
            self._kinds[0].is_ordered
            and searches[0].original < self._searches[0].original
            and len(searches[0].settings) > 1
        ):
            self._limiters = before  # the new ones have changed nothing
            raise replaced
        self._searches = searches
        self._resumed = None
        return self._searches

    def _checked_kinds(self) -> tuple[Kind, ...]:
        """Return the kinds to search, of several."""
        from zeus_core.optimizer.global_setting import _rival_searches  # where there are several alone

        kinds, where = self._kinds, (self._gpus, self._user, self._exchange)
        if self.options.takes_first:
            found = _rival_searches.first_kind(kinds, *where, changes=not self.options.observes)
            if found.locks_sm_clock:
                self._recorder.sample_clocks_often()
            return (found,)
        if self.extension is None:
            return _rival_searches.possible_kinds(kinds, *where)
        predicted = tuple(kind for kind in reversed(kinds) if kind.has_curves)  # clocks, if they can be locked
        return _rival_searches.possible_kinds(predicted, *where)[:1]

    def restore(self) -> bool:
        """Restore the original settings. Never raises; False if a GPU refuses."""
        restored = [limiter.restore() for limiter in self._limiters]  # all of them, also after a refusal
        return all(restored)

    @property
    def unrestored(self) -> dict[str, str]:
        """The commands for the GPUs of this rank that `restore` is not known to have restored, each with the reason."""
        return {command: why for limiter in self._limiters for command, why in limiter.unrestored.items()}

    def _search(self, kind: Kind, run: RunSteps, max_steps: int | None, steps_left: int | None) -> SettingSearch:
        exchange = self._exchange
        # No rank changes a setting before all ranks have read theirs: some may share a GPU.
        ranks = exchange.gather_of(RankInformation, lambda: self._information(self._read(kind)), Phase.PREPARE)
        _check_arguments(ranks)
        limiter, settings = self._limiters[-1], kind.common_settings([rank.settings for rank in ranks])
        # Ranks may share a GPU.
        gpus = list({uuid: facts for rank in ranks for uuid, facts in rank.gpus.items()}.values())
        exchange.attempt(lambda: limiter.leave({uuid for rank in ranks[: exchange.rank] for uuid in rank.gpus}))
        if self.options.selector is None:
            self.selector = ZeusCost(world_size=len(gpus))
        if not all(one.binds_power for one in self._kinds):
            self.selector = with_power(self.selector, gpus)
        conditions = conditions_on(gpus, kind.words, {**self._work, "ranks": exchange.size})
        known = exchange.decide_of(SearchState, lambda: self._known(conditions), Phase.PREPARE)
        if kind is self._kinds[0]:
            run.steps, run.seconds = known.run_steps, known.run_seconds
            self._recorder.begin_run(known.run_seconds)
        if max_steps is None and steps_left is not None:
            max_steps = run.steps + steps_left
        make = SettingSearch if self.extension is None else partial(self.extension.search, self._resumed)
        search = make(
            settings,
            conditions,
            known.blocks,
            limiter,
            exchange,
            self._recorder,
            self._store,
            SearchArguments(
                self.options,
                kind,
                self.selector,
                max_steps,
                max(gpu.energy_counter_period_seconds for gpu in self._gpus),
            ),
            run,
        )
        for before in self._searches:
            if before.conditions != conditions:
                continue
            if self._work:
                search.measured.continue_after(before.measured, before.run.steps)
            elif self.options.is_adaptive(kind):  # nobody has said that the work is the same
                search.measured.lacks_original |= before.original in before.measured.trials
        return search

    def _known(self, conditions: Conditions) -> SearchState:
        """Return what is known under these conditions: from the checkpoint, an earlier training, or the profile.

        The training of a checkpoint goes on: the steps until then are a part of it. Those of other trainings are not.
        """
        resumed = None if self._resumed is None else search_from_state(conditions, self._resumed)
        earlier = [
            block.trial
            for search in self._searches
            if search.conditions == conditions
            for block in search.measured.blocks
        ]
        if not earlier and not self._has_forgotten:
            earlier = self._store.load(conditions)
        if resumed is None:
            return SearchState(conditions, tuple(MeasuredBlock(trial) for trial in earlier), 0, 0.0)
        own = [block.trial for block in resumed.blocks]
        others = [MeasuredBlock(trial) for trial in earlier if trial not in own]
        return replace(resumed, blocks=(*others, *resumed.blocks))

    def _information(self, limiter: Limiter) -> RankInformation:
        options = self.options
        return RankInformation(
            {
                "wait_steps": options.wait_steps,
                "warmup_steps": str(options.warmup_steps),
                "profile_steps": str(options.profile_steps),
                "mode": options.mode,
                "activities": options.activities,
                **limiter.kind.arguments,
            },
            limiter.settings,
            limiter.gpus,
        )

    def _read(self, kind: Kind) -> Limiter:
        if not self._gpus:
            raise NoDeviceError("this rank has no GPU")
        if not self._is_restored:
            raise DeviceError("the original settings of an earlier training have not been restored yet")
        make = Limiter if self.extension is None else self.extension.limiter
        self._limiters.append(make(self._gpus, kind, self._user, self.options.observes))
        return self._limiters[-1]


def _check_arguments(ranks: Sequence[RankInformation]) -> None:
    """Check that the arguments are the same on all ranks.

    Raises:
        UsageError: They differ.
    """
    for rank, information in enumerate(ranks):
        for argument, value in ranks[0].arguments.items():
            if information.arguments[argument] != value:
                raise UsageError(
                    f"{argument} is {value} on rank 0 and {information.arguments[argument]} on rank {rank}; "
                    "give every rank the same"
                )
