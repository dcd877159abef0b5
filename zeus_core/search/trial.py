"""A trial: one setting of a knob, and the measurement of training at it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from zeus_core.errors import UsageError
from zeus_core.measurement import Measurement
from zeus_core.validate import checked_instance, checked_number, checked_whole_number


@dataclass(frozen=True)
class Trial:
    """The measurement of some training steps at one setting of a knob.

    Attributes:
        setting: The setting, in the unit of its knob (watts, MHz).
        steps: How many training steps were measured.
        measurement: Their time and energy; no energy in it is lost.
        step_seconds_deviation: Standard deviation of the duration of one step, in seconds.
        lowest_clock_mhz: Mean SM clock under load, of the GPU with the lowest; None if it is not known.
        highest_clock_mhz: The same, of the GPU with the highest.

    Raises:
        UsageError: An attribute cannot be, such as a measurement that lasts no time.
    """

    setting: int
    steps: int
    measurement: Measurement
    step_seconds_deviation: float = 0.0
    lowest_clock_mhz: float | None = None
    highest_clock_mhz: float | None = None

    def __post_init__(self) -> None:
        """Check the attributes."""
        object.__setattr__(self, "setting", checked_whole_number("Trial.setting", self.setting, 1))
        object.__setattr__(self, "steps", checked_whole_number("Trial.steps", self.steps, 1))
        checked_instance("Trial.measurement", self.measurement, Measurement, "that of a window")
        if not self.measurement.time > 0 or self.measurement.total_energy is None:
            raise UsageError(f"the trial at {self.setting} has no time or no energy")
        wanted = "seconds, at least 0"
        checked_number("Trial.step_seconds_deviation", self.step_seconds_deviation, 0.0, math.inf, wanted)
        for name in ("lowest_clock_mhz", "highest_clock_mhz"):
            if getattr(self, name) is not None:
                checked_number(f"Trial.{name}", getattr(self, name), 1.0, math.inf, "MHz, at least 1, or None")

    @property
    def seconds_per_step(self) -> float:
        """Mean duration of a step."""
        return self.measurement.time / self.steps

    @property
    def joules_per_step(self) -> float:
        """Mean energy of a step, of all GPUs together."""
        return (self.measurement.total_energy or 0.0) / self.steps

    @property
    def seconds_per_step_stderr(self) -> float:
        """Standard error of `seconds_per_step`."""
        return self.step_seconds_deviation / math.sqrt(self.steps)
