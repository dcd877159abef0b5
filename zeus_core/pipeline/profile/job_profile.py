"""The measured profile of a job: the profiles of its ranks, combined by pipeline. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median

from zeus_core.errors import UsageError
from zeus_core.pipeline.planner.clock_options import MeasuredOption
from zeus_core.pipeline.planner.pipeline_profile import InstructionProfile, PipelineProfile
from zeus_core.pipeline.planner.pipeline_schedule import BLOCKING_KIND, COMPUTE_KINDS, Instruction
from zeus_core.pipeline.profile.clock_search import MeasuredPoint
from zeus_core.pipeline.profile.interpolation import interpolated
from zeus_core.pipeline.profile.pipeline_job import PipelineJob
from zeus_core.pipeline.profile.rank_profile import InstructionRow, RankProfile
from zeus_core.units import duration_text

# Duration of an instruction too short to be measured. A profile must not hold 0; a microsecond is far below the
# resolution of a plan.
_MIN_SECONDS = 1e-6


@dataclass(frozen=True)
class JobProfile:
    """Measurements of all ranks of a job.

    Attributes:
        job: The job.
        ranks: Measurements of each rank.
    """

    job: PipelineJob
    ranks: tuple[RankProfile, ...] = field(repr=False)

    @property
    def switch_seconds(self) -> float:
        """Time the driver takes to set a clock: the median of the ranks."""
        return median(profile.switch_seconds for profile in self.ranks)

    def of_pipeline(self, pipeline: int) -> PipelineProfile:
        """Return the profile of one pipeline: the mean over ranks at the same position.

        Raises:
            UsageError: Something was not measured.
        """
        rows: dict[tuple[int, str], dict[int, list[InstructionRow]]] = {}
        for rank in self._members(pipeline):
            for row in self.ranks[rank].rows:
                if row.kind in COMPUTE_KINDS and row.clock_mhz is not None and row.energy_joules is not None:
                    rows.setdefault((row.stage, row.kind), {}).setdefault(row.clock_mhz, []).append(row)
        ranks_of_stage: dict[int, list[int]] = {}
        for rank in self._members(pipeline):
            for stage in {instruction.stage for instruction in self.job.ranks[rank].order}:
                ranks_of_stage.setdefault(stage, []).append(rank)
        stages = [ranks for _, ranks in sorted(ranks_of_stage.items())]
        blocking = self._blocking_profiles(stages)
        work = [InstructionProfile(*name, tuple(map(_option, by_clock.values()))) for name, by_clock in rows.items()]
        return PipelineProfile(
            [*work, *blocking],
            None if blocking else [self._blocking_power_watts(ranks) for ranks in stages],
            [len(ranks) for ranks in stages],
        )

    def _blocking_profiles(self, stages: Sequence[Sequence[int]]) -> list[InstructionProfile]:
        """Return the power of waiting at the highest and the lowest clock; nothing if it falls with it on no rank.

        Args:
            stages: The ranks of each stage.
        """
        clocks = [clock for profile in self.ranks for clock, _ in profile.blocking_watts_by_clock]
        if not clocks:
            return []
        ends = max(clocks), min(clocks)
        return [
            InstructionProfile(
                stage,
                BLOCKING_KIND,
                tuple(MeasuredOption(clock, 1.0, self._blocking_power_watts(ranks, clock)) for clock in ends),
            )
            for stage, ranks in enumerate(stages)
        ]

    def planning_options(self, pipeline: int) -> PipelineProfile:
        """Return the profile of one pipeline to plan with, which has interpolated options too.

        Raises:
            UsageError: Something was not measured.
        """
        measured = self.of_pipeline(pipeline)
        interpolated = [one if one.kind == BLOCKING_KIND else self._interpolated(one) for one in measured.instructions]
        return replace(measured, instructions=tuple(interpolated))

    def seconds(self, rank: int) -> dict[tuple[int, str, int | None], float]:
        """Return how long the computations of a rank take at the clocks of any plan, by stage, kind and clock."""
        information = self.job.ranks[rank]
        stages = {one.stage for one in information.order}
        return {
            (one.stage, one.kind, option.clock_mhz): option.time_seconds
            for one in self.of_pipeline(information.pipeline_rank.pipeline).instructions
            if one.stage in stages and one.kind != BLOCKING_KIND
            for option in self._interpolated(one).options
        }

    def _interpolated(self, measured: InstructionProfile) -> InstructionProfile:
        return replace(measured, options=interpolated(measured.options, self.job.clocks_mhz))

    def work_seconds(self, pipeline: int) -> float:
        """Return how long the instructions of an iteration take at the highest clocks.

        In plain Python: the planner's own code is compiled first, and this runs in the training thread.
        """
        options, schedule = self._highest_clock_options(pipeline), self.job.schedules[pipeline]
        ends: dict[Instruction, float] = {}
        free_at = [0.0] * len(schedule.ranks)
        for instruction in schedule.running_order:
            rank = schedule.rank_of_stage[instruction.stage]
            begin = max([free_at[rank], *(ends[needed] for needed in schedule.needs(instruction))])
            free_at[rank] = ends[instruction] = begin + options[instruction.stage, instruction.kind].time_seconds
        return max(free_at)

    def joules(self, step_seconds: float) -> float:
        """Return the energy of an iteration of all pipelines at the highest clocks, by how long it takes as a whole."""
        return sum(self._pipeline_joules(pipeline, step_seconds) for pipeline in range(self.job.pipelines))

    def _pipeline_joules(self, pipeline: int, step_seconds: float) -> float:
        profile, schedule = self.of_pipeline(pipeline), self.job.schedules[pipeline]
        options = self._highest_clock_options(pipeline)
        gpus, blocking = profile.gpus, [profile.find(stage, BLOCKING_KIND) for stage in range(profile.stages)]
        watts = [
            lowest if one is None else one.at_highest_clock.energy_joules  # over 1 s
            for one, lowest in zip(blocking, profile.blocking_power_watts, strict=True)
        ]
        first_stages = [order[0].stage for order in schedule.ranks]
        joules = sum(gpus[stage] * watts[stage] for stage in first_stages) * step_seconds
        for kind, stage, _ in (instruction for order in schedule.ranks for instruction in order):
            option = options[stage, kind]
            joules += gpus[stage] * (option.energy_joules - watts[stage] * option.time_seconds)
        return joules + self.tail_joules(pipeline)

    def _highest_clock_options(self, pipeline: int) -> dict[tuple[int, str], MeasuredOption]:
        return {(one.stage, one.kind): one.options[0] for one in self.of_pipeline(pipeline).instructions}

    def tail_joules(self, pipeline: int) -> float:
        """Return the energy of one pipeline's optimizer steps above that of waiting as long, over all its ranks."""
        return sum(
            self._cost_joules(rank, row)
            for rank in self._members(pipeline)
            for row in self.ranks[rank].rows
            if row.kind not in COMPUTE_KINDS
        )

    def points(self, clock_mhz: int, allowed_seconds: Sequence[float]) -> dict[object, MeasuredPoint]:
        """Return the measurements at a clock, by rank, stage and kind.

        Args:
            clock_mhz: The clock.
            allowed_seconds: How long the work of an iteration of each pipeline may take.
        """
        return {
            (rank, row.stage, row.kind): MeasuredPoint(
                row.time_seconds, row.energy_joules, self._cost_joules(rank, row), spare_seconds
            )
            for rank, profile in enumerate(self.ranks)
            for spare_seconds in [self._spare_seconds(rank, allowed_seconds)]
            for row in profile.rows
            if row.clock_mhz == clock_mhz and row.energy_joules is not None
        }

    def _spare_seconds(self, rank: int, allowed_seconds: Sequence[float]) -> float:
        """Return how long a rank waits at the highest clocks, for each of its computations."""
        fastest: dict[tuple[int, str], InstructionRow] = {}
        for row in self.ranks[rank].rows:
            name = row.stage, row.kind
            if row.clock_mhz is not None and row.clock_mhz >= (fastest.get(name, row).clock_mhz or 0):
                fastest[name] = row
        information = self.job.ranks[rank]
        seconds = [
            fastest[one.stage, one.kind].time_seconds for one in information.order if (one.stage, one.kind) in fastest
        ]
        waiting_seconds = allowed_seconds[information.pipeline_rank.pipeline] - sum(seconds)
        return max(waiting_seconds, 0.0) / len(information.order)

    def check_measured(self, clock_mhz: int, faults: Sequence[str | None]) -> None:
        """Check that everything was measured at a clock.

        Args:
            clock_mhz: The clock.
            faults: The latest error of each rank's GPU when its energy was read; None for a GPU without one.

        Raises:
            UsageError: Something could not be measured; the message names it and the remedy.
        """
        for rank, (profile, information) in enumerate(zip(self.ranks, self.job.ranks, strict=True)):
            rows = {(row.stage, row.kind): row for row in profile.rows if row.clock_mhz == clock_mhz}
            for stage, kind in information.work:
                row = rows.get((stage, kind))
                if row is None:
                    raise UsageError(
                        f"{kind} of stage {stage} was not measured at {clock_mhz} MHz on rank {rank} "
                        f"({information.gpu.name}): too few of them ran; use a larger profile_instructions"
                    )
                if row.energy_joules is None:
                    guess = (
                        "its energy counter does not advance, or the instructions "
                        f"({duration_text(row.time_seconds)}) are too short for one that advances every "
                        f"{self.job.counter_update_period_seconds:g} s; if so, measuring more of them may help: use a "
                        "larger profile_instructions"
                    )
                    raise UsageError(
                        f"the energy of {kind} of stage {stage} could not be measured on rank {rank} "
                        f"({information.gpu.name}): {faults[rank] or guess}"
                    )

    def check_usable(self) -> None:
        """Check that this job can set all measured clocks, and that each pipeline was measured.

        Raises:
            UsageError: It cannot, or something was not measured.
        """
        measured = {row.clock_mhz for profile in self.ranks for row in profile.rows if row.clock_mhz is not None}
        unknown = measured - {*self.job.clocks_mhz}
        if unknown:
            raise UsageError(f"it has clocks that this job cannot set: {sorted(unknown)} MHz")
        for pipeline in range(self.job.pipelines):
            self.of_pipeline(pipeline)

    def _members(self, pipeline: int) -> Iterator[int]:
        """Return the ranks of one pipeline."""
        return (
            rank for rank, information in enumerate(self.job.ranks) if information.pipeline_rank.pipeline == pipeline
        )

    def _cost_joules(self, rank: int, row: InstructionRow) -> float:
        """Energy above that of waiting as long; 0 if the energy is unknown."""
        if row.energy_joules is None:
            return 0.0
        return row.energy_joules - self._blocking_power_watts([rank]) * row.time_seconds

    def _blocking_power_watts(self, ranks: Iterable[int], clock_mhz: int | None = None) -> float:
        """Mean power of some ranks while they wait; of all ranks if none of these ever waits.

        Args:
            ranks: The ranks.
            clock_mhz: The highest or the lowest measured clock; None for the highest.
        """
        of_ranks = [
            dict(profile.blocking_watts_by_clock).get(clock_mhz or 0, profile.blocking_power_watts)
            for profile in self.ranks
        ]
        own = [watts for rank in ranks if (watts := of_ranks[rank]) is not None]
        others = [watts for watts in of_ranks if watts is not None]
        return fmean(own or others or [0.0])


def _option(rows: Sequence[InstructionRow]) -> MeasuredOption:
    seconds = max(fmean(row.time_seconds for row in rows), _MIN_SECONDS)
    energies = [row.energy_joules or 0.0 for row in rows]  # all of them are known
    stderrs = max(row.time_stderr_seconds for row in rows), max(row.energy_stderr_joules for row in rows)
    return MeasuredOption(rows[0].clock_mhz, seconds, fmean(energies), *stderrs)
