"""All instructions are measured at one clock after the other."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from zeus_core.optimizer.pipeline_frequency.clock_search import ClockSearch
from zeus_core.optimizer.pipeline_frequency.job import measured_points
from zeus_core.optimizer.pipeline_frequency.marks import Mark
from zeus_core.optimizer.pipeline_frequency.phases.phase import Phase, PhaseName
from zeus_core.optimizer.pipeline_frequency.profiler import Profiler, RankProfile
from zeus_core.optimizer.pipeline_frequency.rank import Rank
from zeus_core.optimizer.pipeline_frequency.timeline import RecordedStep

__all__ = ["Profiling"]

_MOST_TRIES = 4


class Profiling(Phase):
    """Measures clock after clock.

    Args:
        rank: This rank.
        follow: Makes the phase that follows, once `rank.profiles` are complete.
        is_observing: Whether only the clock found may be measured.
    """

    name = PhaseName.PROFILING

    def __init__(self, rank: Rank, follow: Callable[[], Phase], is_observing: bool = False) -> None:
        self._rank = rank
        self._follow = follow
        self._clock_mhz: int | None = None
        self._clocks_mhz: list[int] = []
        self._tries = 0
        self._is_paused = False
        self._search = ClockSearch(rank.knows().clocks_mhz, rank.settings.most_clocks)
        (gpu,) = rank.monitor.gpus.values()
        self._profiler = Profiler(gpu, rank.monitor.clock, rank.background)
        microbatches = min(schedule.microbatches for schedule in rank.knows().schedules)
        self._trial_steps = math.ceil(rank.settings.profile_instructions / microbatches)
        self._steps: list[RecordedStep] = []
        self._profiler.begin()
        self._begin_trial(None if is_observing else self._search.ask())

    def begin_step(self, begin: Mark) -> None:
        """After a pause, back to the clock that is measured."""
        if self._is_paused:
            self._is_paused = False
            self._rank.set_clock(self._clock_mhz)

    def end_step(self, step: RecordedStep) -> Phase:
        """Tell what was measured at the clock, once that is enough."""
        self._steps.append(step)
        if len(self._steps) < self._trial_steps:
            return self
        rank = self._rank
        told = rank.agreement.exchange(self.name, self._report)
        self._tries += 1
        if self._tries < _MOST_TRIES and not all(it["is_enough"] for it in told):
            self._steps = []
            return self
        rank.profiles = [RankProfile.from_json(it["profile"]) for it in told]
        clock_mhz = self._next_clock()
        if clock_mhz is not None:
            self._begin_trial(clock_mhz)
            return self
        rank.set_clock(None)
        self._profiler.end()
        return self._follow()

    def pause(self, now: Mark) -> None:
        """Whatever it is, it is to run as found."""
        self._is_paused = True
        self._rank.set_clock(None)

    def leave(self) -> None:
        """Measure no more."""
        self._profiler.end()

    def _begin_trial(self, clock_mhz: int | None) -> None:
        self._clock_mhz = clock_mhz
        self._steps = []
        self._tries = 0
        self._is_paused = False
        self._rank.set_clock(clock_mhz)

    def _next_clock(self) -> int | None:
        if self._clock_mhz is None:  # observing
            return None
        self._clocks_mhz.append(self._clock_mhz)
        for clock_mhz in self._clocks_mhz:  # what is measured later makes the earlier surer
            self._search.tell(clock_mhz, measured_points(self._rank.knows(), self._rank.profiles, clock_mhz))
        return self._search.ask()

    def _report(self) -> dict[str, Any]:
        self._steps[-1].wait()
        self._profiler.add(self._steps, self._clock_mhz)
        # The first instruction of a trial does not count.
        is_enough = self._profiler.is_enough(self._clock_mhz, self._rank.settings.profile_instructions - 1)
        return {"profile": self._profiler.profile().to_json(), "is_enough": is_enough}
