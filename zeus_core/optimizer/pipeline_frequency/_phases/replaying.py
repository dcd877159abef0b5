"""The clock of each instruction is set, and the result is compared with the prediction."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from zeus_core.optimizer.pipeline_frequency._deployment import Deployment
from zeus_core.optimizer.pipeline_frequency._iterations import Iteration, StepWindow, iteration_of
from zeus_core.optimizer.pipeline_frequency._phases.phase import Phase, PhaseName
from zeus_core.optimizer.pipeline_frequency._planning_task import PlanningTask
from zeus_core.optimizer.pipeline_frequency._rank import Announcement, Rank
from zeus_core.optimizer.pipeline_frequency._stragglers import LEAST_WAIT_FRACTION, PipelineTimes, StragglerWatch
from zeus_core.optimizer.pipeline_frequency._timeline import RecordedStep
from zeus_core.pipeline import Instruction
from zeus_core.ports import DeviceEvent

__all__ = ["Replaying"]

_RECENT_STEPS = 4  # of a device that is further behind, stragglers are not detected
_RECENT_WINDOWS = 5
_LEAST_EXCHANGE_SECONDS = 0.5


class Replaying(Phase):
    """Follows a plan.

    Args:
        rank: This rank.
        deployments: The plan of each pipeline.
        task: Makes other plans; None if the plan was made beforehand.
        after_change: Creates the next phase after steps that do not match the plan.
        after_delay: Creates the next phase, from this one, when steps take too long: see `measured`, `good_windows`
            and `is_usual`.
        good_windows: In how many earlier comparisons these plans were fast enough.
    """

    name = PhaseName.REPLAYING

    def __init__(
        self,
        rank: Rank,
        deployments: Sequence[Deployment],
        task: PlanningTask | None,
        after_change: Callable[[], Phase],
        after_delay: Callable[[Replaying], Phase],
    ) -> None:
        self._rank = rank
        self._task = task
        self._after_change = after_change
        self._after_delay = after_delay
        job = rank.known_job()
        self._order = job.schedules[rank.pipeline_rank.pipeline].ranks[rank.pipeline_rank.rank]
        self._position = 0
        self._is_changed = False
        self._usual_seconds = [it.work_seconds for it in deployments]
        self._allowed_seconds = self._usual_seconds
        self._stragglers = StragglerWatch() if task is not None and rank.settings.follow_stragglers else None
        self._exchange_steps = self._steps_between_exchanges()
        self._steps_since_exchange = 0
        self._usual_step_seconds: deque[float] = deque(maxlen=_RECENT_WINDOWS)
        self._announcement = rank.announcement  # the same on all ranks
        self._recent: deque[RecordedStep] = deque(maxlen=_RECENT_STEPS)
        self.measured: Iteration | None = None
        """What an iteration took in the latest comparison; None before it."""
        self.good_windows = 0
        """In how many comparisons these plans were fast enough."""
        self._deploy(deployments)

    @property
    def deployments(self) -> Sequence[Deployment]:
        """The plan each pipeline follows."""
        return self._deployments

    @property
    def is_usual(self) -> bool:
        """Whether no pipeline is slowed down for a slower one, or about to be."""
        is_settled = self._task is None or not self._task.is_wanted
        return is_settled and not any(it.is_waiting for it in self._deployments)

    def begin_step(self, begin: DeviceEvent) -> None:
        """Set the first clock."""
        self._window.begin_step()
        self._position = 0
        self._request_next(begin)

    def begin_computation(self, instruction: Instruction) -> None:
        """Check that it matches the plan."""
        is_as_planned = self._position < len(self._order) and self._order[self._position] == instruction
        self._is_changed = self._is_changed or not is_as_planned

    def end_computation(self, end: DeviceEvent) -> None:
        """Set the clock of the next one."""
        self._position += 1
        self._request_next(end)

    def pause(self, now: DeviceEvent) -> None:
        """Whatever it is, it runs at the original clock."""
        self._rank.setter.request(None, now)

    def end_step(self, step: RecordedStep) -> Phase:
        """From time to time, compare with what is allowed, and see whether pipelines wait for each other."""
        self._is_changed = self._is_changed or self._position != len(self._order)
        self._window.add(step)
        self._recent.append(step)
        self._steps_since_exchange += 1
        if self._steps_since_exchange < self._exchange_steps:
            return self
        self._steps_since_exchange = 0
        self._rank.setter.guard()
        is_over = len(self._window) >= self._rank.settings.check_steps
        return self._judge(self._rank.exchange.gather(lambda: self._report(is_over), self.name))

    def _steps_between_exchanges(self) -> int:
        """The same on all ranks: pipelines that may wait for each other exchange their times often."""
        rank = self._rank
        if self._stragglers is None or rank.known_job().pipelines == 1:
            return rank.settings.check_steps
        often = math.ceil(_LEAST_EXCHANGE_SECONDS / rank.known_baseline().step_seconds)
        return min(often, rank.settings.check_steps)

    def _deploy(self, deployments: Sequence[Deployment]) -> None:
        pipeline_rank = self._rank.pipeline_rank
        self._deployments = deployments
        self._clocks_mhz = deployments[pipeline_rank.pipeline].clocks_mhz[pipeline_rank.rank]
        self._window = StepWindow(self._rank.monitor)
        self._usual_step_seconds.clear()

    def _request_next(self, when: DeviceEvent) -> None:
        """The clock of the next computation; the original clock after the last one, and when off the plan."""
        if self._is_changed or self._position >= len(self._clocks_mhz):
            self._rank.setter.request(None, when)
        elif (clock_mhz := self._clocks_mhz[self._position]) is not None:
            self._rank.setter.request(clock_mhz, when)

    def _report(self, is_over: bool) -> dict[str, Any]:
        rank, task = self._rank, self._task
        if rank.setter.fault is not None:
            raise rank.setter.fault
        done = (seconds for step in reversed(self._recent) if (seconds := step.work_seconds) is not None)
        return {
            "is_changed": self._is_changed,
            "announcement": list(rank.announcement),
            "work_seconds": next(done, None),
            "window": self._window.report() if is_over else None,
            "plans": task.result() if task is not None and task.is_wanted else None,
        }

    def _judge(self, told: Sequence[Mapping[str, Any]]) -> Phase:
        self._announcement = max(Announcement(*it["announcement"]) for it in told)
        self._rank.announcement = max(self._rank.announcement, self._announcement)  # there may be a newer one by now
        if any(it["is_changed"] for it in told):
            return self._after_change()
        if told[0]["plans"] is not None and self._task is not None:
            self._task.is_wanted = False
            self._deploy([Deployment.from_json(it) for it in told[0]["plans"]])
            return self
        windows = [it["window"] for it in told]
        measured = None if None in windows else iteration_of(self._rank.known_job(), windows)
        if measured is not None:  # or the window grows until every device has finished a step of it
            self.measured = measured
            self._window = StepWindow(self._rank.monitor)
            if self._is_too_slow(measured):
                return self._after_delay(self)
            self.good_windows += 1
            self._usual_step_seconds.append(measured.step_seconds)
        self._follow_stragglers([it["work_seconds"] for it in told])
        return self

    def _is_too_slow(self, measured: Iteration) -> bool:
        """Slower than the user allows, and than what is waited for regardless."""
        settings = self._rank.settings
        reference_seconds = self._rank.known_baseline().step_seconds
        if self._usual_step_seconds:
            # No plan is faster than the original clocks: a baseline slower than a plan was slowed by something else.
            reference_seconds = min(reference_seconds, median(self._usual_step_seconds))
        allowed_seconds = settings.slowdown_factor * reference_seconds
        waiting_seconds = [it.prediction.step_seconds for it in self._deployments if it.is_waiting]
        return measured.step_seconds > (1 + settings.tolerance_fraction) * max([allowed_seconds, *waiting_seconds])

    def _follow_stragglers(self, works: Sequence[float | None]) -> None:
        known = [seconds for seconds in works if seconds is not None]
        if self._stragglers is None or self._task is None or self._task.is_wanted or len(known) < len(works):
            return
        job = self._rank.known_job()
        measured = [max(job.of_pipeline(known, pipeline)) for pipeline in range(job.pipelines)]
        planned = [it.work_seconds for it in self._deployments]
        times = [PipelineTimes(*it) for it in zip(measured, planned, self._usual_seconds, strict=True)]
        allowed = self._stragglers.allow(times, self._announced_work_seconds())
        pairs = zip(allowed, self._allowed_seconds, strict=True)
        if any(abs(new - old) > LEAST_WAIT_FRACTION * old for new, old in pairs):
            self._allowed_seconds = allowed
            granted = zip(allowed, self._usual_seconds, strict=True)
            self._task.begin([new if new > usual else None for new, usual in granted])

    def _announced_work_seconds(self) -> float | None:
        announced_seconds, baseline = self._announcement.time_seconds, self._rank.known_baseline()
        if announced_seconds is None:
            return None
        return announced_seconds - (baseline.step_seconds - max(baseline.work_seconds))
