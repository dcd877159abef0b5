"""The state of a search in the checkpoint of a training: what it has measured, and what the run has taken."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zeus_core.codec import decode, encode
from zeus_core.documents import Document
from zeus_core.errors import UsageError
from zeus_core.optimizer.trial_store import Conditions, nearest_conditions
from zeus_core.search import Trial

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class MeasuredBlock:
    """A block of steps that was measured, and where in its run it ended.

    Attributes:
        trial: The measured steps.
        run_steps: All steps of the run until then; 0 for a block of an earlier run.
        run_seconds: The time they took, without pauses of training.
    """

    trial: Trial
    run_steps: int = 0
    run_seconds: float = 0.0


@dataclass(frozen=True)
class RunSpent:
    """Energy of a training so far, over all its processes, and its emissions or cost.

    Attributes:
        begun_seconds: Its begin, in seconds since 1970; None before that.
        energy_joules: The energy of its steps and pauses.
        amount: Its emissions (g) or cost.
        uncertainty: How far the amount can be off.
    """

    begun_seconds: float | None = None
    energy_joules: float = 0.0
    amount: float = 0.0
    uncertainty: float = 0.0


@dataclass(frozen=True)
class SearchState:
    """A search in the checkpoint of a training.

    Attributes:
        conditions: The conditions of its blocks.
        blocks: The blocks that were reported to it.
        run_steps: The steps of the run until the checkpoint.
        run_seconds: The time they took, without pauses of training.
    """

    conditions: Conditions
    blocks: tuple[MeasuredBlock, ...]
    run_steps: int
    run_seconds: float


@dataclass(frozen=True)
class _Searches:
    """The part of a checkpoint. Each search is decoded when it is used: a damaged one does not cost the others."""

    searches: list[dict[str, Any]]
    spent: Any = None


_SEARCHES = Document("zeus-core search", 1, _Searches, "the state")


def searches_to_state(searches: Sequence[SearchState], spent: RunSpent | None = None) -> dict[str, Any]:
    """Return the part of a checkpoint that holds some searches, in JSON types; empty if there are none.

    Args:
        searches: The searches.
        spent: The energy and time that the run took so far; None where it follows no signal.
    """
    return _SEARCHES.to_json(_Searches(encode(searches), spent)) if searches else {}


def spent_from_state(state: Any) -> RunSpent | None:
    """Return what the run of a checkpoint has taken. None if it followed no signal, or, with a warning, if damaged."""
    if not isinstance(state, Mapping) or state.get("spent") is None:
        return None
    try:
        return decode(RunSpent, state["spent"], "spent")
    except UsageError as error:
        _logger.warning("what the run has emitted before is not known, and counted from here on: %s", error)
        return None


def search_from_state(conditions: Conditions, state: Any) -> SearchState | None:
    """Return the search in a checkpoint. None, with a warning, if it is damaged, or of other conditions."""
    try:
        searches = _SEARCHES.from_json(state).searches
        for search in searches:
            if search.get("conditions") == encode(conditions):
                return decode(SearchState, search, "search")
        nearest = nearest_conditions(conditions, searches)
        if nearest is None:
            return None
        because = f"it has {nearest}"
    except UsageError as error:
        because = str(error)
    _logger.warning("the search in the checkpoint is not used: %s", because)
    return None


def activities_from_state(conditions: Conditions, state: Any) -> dict[str, SearchState]:
    """Return the searches of activities in a checkpoint, in trainings of these conditions, without damaged ones."""
    found = {}
    with contextlib.suppress(UsageError):
        for search in _SEARCHES.from_json(state).searches:
            activity = conditions.activity_in(search.get("conditions"))
            if activity is not None:
                with contextlib.suppress(UsageError):
                    found[activity] = decode(SearchState, search, "search")
    return found
