"""Shows trials to an `OptimumSelector`, of the user or of this package, and checks its choice."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence

from zeus_core._validate import checked_object
from zeus_core.errors import UsageError
from zeus_core.knobs._power_limit import check_power_limit
from zeus_core.search import Trial
from zeus_core.search._objectives import OptimumSelector, PowerLimitMeasurement

__all__ = ["TrialSelector"]


class TrialSelector:
    """Shows trials to an `OptimumSelector`, and checks its choice.

    Args:
        selector: The selector.
        steps: The number of steps that the energies and times it is shown are for.

    Raises:
        UsageError: `selector` cannot select, such as the class of a selector.
    """

    def __init__(self, selector: OptimumSelector, steps: int) -> None:
        wanted = "an OptimumSelector object, such as ZeusCost(eta_knob=0.5)"
        self.selector = checked_object("optimum_selector", selector, "select", wanted)
        """The selector."""
        self._steps = steps

    def measurements(self, trials: Iterable[Trial], settings: Sequence[int]) -> list[PowerLimitMeasurement]:
        """Return the trials within the settings, as the selector is shown them."""
        shown = [trial for trial in trials if settings[-1] <= trial.setting <= settings[0]]
        return [PowerLimitMeasurement.from_trial(trial, self._steps) for trial in shown]

    def choose(self, trials: Iterable[Trial], settings: Sequence[int]) -> int:
        """Return the limit it chooses, in whole watts.

        Raises:
            UsageError: It chose something that is no limit within the settings.
        """
        choice: object = self.selector.select(self.measurements(trials, settings))
        try:
            limit_watts = operator.index(choice)  # type: ignore[arg-type]
        except TypeError:
            raise UsageError(
                f"{type(self.selector).__name__}.select returned {choice!r}; it must return a power limit in whole "
                "watts, such as measurements[0].power_limit"
            ) from None
        check_power_limit(limit_watts, settings)
        return limit_watts
