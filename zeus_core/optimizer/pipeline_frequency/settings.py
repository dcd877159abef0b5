"""What a user may say about planning the clocks of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zeus_core.errors import UsageError

__all__ = ["PipelineFrequencySettings"]


@dataclass(frozen=True)
class PipelineFrequencySettings:
    """How the clocks of a pipeline are profiled, planned and watched.

    Attributes:
        slowdown_factor: The longest iteration over that at the highest clocks; 1 is no slowdown.
        tolerance_fraction: By how much of that a deployed plan may be slower than allowed before it is backed off.
        warmup_steps: Iterations at the beginning that nothing is done in.
        profile_instructions: How many instructions of each kind are measured at each clock, at least.
        most_clocks: How many clocks are measured at most.
        lowest_clock_mhz: The lowest clock to be used; as low as it pays if None.
        found_clock_mhz: The clock that whoever set up the machine has locked its GPUs at, which the driver does not
            tell: no higher one is used, and it is what they are put back to. None if they were not locked.
        switch_seconds: What a switch of the clock costs; as measured while profiling if None.
        check_steps: Iterations between two comparisons of what is measured with what was predicted. Where there are
            several data-parallel pipelines, they tell each other their times in every iteration.
        follow_stragglers: Whether a pipeline that waits for a slower one takes the time to save energy.
        profile_path: File in which the profile is kept; the same job does not measure again. Not kept if None.
        plan_path: A plan made beforehand, such as by `zeus-core plan`, which is deployed without profiling.

    Raises:
        UsageError: A value is of the wrong type or out of its range.
    """

    slowdown_factor: float = 1.0
    tolerance_fraction: float = 0.02
    warmup_steps: int = 5
    profile_instructions: int = 8
    most_clocks: int = 12
    lowest_clock_mhz: int | None = None
    found_clock_mhz: int | None = None
    switch_seconds: float | None = None
    check_steps: int = 10
    follow_stragglers: bool = True
    profile_path: str | None = None
    plan_path: str | None = None

    def __post_init__(self) -> None:
        """Check every value."""
        self._check_number("slowdown_factor", 1.0, 10.0, "1.0 (no slowdown) to 10.0, such as 1.05")
        self._check_number("tolerance_fraction", 0.0, 1.0, "0.0 to 1.0, such as 0.02")
        self._check_number("switch_seconds", 0.0, 1.0, "seconds from 0.0 to 1.0, such as 0.005")
        self._check_count("warmup_steps", 0)
        self._check_count("profile_instructions", 1)
        self._check_count("most_clocks", 2)
        self._check_count("check_steps", 1)
        self._check_count("lowest_clock_mhz", 1)
        self._check_count("found_clock_mhz", 1)
        if not isinstance(self.follow_stragglers, bool):
            raise UsageError(f"follow_stragglers is {self.follow_stragglers!r}; it must be true or false")
        for name in ("profile_path", "plan_path"):
            path = getattr(self, name)
            if isinstance(path, Path):
                object.__setattr__(self, name, str(path))
            elif path is not None and (not isinstance(path, str) or not path):
                raise UsageError(f"{name} is {path!r}; it must be the path of a file, such as {name[:-5]}.json")

    def _check_number(self, name: str, least: float, most: float, example: str) -> None:
        value: Any = getattr(self, name)
        if value is None and name == "switch_seconds":
            return
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= value <= most:
            raise UsageError(f"{name} is {value!r}; it must be {example}")

    def _check_count(self, name: str, least: int) -> None:
        value: Any = getattr(self, name)
        if value is None and name.endswith("_mhz"):
            return
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UsageError(f"{name} is {value!r}; it must be a whole number, at least {least}")
