"""All instructions are measured at one clock after another."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from zeus_core.optimizer.pipeline_frequency._clock_search import ClockSearch
from zeus_core.optimizer.pipeline_frequency._phases.phase import Phase, PhaseName
from zeus_core.optimizer.pipeline_frequency._pipeline_job import check_energies, measured_points
from zeus_core.optimizer.pipeline_frequency._profiler import LEAST_COUNTER_STEPS, Profiler, RankProfile
from zeus_core.optimizer.pipeline_frequency._rank import Rank
from zeus_core.optimizer.pipeline_frequency._timeline import RecordedStep
from zeus_core.ports import DeviceEvent

__all__ = ["Profiling"]

_MOST_TRIES = 4


class Profiling(Phase):
    """Measures one clock after another.

    Args:
        rank: This rank.
        follow: Creates the next phase, from what each rank has measured.
        is_observing: Whether only the original clock may be measured.
    """

    name = PhaseName.PROFILING

    def __init__(
        self, rank: Rank, follow: Callable[[Sequence[RankProfile]], Phase], is_observing: bool = False
    ) -> None:
        self._rank = rank
        self._follow = follow
        self._clock_mhz: int | None = None
        self._clocks_mhz: list[int] = []
        self._tries = 0
        self._search = ClockSearch(rank.known_job().clocks_mhz, rank.settings.max_clocks)
        (gpu,) = rank.monitor.gpus.values()
        self._profiler = Profiler(
            gpu, rank.monitor.time_source, rank.background, rank.known_job().counter_period_seconds
        )
        self._profiles: list[RankProfile] = []
        self._trial_steps = self._steps_of_a_trial()
        self._runs: list[list[RecordedStep]] = []
        self._is_paused = False
        rank.exchange.attempt(self._profiler.begin)
        self._begin_trial(None if is_observing else self._search.ask())

    def begin_step(self, begin: DeviceEvent) -> None:
        """After a pause, return to the clock being measured."""
        if self._is_paused:
            self._is_paused = False
            self._runs.append([])
            self._rank.set_clock(self._clock_mhz)

    def end_step(self, step: RecordedStep) -> Phase:
        """Exchange what was measured at the clock, once enough steps have run."""
        self._runs[-1].append(step)
        if sum(map(len, self._runs)) < self._trial_steps:
            return self
        rank = self._rank
        told = rank.exchange.gather(self._report, self.name)
        self._tries += 1
        if self._tries < _MOST_TRIES and not all(it["is_enough"] for it in told):
            self._runs = [[]]
            return self
        self._profiles = [RankProfile.from_json(it["profile"]) for it in told]
        faults = [it["fault"] for it in told]
        clock_mhz = None if self._clock_mhz is None else self._clock_after(self._clock_mhz, faults)
        if clock_mhz is not None:
            self._begin_trial(clock_mhz)
            return self
        rank.set_clock(None)
        self._profiler.end()
        return self._follow(self._profiles)

    def pause(self, now: DeviceEvent) -> None:
        """Whatever it is, it runs at the original clock."""
        self._is_paused = True
        self._rank.setter.request(None, now)

    def leave(self) -> None:
        """Stop measuring."""
        self._profiler.end()

    def _steps_of_a_trial(self) -> int:
        """For enough instructions, and enough steps of the energy counters. The same on all ranks."""
        job, baseline = self._rank.known_job(), self._rank.known_baseline()
        microbatches = min(schedule.microbatches for schedule in job.schedules)
        steps = math.ceil(self._rank.settings.profile_instructions / microbatches)
        return max(steps, math.ceil(LEAST_COUNTER_STEPS * job.counter_period_seconds / baseline.step_seconds))

    def _begin_trial(self, clock_mhz: int | None) -> None:
        self._clock_mhz = clock_mhz
        self._runs = [[]]
        self._tries = 0
        self._is_paused = False
        switch_seconds = self._rank.set_clock(clock_mhz)
        if switch_seconds is not None and clock_mhz is not None:
            self._profiler.add_switch(switch_seconds)

    def _clock_after(self, clock_mhz: int, faults: Sequence[str | None]) -> int | None:
        job = self._rank.known_job()
        check_energies(job, self._profiles, clock_mhz, faults)
        self._clocks_mhz.append(clock_mhz)
        for measured_mhz in self._clocks_mhz:  # later measurements refine earlier ones
            self._search.tell(measured_mhz, measured_points(job, self._profiles, measured_mhz))
        return self._search.ask()

    def _report(self) -> dict[str, Any]:
        rank = self._rank
        if rank.setter.fault is not None:
            raise rank.setter.fault
        self._runs[-1][-1].wait()
        for number, run in enumerate(self._runs):
            goes_on = number == 0 and self._tries > 0  # at the same clock, after an earlier try
            self._profiler.add(run, self._clock_mhz, is_settled=goes_on or self._clock_mhz is None)
        work = rank.known_job().rank_informations[rank.exchange.rank].order
        # The first instruction at a clock does not count.
        instructions = max(rank.settings.profile_instructions - 1, 1)
        profile, clock_mhz = self._profiler.profile(), self._clock_mhz
        is_enough = self._profiler.is_enough(work, clock_mhz, instructions) and profile.is_sure(clock_mhz)
        fault = self._profiler.fault
        return {
            "profile": profile.to_json(),
            "is_enough": is_enough,
            "fault": None if fault is None else str(fault),
        }
