"""All settings, in order."""

from collections.abc import Sequence
from functools import partial

from zeus_core.search.objectives import OptimumSelector
from zeus_core.search.trial import Trial
from zeus_core.validate import checked_list, checked_whole_number


class GridSearch:
    """A `Search` that tries each of the given settings once, in the given order.

    Args:
        settings: The settings.
        selector: Not used: the optimizer makes every search from the settings and the selector.

    Raises:
        UsageError: The settings are no list of whole numbers.
    """

    def __init__(self, settings: Sequence[int], selector: OptimumSelector | None = None) -> None:
        check = partial(checked_whole_number, minimum=0)
        self._untried = checked_list("settings", settings, check, "a list of settings, such as [300, 250]")

    def ask(self) -> int | None:
        """Return the first setting that has not been tried."""
        return self._untried[0] if self._untried else None

    def tell(self, trial: Trial) -> None:
        """Remove the trial's setting from those to try."""
        if trial.setting in self._untried:
            self._untried.remove(trial.setting)

    @property
    def choice(self) -> None:
        """None: the rule for the best setting chooses among the trials."""
        return None
