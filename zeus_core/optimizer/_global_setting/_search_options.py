"""The arguments of an optimizer of a setting, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from zeus_core._validate import checked_function, checked_instance, checked_one_of, checked_whole_number
from zeus_core.errors import UsageError
from zeus_core.knobs._kinds import CommonClock, KnobKind, PowerLimit
from zeus_core.optimizer._global_setting._orders import MakeSearch, Mode
from zeus_core.search._objectives import OptimumSelector, checked_selector

if TYPE_CHECKING:
    from zeus_core.optimizer.carbon_aware import CarbonAware

__all__ = ["KnobName", "SearchOptions", "kinds_of"]

KnobName = Literal["power limit", "clock", "auto"]
"""The setting that is searched; both, for "auto"."""

_FINE_STEP_WATTS = 5  # for a search whose number of trials does not depend on it; gains 0.9 to 1.9 % over 25 W
_COARSE_STEP_WATTS = 25


@dataclass(frozen=True)
class SearchOptions:
    """The arguments of an optimizer, checked.

    Attributes:
        kinds: The kinds of settings to search.
        selector: The rule for the best one; the default one, for the GPUs of the job, if None.
        wait_steps: The steps before the search.
        warmup_steps: The steps in which a GPU settles; as many as it takes if None.
        profile_steps: The measured steps of a trial; as many as it needs if None.
        make: Makes the search; the default one if None.
        max_steps: The steps of the whole training; None if nobody knows.
        mode: Whether settings are changed.
        aware: The signal that training follows once the search is over; None for none.

    Raises:
        UsageError: An argument is wrong; the message names it.
    """

    kinds: tuple[KnobKind, ...]
    selector: OptimumSelector | None
    wait_steps: int
    warmup_steps: int | None
    profile_steps: int | None
    make: MakeSearch | None
    max_steps: int | None
    mode: Mode
    aware: CarbonAware | None = None

    def __post_init__(self) -> None:
        """Check the arguments."""
        for argument, minimum in (("wait_steps", 0), ("warmup_steps", 0), ("profile_steps", 1), ("max_steps", 1)):
            value = getattr(self, argument)
            if value is not None or argument == "wait_steps":
                object.__setattr__(self, argument, checked_whole_number(argument, value, minimum))
        checked_one_of("mode", self.mode, get_args(Mode))
        if self.aware is not None:
            from zeus_core.optimizer.carbon_aware import CarbonAware  # needs numpy

            checked_instance("carbon_aware", self.aware, CarbonAware, "CarbonAware(signal, deadline=...)")
            if len(self.kinds) > 1:
                raise UsageError('carbon_aware follows one knob, and knob is "auto"; pass "power limit" or "clock"')
        if self.selector is not None:
            checked_selector(self.selector, "optimum_selector")
        if self.make is not None:
            wanted = "a function of settings and a selector that makes a Search, such as GridSearch"
            checked_function("search", self.make, wanted)


def kinds_of(
    knob: KnobName, pl_step: int | None, original_clock_mhz: int | None, has_own_search: bool
) -> tuple[KnobKind, ...]:
    """Return the kinds of settings that an optimizer searches.

    Raises:
        UsageError: A number cannot be.
    """
    if pl_step is None:
        pl_step = _COARSE_STEP_WATTS if has_own_search else _FINE_STEP_WATTS
    if original_clock_mhz is not None:
        original_clock_mhz = checked_whole_number("original_clock_mhz", original_clock_mhz, 1)
    limits, clocks = PowerLimit(checked_whole_number("pl_step", pl_step, 1)), CommonClock(original_clock_mhz)
    if knob == "auto":
        return limits, clocks
    return (limits,) if knob == "power limit" else (clocks,)
