"""Search among the settings of a knob, and rules for the best one. Pure: no device, no source of time, no framework."""

from typing import TYPE_CHECKING

from zeus_core._lazy_names import imported_on_use as _imported_on_use
from zeus_core.search._search import GridSearch, Search
from zeus_core.search.trial import Trial

if TYPE_CHECKING:
    from zeus_core.search.adaptive_search import AdaptiveSearch

__all__ = [
    "AdaptiveSearch",
    "GridSearch",
    "Search",
    "Trial",
]

_HOMES = {"AdaptiveSearch": "zeus_core.search.adaptive_search"}  # which imports numpy

if not TYPE_CHECKING:
    __getattr__, __dir__ = _imported_on_use(__name__, _HOMES)
