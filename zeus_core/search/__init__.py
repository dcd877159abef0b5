"""Search among the settings of a knob, and rules for the best one. Pure: no device, no source of time, no framework."""

from zeus_core.search._adaptive_search import AdaptiveSearch
from zeus_core.search._golden_section_search import GoldenSectionSearch
from zeus_core.search._grid_search import GridSearch
from zeus_core.search._search import Search
from zeus_core.search._trial import Trial

__all__ = [
    "AdaptiveSearch",
    "GoldenSectionSearch",
    "GridSearch",
    "Search",
    "Trial",
]
