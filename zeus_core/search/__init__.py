"""Search among the settings of a knob, and rules for the best one. Pure: no device, no source of time, no framework."""

from typing import TYPE_CHECKING

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

if not TYPE_CHECKING:  # type checkers would take every name for one of it

    def __getattr__(name: str) -> object:
        if name != "AdaptiveSearch":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from zeus_core.search.adaptive_search import AdaptiveSearch  # imported here, as it imports numpy

        return AdaptiveSearch
