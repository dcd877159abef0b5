"""Search among the settings of a knob, and rules for the best one. Pure: no device, no source of time, no framework.

>>> from zeus_core.optimizer.power_limit import MaxSlowdownConstraint, PowerLimitMeasurement, Time
>>> measured = [
...     PowerLimitMeasurement(power_limit=300, energy=90.0, time=1.0),
...     PowerLimitMeasurement(power_limit=200, energy=75.0, time=1.08),
...     PowerLimitMeasurement(power_limit=100, energy=80.0, time=1.5),
... ]
>>> MaxSlowdownConstraint(factor=1.1).select(measured)
200
>>> Time().select(measured)
300
"""

from zeus_core.search._grid_search import GridSearch
from zeus_core.search._search import Search
from zeus_core.search._trial import Trial

__all__ = [
    "GridSearch",
    "Search",
    "Trial",
]
