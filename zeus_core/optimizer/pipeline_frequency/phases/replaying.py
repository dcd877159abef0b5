"""The clock of every instruction is set, and what comes of it watched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zeus_core.optimizer.pipeline_frequency.deployment import Deployment
from zeus_core.optimizer.pipeline_frequency.marks import Mark
from zeus_core.optimizer.pipeline_frequency.phases.phase import Phase, PhaseName
from zeus_core.optimizer.pipeline_frequency.planning_task import PlanningTask
from zeus_core.optimizer.pipeline_frequency.rank import Iteration, Rank, StepWindow, iteration_of
from zeus_core.optimizer.pipeline_frequency.stragglers import PipelineTimes, StragglerWatch
from zeus_core.optimizer.pipeline_frequency.timeline import RecordedStep
from zeus_core.pipeline import Instruction

__all__ = ["Replaying"]

_NOTEWORTHY = 0.01  # of an iteration: a smaller change of what is allowed needs no new plan


class Replaying(Phase):
    """Follows a plan.

    Args:
        rank: This rank.
        deployments: The plan of each pipeline.
        task: What makes other plans; None where the plan was given.
        after_change: Makes the phase that follows where a step has run something else than was planned.
        after_delay: Makes the phase that follows where steps took too long, from how long.
    """

    name = PhaseName.REPLAYING

    def __init__(
        self,
        rank: Rank,
        deployments: Sequence[Deployment],
        task: PlanningTask | None,
        after_change: Callable[[], Phase],
        after_delay: Callable[[float], Phase],
    ) -> None:
        self._rank = rank
        self._task = task
        self._after_change = after_change
        self._after_delay = after_delay
        job = rank.knows()
        self._order = job.schedules[rank.place.pipeline].ranks[rank.place.rank]
        self._position = 0
        self._is_changed = False
        self._usual = list(deployments)
        self._stragglers = StragglerWatch()
        self._allowed_seconds = [it.work_seconds for it in deployments]
        follows = job.pipelines > 1 and rank.settings.follow_stragglers
        self._exchange_steps = 1 if follows else rank.settings.check_steps
        self._steps_since_exchange = 0
        self._latest: RecordedStep | None = None
        self.measured: Iteration | None = None
        """What the latest iterations took that were compared; None until then."""
        self._deploy(deployments)

    @property
    def deployments(self) -> Sequence[Deployment]:
        """The plan each pipeline follows."""
        return self._deployments

    def begin_step(self, begin: Mark) -> None:
        """Set the first clock."""
        self._window.begin_step()
        self._position = 0
        self._request_next(begin)

    def begin_computation(self, instruction: Instruction) -> None:
        """Check that it is what was planned."""
        if self._is_changed:
            return
        is_as_planned = self._position < len(self._order) and self._order[self._position] == instruction
        self._is_changed = not is_as_planned

    def end_computation(self, end: Mark) -> None:
        """Set the clock of the next one."""
        self._position += 1
        self._request_next(end)

    def pause(self, now: Mark) -> None:
        """Whatever it is, it is to run as found."""
        self._rank.setter.request(None, now)
        self._window.spoil()

    def end_step(self, step: RecordedStep) -> Phase:
        """Now and then, compare with what was predicted, and look whether pipelines wait for each other."""
        self._is_changed = self._is_changed or self._position != len(self._order)
        self._window.add(step)
        self._steps_since_exchange += 1
        if step.work_seconds is not None or self._latest is None:
            self._latest = step
        if self._steps_since_exchange < self._exchange_steps:
            return self
        self._steps_since_exchange = 0
        is_over = len(self._window) >= self._rank.settings.check_steps
        told = self._rank.agreement.exchange(self.name, lambda: self._report(is_over))
        return self._judge(told)

    def _deploy(self, deployments: Sequence[Deployment]) -> None:
        place = self._rank.place
        self._deployments = deployments
        self._clocks_mhz = deployments[place.pipeline].clocks_mhz[place.rank]
        self._window = StepWindow(self._rank)

    def _request_next(self, when: Mark) -> None:
        if self._is_changed:
            self._rank.setter.request(None, when)
        elif self._position < len(self._clocks_mhz):
            clock_mhz = self._clocks_mhz[self._position]
            if clock_mhz is not None:
                self._rank.setter.request(clock_mhz, when)

    def _report(self, is_over: bool) -> dict[str, Any]:
        rank = self._rank
        if rank.setter.fault is not None:
            raise rank.setter.fault
        return {
            "is_changed": self._is_changed,
            "announced_seconds": rank.announced_seconds,
            "work_seconds": self._latest.work_seconds if self._latest is not None else None,
            "window": self._window.report() if is_over else None,
            "plans": self._task.result() if self._task is not None and self._task.is_busy else None,
        }

    def _judge(self, told: Sequence[Mapping[str, Any]]) -> Phase:
        if any(it["is_changed"] for it in told):
            return self._after_change()
        if told[0]["plans"] is not None and self._task is not None:
            self._task.is_busy = False
            self._deploy([Deployment.from_json(it) for it in told[0]["plans"]])
            return self
        if told[0]["window"] is not None:
            self._window = StepWindow(self._rank)
            self.measured = iteration_of(self._rank.knows(), [it["window"] for it in told])
            if self.measured is not None and self._is_too_slow(self.measured):
                return self._after_delay(self.measured.step_seconds)
        self._follow_stragglers(told)
        return self

    def _is_too_slow(self, measured: Iteration) -> bool:
        """Slower than the user allows, and than what other pipelines take in any case."""
        settings = self._rank.settings
        allowed_seconds = settings.slowdown_factor * self._rank.known_baseline().step_seconds
        longest_seconds = max(allowed_seconds, *(it.prediction.time_seconds for it in self._deployments))
        return measured.step_seconds > (1 + settings.tolerance_fraction) * longest_seconds

    def _follow_stragglers(self, told: Sequence[Mapping[str, Any]]) -> None:
        task, rank = self._task, self._rank
        works = [it["work_seconds"] for it in told]
        if task is None or task.is_busy or None in works or not rank.settings.follow_stragglers:
            return
        job = rank.knows()
        measured = [max(job.of_pipeline(works, pipeline)) for pipeline in range(job.pipelines)]
        planned = [it.work_seconds for it in self._deployments]
        usual = [it.work_seconds for it in self._usual]
        announced = max((it["announced_seconds"] or 0.0 for it in told), default=0.0)
        times = [PipelineTimes(*it) for it in zip(measured, planned, usual, strict=True)]
        allowed = self._stragglers.allow(times, announced or None)
        pairs = list(zip(allowed, self._allowed_seconds, strict=True))
        if any(abs(new - old) > _NOTEWORTHY * old for new, old in pairs):
            self._allowed_seconds = allowed
            is_waiting = [new > base * (1 + _NOTEWORTHY) for new, base in zip(allowed, usual, strict=True)]
            task.begin([new if waits else None for new, waits in zip(allowed, is_waiting, strict=True)])
