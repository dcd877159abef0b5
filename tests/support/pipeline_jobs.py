"""Jobs of a pipeline and profiles of their ranks, made up."""

from dataclasses import replace

from zeus_core.pipeline import schedules
from zeus_core.pipeline.optimizer import PipelineRank
from zeus_core.pipeline.profile.pipeline_job import PipelineJob, StageFacts, StageGpu
from zeus_core.pipeline.profile.rank_profile import InstructionRow, RankProfile

CLOCKS = (1410, 1200, 1050)


def introduce(number, rank, pipeline=0, *, schedule=None, **changes):
    schedule = schedule or schedules.one_f_one_b(2, 3)
    rank_information = StageFacts(
        PipelineRank(rank, pipeline),
        schedule.ranks[rank],
        StageGpu(f"GPU-{number}", "A100", 400.0, "570.1"),
        0.1,
        CLOCKS,
        {"layers": 12},
        {},
        None,
    )
    return replace(rank_information, **changes)


def a_job(places, **changes):
    return PipelineJob.from_ranks([introduce(number, *place, **changes) for number, place in enumerate(places)])


def row(stage, kind, clock_mhz, seconds, joules, errors=(0.0, 0.0)):
    return InstructionRow(stage, kind, clock_mhz, seconds, errors[0], joules, errors[1])


def measured(stage, watts=400.0, blocking_power_watts=80.0, more=()):
    """Half as fast at 1200 MHz, at half the power."""
    rows = [
        row(stage, kind, clock_mhz, seconds * slow, watts / slow * seconds * slow)
        for kind, seconds in (("forward", 0.05), ("backward", 0.1))
        for clock_mhz, slow in ((1410, 1.0), (1200, 2.0))
    ]
    return RankProfile((*rows, *more), blocking_power_watts)
