"""The arguments of an optimizer of a setting, checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast, get_args

from zeus_core._validate import checked_function, checked_instance, checked_one_of, checked_whole_number
from zeus_core.errors import UsageError
from zeus_core.search import Search
from zeus_core.search._objectives import OptimumSelector, checked_selector
from zeus_core.settings.kinds import KINDS, POWER_LIMIT, SM_CLOCK, Kind

if TYPE_CHECKING:
    from zeus_core.optimizer.carbon_aware import CarbonAware

__all__ = ["KnobName", "MakeSearch", "Mode", "SearchOptions", "checked_knob", "kinds_of"]

MakeSearch = Callable[[Sequence[int], OptimumSelector], Search]
"""Makes a search from the settings, the original one first, and the selector."""

Mode = Literal["search", "observe"]
"""Whether settings are changed."""

KnobName = Literal["power limit", "clock", "auto"]
"""The `option` of the kind of setting that is searched; limits and clocks, for "auto". Other kinds have theirs."""


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

    kinds: tuple[Kind, ...]
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

    @property
    def observes(self) -> bool:
        """Whether no setting is changed."""
        return self.mode == "observe"

    @property
    def is_followed(self) -> bool:
        """Whether an observer directs training once the search is over."""
        return self.aware is not None


def checked_knob(knob: KnobName) -> KnobName:
    """Return the argument `knob`. Raises `UsageError` if there is no such kind of setting."""
    return cast("KnobName", checked_one_of("knob", knob, [*_by_option(), "auto"]))


def kinds_of(
    knob: KnobName, pl_step: int | None, original_clock_mhz: int | None, has_own_search: bool
) -> tuple[Kind, ...]:
    """Return the kinds of settings that an optimizer searches.

    Raises:
        UsageError: A number cannot be.
    """
    if pl_step is not None:
        pl_step = checked_whole_number("pl_step", pl_step, 1)
    if original_clock_mhz is not None:
        original_clock_mhz = checked_whole_number("original_clock_mhz", original_clock_mhz, 1)
    wanted = (POWER_LIMIT, SM_CLOCK) if knob == "auto" else (_by_option()[knob],)
    return tuple(
        type(kind)(pl_step or (kind.coarse_step if has_own_search else kind.fine_step), original_clock_mhz)
        for kind in wanted
    )


def _by_option() -> dict[str, Kind]:
    return {kind.option: kind for kind in KINDS.values()}
