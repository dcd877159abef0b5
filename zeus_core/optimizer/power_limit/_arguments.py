"""What users hand to the optimizer, checked: each error names the argument, the value and what would do."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from zeus_core._validate import checked_object
from zeus_core.errors import UsageError
from zeus_core.knobs._power_limit import check_power_limit
from zeus_core.search import OptimumSelector

__all__ = ["checked_choice", "checked_selector"]


def checked_selector(selector: OptimumSelector | None) -> OptimumSelector | None:
    """An object that can select, or None; `UsageError` for anything else, such as the class of a selector."""
    if selector is None:
        return None
    wanted = "an OptimumSelector object, such as ZeusCost(eta_knob=0.5)"
    return checked_object("optimum_selector", selector, "select", wanted)


def checked_choice(selector: OptimumSelector, choice: object, settings: Sequence[int]) -> int:
    """What a selector of the user's returned, as whole watts; `UsageError` if it is no limit within the settings."""
    try:
        limit_watts = operator.index(choice)  # type: ignore[arg-type]
    except TypeError:
        raise UsageError(
            f"{type(selector).__name__}.select returned {choice!r}; it must return a power limit in whole watts, "
            "such as measurements[0].power_limit"
        ) from None
    check_power_limit(limit_watts, settings)
    return limit_watts
