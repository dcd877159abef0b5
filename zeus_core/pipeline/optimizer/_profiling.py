"""The effects of PROFILING and OBSERVING: all instructions are measured, at one clock after another."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from zeus_core.pipeline.optimizer._stage import RankContext, Stage
from zeus_core.pipeline.optimizer.frequency_phases import PlanningPhase, Profiled
from zeus_core.pipeline.profile.clock_search import ClockSearch
from zeus_core.pipeline.profile.iterations import IterationCost
from zeus_core.pipeline.profile.job_profile import JobProfile
from zeus_core.pipeline.profile.pipeline_job import PipelineJob
from zeus_core.pipeline.profile.profile_store import save_profile
from zeus_core.pipeline.profile.profiler import MIN_COUNTER_UPDATES, SETTLING_SECONDS, Profiler
from zeus_core.pipeline.profile.rank_profile import RankProfile
from zeus_core.pipeline.profile.step_timeline import RecordedStep
from zeus_core.ports import DeviceEvent
from zeus_core.units import duration_text

# The longest time that profiling may cost over the same iterations at the original clocks: 2 % of the first hour.
_MAX_COST_SECONDS = 0.02 * 3600.0

# Cost of the next clock over that of the latest one: the third clock of equal steps costs 1.5 times the second.
_NEXT_COST_FACTOR = 1.5

_MIN_CLOCKS = 2  # fewer are no choice

_logger = logging.getLogger(__name__)

# How many times a clock is measured for as long again if its energies are not precise yet. Four halve the standard
# error of one; an energy still less precise is used with its error.
_MAX_TRIES = 4

# Iterations for all clocks, beyond which none is measured again for the sake of precision. Of the achievable saving,
# plans realised 93.0 % with up to 78 iterations (passes scatter by 3 %, 56 runs) and 93.3 % within these 60; with up to
# 144 (6 %, 55 runs) 89.1 % and 88.6 % (benchmarks/pipeline_profiling.py --seeds 2, 2026-11-26).
_MAX_STEPS = 60

# Forward passes take about a third of an iteration: those that begin in the time in which a clock settles are so many
# times as many as if they were spread over it.
_FORWARD_RATE = 3


@dataclass(frozen=True)
class _TrialReport:
    """Measurements of one rank after a trial.

    Attributes:
        profile: All its measurements so far.
        is_enough: Whether those at the clock of the trial are enough.
        is_precise: Whether their energies are known well enough to plan with.
        cost_seconds: How much longer the iterations profiled so far took than at the original clocks.
        fault: The latest error of its GPU when its energy was read; None without one.
    """

    profile: RankProfile
    is_enough: bool
    is_precise: bool
    cost_seconds: float
    fault: str | None


class Profiling(Stage):
    """Measures one clock after another.

    Args:
        context: This rank.
        job: The pipelines.
        baseline: An iteration at the original clocks.
        phase: PROFILING, or OBSERVING to measure at the original clocks only.
    """

    def __init__(
        self,
        context: RankContext,
        job: PipelineJob,
        baseline: IterationCost,
        phase: PlanningPhase = PlanningPhase.PROFILING,
    ) -> None:
        super().__init__(phase)
        self._context = context
        self._job = job
        self._baseline = baseline
        self._search = ClockSearch(job.clocks_mhz, context.settings.max_clocks)
        self._profiler = Profiler(
            context.gpu,
            context.monitor.time_source,
            context.planning_background,
            job.counter_update_period_seconds,
        )
        self._measured_clocks_mhz: list[int] = []
        self._clock_mhz: int | None = None
        self._runs: list[list[RecordedStep]] = [[]]  # steps at the clock, a new list after each pause
        self._steps = 0
        self._tries = 0
        self._is_paused = False
        self._cost_seconds = 0.0
        self._cost_before_trial = 0.0
        self._trial_steps = self._steps_of_a_trial()
        self._begin_trial(None if phase is PlanningPhase.OBSERVING else self._search.ask())
        context.exchange.attempt(self._profiler.begin)  # last: only a stage that has begun is left

    def begin_step(self, begin: DeviceEvent) -> None:
        """After a pause, return to the clock being measured."""
        if self._is_paused:
            self._is_paused = False
            self._runs.append([])
            self._context.set_clock(self._clock_mhz)

    def end_step(self, step: RecordedStep) -> Profiled | None:
        """Exchange the measurements at the clock, once enough steps have run."""
        self._runs[-1].append(step)
        if sum(map(len, self._runs)) < self._trial_steps:
            return None
        reports = self._context.gather(_TrialReport, self._report, self.phase)
        self._tries += 1
        self._steps += self._trial_steps
        is_enough = all(report.is_enough for report in reports)
        is_precise = all(report.is_precise for report in reports)
        if self._tries < _MAX_TRIES and not (is_enough and (is_precise or not self._has_time_to_repeat)):
            self._runs = [[]]
            return None
        profile = JobProfile(self._job, tuple(report.profile for report in reports))
        if self._clock_mhz is not None:
            profile.check_measured(self._clock_mhz, [report.fault for report in reports])
            clock_mhz = self._clock_after(self._clock_mhz, profile)
            if clock_mhz is not None and self._pays(max(report.cost_seconds for report in reports)):
                self._begin_trial(clock_mhz)
                return None
        self._context.set_clock(None)
        path = self._context.settings.profile_path
        if path is not None and self.phase is PlanningPhase.PROFILING and self._context.is_first:
            save_profile(path, profile)
        return Profiled(profile, self._baseline)

    def pause(self, now: DeviceEvent) -> None:
        """Let the other work run at the original clock."""
        self._is_paused = True
        self._context.setter.request(None, now)

    def leave(self) -> None:
        """Stop measuring."""
        self._profiler.end()

    def _steps_of_a_trial(self) -> int:
        """Enough for `profile_instructions`, and for the energy counters. The same on all ranks."""
        microbatches = min(schedule.microbatches for schedule in self._job.schedules)
        seconds = self._baseline.step_seconds
        unsettled = max(_FORWARD_RATE * microbatches * SETTLING_SECONDS / seconds, 1.0)
        steps = math.ceil((self._context.settings.profile_instructions - 1 + unsettled) / microbatches)
        counter_seconds = MIN_COUNTER_UPDATES * self._job.counter_update_period_seconds
        return max(steps, math.ceil(counter_seconds / seconds))

    @property
    def _has_time_to_repeat(self) -> bool:
        """Whether a clock may be measured again: steps are left for all that may follow, and a trial to spare."""
        clocks = 1 if self._clock_mhz is None else self._search.max_clocks - len(self._measured_clocks_mhz)
        return self._steps + (clocks + 1) * self._trial_steps <= _MAX_STEPS

    def _begin_trial(self, clock_mhz: int | None) -> None:
        self._clock_mhz = clock_mhz
        self._runs = [[]]
        self._tries = 0
        self._is_paused = False
        switch_seconds = self._context.set_clock(clock_mhz)
        if switch_seconds is not None and clock_mhz is not None:
            self._profiler.add_switch(switch_seconds)

    def _clock_after(self, clock_mhz: int, profile: JobProfile) -> int | None:
        self._measured_clocks_mhz.append(clock_mhz)
        allowed_seconds = self._baseline.allowed_work_seconds(self._context.settings.slowdown_factor)
        for measured_mhz in self._measured_clocks_mhz:  # later measurements refine earlier ones
            self._search.tell(measured_mhz, profile.points(measured_mhz, allowed_seconds))
        return self._search.ask()

    def _pays(self, cost_seconds: float) -> bool:
        """Return whether there is time for another clock; say so if not."""
        own_seconds, self._cost_before_trial = cost_seconds - self._cost_before_trial, cost_seconds
        clocks = len(self._measured_clocks_mhz)
        if clocks < _MIN_CLOCKS or cost_seconds + _NEXT_COST_FACTOR * own_seconds <= _MAX_COST_SECONDS:
            return True
        if self._context.is_first:
            _logger.warning(
                "profiling ends after %d clocks, which took %s longer than at the original clocks: another one "
                "would cost more than 2 %% of an hour. Fewer profile_instructions allow for more clocks",
                clocks,
                duration_text(cost_seconds),
            )
        return False

    def _report(self) -> _TrialReport:
        context, profiler, clock_mhz = self._context, self._profiler, self._clock_mhz
        context.check_clocks()
        self._runs[-1][-1].wait()
        steps = [whole.seconds for run in self._runs for step in run if (whole := step.whole) is not None]
        self._cost_seconds += sum(steps) - len(steps) * self._baseline.step_seconds
        for number, run in enumerate(self._runs):
            goes_on = number == 0 and self._tries > 0  # at the same clock, after an earlier try
            profiler.add(run, clock_mhz, is_settled=goes_on or clock_mhz is None)
        work = self._job.ranks[context.exchange.rank].order
        # The first instruction at a clock does not count.
        instructions = max(context.settings.profile_instructions - 1, 1)
        profile = profiler.profile()
        is_known = all(row.energy_joules is not None for row in profile.rows_at(clock_mhz))
        is_enough = is_known and profiler.is_enough(work, clock_mhz, instructions)
        fault = None if profiler.fault is None else str(profiler.fault)
        return _TrialReport(profile, is_enough, profile.is_precise(clock_mhz), self._cost_seconds, fault)
