"""Search among the settings of a knob, and rules for the best one. Pure: no device, no source of time, no framework."""

from typing import TYPE_CHECKING, Any

from zeus_core.search._golden_section_search import GoldenSectionSearch
from zeus_core.search._grid_search import GridSearch
from zeus_core.search._search import Search
from zeus_core.search.trial import Trial

if TYPE_CHECKING:
    from zeus_core.search.adaptive_search import AdaptiveSearch

__all__ = [
    "AdaptiveSearch",
    "GoldenSectionSearch",
    "GridSearch",
    "Search",
    "Trial",
]


def __getattr__(name: str) -> Any:
    """Import the search that needs numpy on first use."""
    if name == "AdaptiveSearch":
        from zeus_core.search.adaptive_search import AdaptiveSearch

        return AdaptiveSearch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
