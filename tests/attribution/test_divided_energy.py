"""The energy of one GPU, divided among parts."""

from zeus_core.attribution.divided_energy import DividedEnergy
from zeus_core.attribution.power_sum import PowerSum
from zeus_core.attribution.timeline import ClassTimeline


def test_what_begins_with_a_time_that_is_lost_can_be_divided():
    """No part has energy then, when the first power of a silent GPU has just been read."""
    timeline = ClassTimeline(0.0, "before", "idle", stepping="steps")
    energy = DividedEnergy(PowerSum(0.1, 15.0), 500.0, timeline, PowerSum(0.1, 15.0))
    timeline.change(0.1, "steps")
    energy.add_edge(1.0, 1.001, None, 300.0)
    energy.source.add(1.0, 1.001, 300.0)
    for now in (1.05, 1.2, 1.7):
        energy.settle(now, is_last=False)
        division = energy.division(now, is_last=False)
    assert sum(amount.lost_seconds for amount in division.amounts.values()) > 0.5
