"""The state of a search in the checkpoint of a training: what it has measured."""

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


_SEARCHES = Document("zeus-core search", 1, dict[str, Any], "the state")


def searches_to_state(searches: Sequence[SearchState], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a checkpoint that holds some searches, in JSON types; empty if there are none.

    Args:
        searches: The searches.
        others: The other members of that part, by name.
    """
    return _SEARCHES.to_json({"searches": encode(list(searches)), **others}) if searches else {}


def search_from_state(conditions: Conditions, state: Any) -> SearchState | None:
    """Return the search in a checkpoint. None, with a warning, if it is damaged, or of other conditions."""
    try:
        searches = _searches_in(state)
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


def parts_from_state(conditions: Conditions, fact: str, state: Any) -> dict[str, SearchState]:
    """Return the searches of parts of a work in a checkpoint, without damaged ones; see `TrialStore.load_parts`."""
    found = {}
    with contextlib.suppress(UsageError):
        for search in _searches_in(state):
            part = conditions.part_in(search.get("conditions"), fact)
            if part is not None:
                with contextlib.suppress(UsageError):
                    found[part] = decode(SearchState, search, "search")
    return found


def _searches_in(state: Any) -> list[dict[str, Any]]:
    """Return the searches in a checkpoint as they are written, each to be decoded when it is used.

    Raises:
        UsageError: The state is damaged, or of another version.
    """
    return decode(list[dict[str, Any]], _SEARCHES.from_json(state).get("searches"), "the state.searches")
