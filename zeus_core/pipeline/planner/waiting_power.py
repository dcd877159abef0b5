"""The power of GPUs that wait, by their clock, where a profile has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from zeus_core.pipeline.planner.dependencies import Numbers
from zeus_core.pipeline.planner.instruction import BLOCKING_KIND
from zeus_core.pipeline.planner.pipeline_profile import PipelineProfile

__all__ = ["WaitingPower"]


class WaitingPower(NamedTuple):
    """The power that waiting draws above `PipelineProfile.blocking_power_watts`, which is then the lowest of the stage.

    Attributes:
        measured: For each stage its measured clocks, rising, and the watts of all its GPUs at each above the lowest;
            empty if they were not measured.
    """

    measured: Mapping[int, tuple[Numbers, Numbers]]

    @classmethod
    def from_profile(cls, profile: PipelineProfile) -> WaitingPower:
        """Return the power in the `blocking` rows of a profile."""
        measured = {}
        for of_kind in profile.instructions:
            if of_kind.kind == BLOCKING_KIND:
                rising, stage = of_kind.options[::-1], of_kind.stage
                clocks = np.array([option.clock_mhz for option in rising], np.float64)
                watts = np.array([option.energy_joules / option.time_seconds for option in rising])
                measured[stage] = clocks, profile.gpus[stage] * (watts - profile.blocking_power_watts[stage])
        return cls(measured)

    def watts(self, stage: int, clock_mhz: int | None) -> float:
        """Return what all GPUs of a stage draw above the lowest; between two measured clocks in proportion.

        Args:
            stage: The stage.
            clock_mhz: Their clock; None for the highest.
        """
        if not self.measured:
            return 0.0
        return float(np.interp(np.inf if clock_mhz is None else clock_mhz, *self.measured[stage]))

    def cheapest_clock_mhz(self, stage: int) -> int:
        """Return the highest of the measured clocks at which waiting draws least."""
        clocks, watts = self.measured[stage]
        return int(clocks[watts == watts.min()].max())
