"""An example to try planning with: a profile made by formulas, not measured."""

from __future__ import annotations

from zeus_core.pipeline.planner.clock_options import MeasuredOption
from zeus_core.pipeline.planner.pipeline_profile import InstructionProfile, PipelineProfile

__all__ = ["EXAMPLES", "example_profile"]

EXAMPLES = ("gpt3-like",)

_CLOCKS_MHZ = range(1410, 840, -15)
_SECONDS = {"forward": 0.050, "backward": 0.100}  # at the highest clock, of a stage of usual weight
_BOUND_BY_CLOCK = {"forward": 0.80, "backward": 0.75}  # the part of the time that falls with the clock
_IDLE_WATTS, _WORK_WATTS = 80.0, 330.0  # of a GPU that waits, and that works at the highest clock
# Layers do not divide evenly, the first stage also holds the embedding, and the last one the head.
_WEIGHTS = (1.02, 1.0, 1.0, 0.97, 1.0, 0.97, 1.0, 1.08)


def example_profile(gpus: int | list[int] = 1, node_power_watts: float = 0.0) -> PipelineProfile:
    """Return the profile `gpt3-like`: eight stages, as those of a large language model on GPUs of 400 W.

    The power rises with the clock linearly at first, then with its cube, as that of GPUs does.
    """
    profiles = []
    for stage, weight in enumerate(_WEIGHTS):
        for kind, seconds in _SECONDS.items():
            options = []
            for clock in _CLOCKS_MHZ:
                ratio = clock / _CLOCKS_MHZ[0]
                time = weight * seconds * (_BOUND_BY_CLOCK[kind] / ratio + 1 - _BOUND_BY_CLOCK[kind])
                watts = _IDLE_WATTS + (_WORK_WATTS - _IDLE_WATTS) * (0.3 * ratio + 0.7 * ratio**3)
                options.append(MeasuredOption(clock, round(time, 6), round(watts * time, 4)))
            profiles.append(InstructionProfile(stage, kind, tuple(options)))
    return PipelineProfile(profiles, _IDLE_WATTS, gpus, node_power_watts)
