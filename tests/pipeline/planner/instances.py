"""Pipelines to plan: profiles that look measured, profiles that are nasty, and all schedules."""

import numpy as np
from hypothesis import strategies as st

from zeus_core.pipeline import PipelineProfile, schedules
from zeus_core.pipeline.planner.clock_options import MeasuredOption
from zeus_core.pipeline.planner.pipeline_profile import InstructionProfile

WHOLE = ("forward", "backward")
SPLIT = ("forward", "backward-input", "backward-weight")
SECONDS = {"forward": 0.05, "backward": 0.1, "backward-input": 0.05, "backward-weight": 0.05}


def smooth_profile(stages, clocks=12, seed=0, noise=0.003, kinds=WHOLE, blocking_power_watts=80.0, **more):
    """Time falls with the clock, power rises with its cube, and measurements scatter."""
    random = np.random.default_rng(seed)
    profiles = []
    for stage in range(stages):
        for kind in kinds:
            seconds = SECONDS[kind] * random.uniform(0.85, 1.15)
            bound, watts = random.uniform(0.6, 0.9), random.uniform(300, 380)
            options = []
            for clock in np.linspace(1410, 850, clocks).astype(int).tolist():
                x = clock / 1410
                time = seconds * (bound / x + 1 - bound) * (1 + noise * random.standard_normal())
                power = 80 + (watts - 80) * (0.3 * x + 0.7 * x**3)
                options.append(MeasuredOption(clock, float(time), float(power * time)))
            profiles.append(InstructionProfile(stage, kind, tuple(options)))
    return PipelineProfile(profiles, blocking_power_watts, **more)


def with_blocking(profile, watts):
    """The profile, whose GPUs wait at these watts by the clock."""
    rows = tuple(MeasuredOption(clock, 1.0, power) for clock, power in watts.items())
    blocking = [InstructionProfile(stage, "blocking", rows) for stage in range(profile.stages)]
    return PipelineProfile([*profile.instructions, *blocking], None, profile.gpus, profile.node_power_watts)


@st.composite
def options(draw):
    """Some options on a coarse grid, so that equal times, costs and slopes are common."""
    count = draw(st.integers(2, 6))
    times = draw(st.lists(st.integers(1, 12), min_size=count, max_size=count))
    energies = draw(st.lists(st.integers(0, 20), min_size=count, max_size=count))
    return tuple(
        MeasuredOption(1400 - 15 * place, time / 100, energy / 2.0)
        for place, (time, energy) in enumerate(zip(times, energies, strict=True))
    )


@st.composite
def schedules_and_kinds(draw, largest=4):
    """A schedule of any family, and the kinds it needs."""
    ranks, microbatches = draw(st.integers(1, largest)), draw(st.integers(1, 6))
    name = draw(st.sampled_from(["gpipe", "one_f_one_b", "interleaved", "zb_h1", "zbv"]))
    if name == "interleaved":
        return schedules.interleaved(ranks, ranks * draw(st.integers(1, 2)), draw(st.integers(1, 2))), WHOLE
    return getattr(schedules, name)(ranks, microbatches), SPLIT if name.startswith("zb") else WHOLE


@st.composite
def pipelines(draw):
    """A profile and a schedule; stages may differ in power and GPUs, and communication may take time."""
    schedule, kinds = draw(schedules_and_kinds())
    stages, ranks = schedule.stages, len(schedule.ranks)
    profiles = [InstructionProfile(stage, kind, draw(options())) for stage in range(stages) for kind in kinds]
    if draw(st.booleans()):
        profiles += [
            InstructionProfile(stage, "communication", (MeasuredOption(None, draw(st.integers(1, 3)) / 100, 0.1),))
            for stage in range(stages)
        ]
    watts = draw(st.lists(st.sampled_from([0.0, 40.0, 80.0]), min_size=ranks, max_size=ranks))
    gpus = draw(st.lists(st.integers(1, 2), min_size=ranks, max_size=ranks))
    rank_of = schedule.rank_of_stage
    profile = PipelineProfile(profiles, [watts[rank] for rank in rank_of], [gpus[rank] for rank in rank_of])
    return profile, schedule
