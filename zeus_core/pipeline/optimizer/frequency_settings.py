"""The settings for planning the clocks of a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from zeus_core.validate import checked_flag, checked_number, checked_path, checked_whole_number


@dataclass(frozen=True)
class PipelineFrequencySettings:
    """Settings for profiling, planning and watching the clocks of a pipeline.

    Attributes:
        slowdown_factor: Longest allowed iteration, as a multiple of that at the original clocks; 1 is no slowdown.
        tolerance_fraction: By what fraction of the allowed time a plan may be slower before a faster one replaces it.
        warmup_steps: Initial iterations that are left alone. At least three are: then the shapes of the tensors are
            known, which a kept profile has to fit.
        profile_instructions: How many instructions of each kind to measure at each clock.
        max_clocks: How many clocks to measure at most.
        lowest_clock_mhz: The lowest clock to use; as low as still saves energy if None.
        original_clock_mhz: The clock that the administrator has locked the GPUs at, which the driver does not
            report: no higher one is used, and it is restored in the end. None if they were not locked.
        switch_seconds: Cost of a change of the clock, such as 0.005 for plans with fewer of them; none if None, as
            clocks are requested in advance by the time that the driver was measured to take. Less than a millisecond
            counts as nothing.
        node_power_watts: Power that the rest of the node draws for each GPU at any clocks, such as that of CPUs
            and fans: plans then save the energy of the node.
        check_steps: Iterations between two comparisons of the measured time with the allowed one.
        follow_stragglers: Whether a pipeline that waits for a slower one takes the time to save energy. The pipelines
            then exchange their times about twice a second, or in each longer iteration.
        profile_path: File in which the profile is kept; the same job does not measure again. Not kept if None.
        plan_path: A plan made beforehand, such as by `zeus-core plan`, which is deployed without profiling.
        quiet: Whether no result is shown at the end.

    Raises:
        UsageError: A value is of the wrong type or out of its range.
    """

    slowdown_factor: float = 1.0
    tolerance_fraction: float = 0.02
    warmup_steps: int = 5
    profile_instructions: int = 8
    max_clocks: int = 12
    lowest_clock_mhz: int | None = None
    original_clock_mhz: int | None = None
    switch_seconds: float | None = None
    node_power_watts: float = 0.0
    check_steps: int = 10
    follow_stragglers: bool = True
    profile_path: str | None = None
    plan_path: str | None = None
    quiet: bool = False

    def __post_init__(self) -> None:
        """Check every value."""
        self._check("slowdown_factor", checked_number, 1.0, 10.0, "1.0 (no slowdown) to 10.0, such as 1.05")
        self._check("tolerance_fraction", checked_number, 0.0, 1.0, "0.0 to 1.0, such as 0.02")
        self._check("warmup_steps", checked_whole_number, 0)
        self._check("profile_instructions", checked_whole_number, 1)
        self._check("max_clocks", checked_whole_number, 2)
        self._check("node_power_watts", checked_number, 0.0, 10_000.0, "watts per GPU from 0 to 10000, such as 200")
        self._check("check_steps", checked_whole_number, 1)
        self._check("follow_stragglers", checked_flag)
        self._check("quiet", checked_flag)
        self._check_if_given("lowest_clock_mhz", checked_whole_number, 1)
        self._check_if_given("original_clock_mhz", checked_whole_number, 1)
        self._check_if_given("switch_seconds", checked_number, 0.0, 1.0, "seconds from 0.0 to 1.0, such as 0.005")
        self._check_if_given("profile_path", checked_path)
        self._check_if_given("plan_path", checked_path)

    def _check(self, name: str, check: Callable[..., Any], *range_: Any) -> None:
        object.__setattr__(self, name, check(name, getattr(self, name), *range_))

    def _check_if_given(self, name: str, check: Callable[..., Any], *range_: Any) -> None:
        if getattr(self, name) is not None:
            self._check(name, check, *range_)
