"""The tests that every `OptimumSelector` passes, as a class."""

import itertools
import operator

from zeus_core.search.objectives import PowerLimitMeasurement

_MEASURED = (
    PowerLimitMeasurement(power_limit=300, energy=1000, time=10.0, time_stderr=0.01),
    PowerLimitMeasurement(power_limit=250, energy=850, time=10.0, time_stderr=0.01),
    PowerLimitMeasurement(power_limit=200, energy=780, time=10.9, time_stderr=0.01),
    PowerLimitMeasurement(power_limit=100, energy=900, time=17.0, time_stderr=0.01),
)


class OptimumSelectorContract:
    """Derive a test class with a fixture `selector`; an optimizer can use the choice of what passes."""

    def test_it_chooses_whole_watts_within_what_was_measured(self, selector):
        """However many limits were measured, as where an optimizer may not change any."""
        for count in range(1, len(_MEASURED) + 1):
            measured = _MEASURED[:count]
            choice = operator.index(selector.select(measured))
            assert measured[-1].power_limit <= choice <= measured[0].power_limit

    def test_its_choice_does_not_depend_on_the_order(self, selector):
        """A profile of an earlier run may come in any order."""
        assert len({selector.select(order) for order in itertools.permutations(_MEASURED)}) == 1

    def test_its_choice_does_not_depend_on_how_many_steps_were_measured(self, selector):
        """Energies and times of ten times the steps are ten times as great."""
        more = [
            PowerLimitMeasurement(one.power_limit, 10 * one.energy, 10 * one.time, 10 * one.time_stderr)
            for one in _MEASURED
        ]
        assert selector.select(more) == selector.select(_MEASURED)
