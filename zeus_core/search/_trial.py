"""What a search learns from: a setting and what was measured at it."""

import math
from dataclasses import dataclass

from zeus_core.measurement import Measurement

__all__ = ["Trial"]


@dataclass(frozen=True)
class Trial:
    """The measurement of some training steps at one setting of a knob.

    Attributes:
        setting: The setting, in the unit of its knob (watts, MHz).
        steps: How many training steps were measured.
        measurement: Their time and energy; no energy in it is lost.
        step_seconds_deviation: Standard deviation of the duration of one step, in seconds.
    """

    setting: int
    steps: int
    measurement: Measurement
    step_seconds_deviation: float = 0.0

    @property
    def seconds_per_step(self) -> float:
        """Mean duration of a step."""
        return self.measurement.time / self.steps

    @property
    def joules_per_step(self) -> float:
        """Mean energy of a step, of all GPUs together."""
        total_energy = self.measurement.total_energy
        assert total_energy is not None, "a trial holds no lost energy"
        return total_energy / self.steps

    @property
    def seconds_per_step_error(self) -> float:
        """Standard error of `seconds_per_step`."""
        return self.step_seconds_deviation / math.sqrt(self.steps)
