"""`PipelineFrequencyOptimizer`: the clocks of a training pipeline, profiled, planned and replayed during training."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from zeus_core._validate import checked_number
from zeus_core.adapters import contained, log_fault
from zeus_core.errors import UsageError
from zeus_core.events import Activity
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor._windows import checked_monitor
from zeus_core.optimizer.pipeline_frequency._clock_setter import ClockSetter
from zeus_core.optimizer.pipeline_frequency._iterations import Iteration
from zeus_core.optimizer.pipeline_frequency._phases import Course, Phase, PhaseName, Replaying, Resting
from zeus_core.optimizer.pipeline_frequency._pipeline_job import pipeline_profile
from zeus_core.optimizer.pipeline_frequency._pipeline_rank import PipelineRank
from zeus_core.optimizer.pipeline_frequency._planner import Prediction
from zeus_core.optimizer.pipeline_frequency._profiler import RankProfile
from zeus_core.optimizer.pipeline_frequency._rank import NO_ANNOUNCEMENT, Announcement, Rank
from zeus_core.optimizer.pipeline_frequency._settings import PipelineFrequencySettings
from zeus_core.optimizer.pipeline_frequency._timeline import Timeline
from zeus_core.pipeline import COMPUTE_KINDS, TRANSFER_KINDS, PipelineProfile
from zeus_core.ports import (
    Background,
    DeviceEvent,
    DeviceEvents,
    Exchange,
    HostEvents,
    LostEvent,
    ThreadBackground,
    World,
)
from zeus_core.ports._world import checked_world

__all__ = ["PipelineFrequencyOptimizer"]

_hook = contained(on_fault=lambda self, error: self._fail(error))


class PipelineFrequencyOptimizer:
    """Finds a clock for each instruction of a training pipeline that saves energy without slowing it (Perseus).

    Each rank has one optimizer and reports its work to it:

        optimizer = PipelineFrequencyOptimizer(ZeusMonitor([local_rank]), world=torch_world())
        for batch in batches:
            optimizer.on_step_begin()
            for microbatch in microbatches:
                optimizer.on_instruction_begin("forward")
                ...
                optimizer.on_instruction_end("forward")
                ...
            optimizer.on_step_end()

    During training it measures the instructions at several clocks, makes a plan (`zeus_core.pipeline`), and sets the
    clock of each instruction from a background thread. The original clocks, those the GPUs ran at before, are restored
    at `close` (or the end of a `with` block), for evaluation, and when the process ends, except by SIGKILL.

    The hooks never raise. They block at the end of some steps only, to exchange results with the other ranks: at the
    end of warm-up and of the baseline, after each clock that is profiled, at each step while rank 0 plans, and every
    `check_steps` steps later on, or more often where data-parallel pipelines may wait for each other (see
    `PipelineFrequencySettings.follow_stragglers`). While profiling, they also wait for the GPU to finish its work, and
    for the driver to set the clock. After a fault, which is logged with its remedy, the clocks are restored on all
    ranks and training continues without a plan. Without permission to set clocks it measures once, at the original
    clocks, and logs what is missing.

    Args:
        monitor: Measures the one GPU of this rank.
        pipeline_rank: The rank's position in its pipeline; its rank in `world`, in one pipeline of all ranks, if None.
        settings: What to optimize for; no slowdown if None.
        world: All ranks of the job, such as `zeus_core.pytorch.torch_world()`; this process alone if None.
        identity: What the profile depends on besides the GPU, such as the model's partition, in JSON types: a saved
            profile is used only if all of it is the same.
        device_events: Marks points in the work of the GPU; host timestamps if None, for a synchronous device.
        background: Runs the work done outside the training thread; threads if None.

    Raises:
        UsageError: An argument is wrong; the message names it.
    """

    def __init__(
        self,
        monitor: ZeusMonitor,
        pipeline_rank: PipelineRank | None = None,
        settings: PipelineFrequencySettings | None = None,
        *,
        world: World | None = None,
        identity: Mapping[str, Any] | None = None,
        device_events: DeviceEvents | None = None,
        background: Background | None = None,
    ) -> None:
        self._monitor = checked_monitor(monitor)
        if len(monitor.gpus) != 1:
            raise UsageError(
                f"monitor measures {len(monitor.gpus)} GPUs; each rank of a pipeline has one: select it, such as "
                "ZeusMonitor(gpu_indices=[local_rank])"
            )
        self._exchange = Exchange(checked_world(world), self._step_aside)
        self._pipeline_rank = PipelineRank(self._exchange.rank) if pipeline_rank is None else pipeline_rank
        self._settings = PipelineFrequencySettings() if settings is None else settings
        for name, value, kind in (
            ("pipeline_rank", pipeline_rank, PipelineRank),
            ("settings", settings, PipelineFrequencySettings),
        ):
            if value is not None and not isinstance(value, kind):
                raise UsageError(f"{name} is {value!r}; it must be a {kind.__name__}, or left out")
        self._identity = _checked_identity(identity or {})
        self._device_events: DeviceEvents = device_events or HostEvents(monitor.time_source)
        self._backgrounds = [background or ThreadBackground() for _ in range(2)]
        self._timeline = Timeline(self._mark, self._pipeline_rank.rank)
        self._rank: Rank | None = None
        self._kept: Any = None
        self._announcement = NO_ANNOUNCEMENT
        self._phase: Phase = Resting(PhaseName.RESTING)

    @property
    def phase(self) -> PhaseName:
        """The current phase."""
        return self._phase.name

    @property
    def baseline(self) -> Iteration | None:
        """What an iteration took at the original clocks; None until it is known."""
        return None if self._rank is None else self._rank.baseline

    @property
    def predicted(self) -> Prediction | None:
        """What an iteration of all pipelines should take with the plans in force; None if not replaying."""
        if not isinstance(self._phase, Replaying):
            return None
        predictions = [it.prediction for it in self._phase.deployments]
        return Prediction(max(it.step_seconds for it in predictions), sum(it.energy_joules for it in predictions))

    @property
    def measured(self) -> Iteration | None:
        """What an iteration took in the latest comparison (every `check_steps`); None before, or if not replaying."""
        return self._phase.measured if isinstance(self._phase, Replaying) else None

    @property
    def observations(self) -> Sequence[RankProfile]:
        """What each rank has measured at the original clocks, if clocks may not be set; empty until then."""
        return () if self._rank is None else self._rank.observations

    @property
    def clocks_mhz(self) -> tuple[int | None, ...] | None:
        """The clocks of this rank's computations by the plan in force, in order, in MHz; None if not replaying.

        An entry is None where the plan leaves the clock as it is.
        """
        if not isinstance(self._phase, Replaying):
            return None
        return self._phase.deployments[self._pipeline_rank.pipeline].clocks_mhz[self._pipeline_rank.rank]

    def profile(self, pipeline: int = 0) -> PipelineProfile | None:
        """The measured profile of a pipeline; None until it is enough to plan with, and while it is measured again.

        Args:
            pipeline: Which of the data-parallel pipelines.
        """
        rank = self._rank
        if rank is None or rank.job is None or not rank.profiles:
            return None
        return pipeline_profile(rank.job, rank.profiles, pipeline)

    def set_straggler(self, time_seconds: float | None) -> None:
        """Announce how long an iteration takes elsewhere, in something this job waits for.

        May be called on any rank, or on all; the latest call counts.

        Args:
            time_seconds: The time of an iteration there, in seconds; None once this job no longer waits.

        Raises:
            UsageError: It is not a number above 0.
        """
        if time_seconds is not None:
            wanted = "seconds above 0, such as 2.5, or None"
            time_seconds = checked_number("time_seconds", time_seconds, sys.float_info.min, sys.float_info.max, wanted)
        latest = self._announcement if self._rank is None else self._rank.announcement
        self._announcement = Announcement(latest.number + 1, self._exchange.rank, time_seconds)
        if self._rank is not None:
            self._rank.announcement = self._announcement

    def state_dict(self) -> dict[str, Any]:
        """What was measured, for a checkpoint, in JSON types. The same on every rank."""
        return {"profile": (self._rank.state() if self._rank is not None else {}) or self._kept or {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Use what an earlier run has measured, if it fits this job. Call this before training begins."""
        self._kept = state.get("profile") if isinstance(state, Mapping) else None

    @_hook
    def on_step_begin(self) -> None:
        """An iteration begins."""
        if self.phase is PhaseName.RESTING:
            self._begin()
        self._timeline.begin_step()
        if self._timeline.step is not None:
            self._phase.begin_step(self._timeline.step.begin)

    @_hook
    def on_instruction_begin(self, name: str, stage: int | None = None, microbatch: int | None = None) -> None:
        """An instruction begins.

        Args:
            name: Its kind: one of `zeus_core.pipeline.COMPUTE_KINDS`, `TRANSFER_KINDS`, "optimizer-step" or
                "all-reduce".
            stage: The stage it belongs to, for ranks that have several; the rank's place in its pipeline if None.
            microbatch: The number of its microbatch, from 0; counted by stage and kind if None.
        """
        if not self._is_followed(name):
            return
        instruction = self._timeline.begin(name, stage, microbatch)
        if name in COMPUTE_KINDS:
            self._phase.begin_computation(instruction)

    @_hook
    def on_instruction_end(self, name: str) -> None:
        """The latest instruction has ended."""
        if not self._is_followed(name):
            return
        end = self._timeline.end()
        if end is not None and name in COMPUTE_KINDS:
            self._phase.end_computation(end)

    @contained(on_fault=lambda self, error: self._end_for_good(error))
    def on_step_end(self) -> None:
        """The iteration has ended."""
        step = self._timeline.end_step()
        if step is not None:
            self._phase = self._phase.end_step(step)

    @_hook
    def on_pause(self, activity: Activity = Activity.IDLE) -> None:
        """Something other than training is about to run, at the original clocks, until the next step."""
        self._phase.pause(self._mark())

    def on_resume(self) -> None:
        """What the latest `on_pause` announced is over. The next step resumes the plan."""

    def close(self) -> None:
        """Training has ended, however it ended: restore the clocks. A later step starts over with what was measured."""
        self._stop(self.phase if self.phase is PhaseName.OFF else PhaseName.RESTING)
        if self._rank is not None:
            self._kept = self._rank.state() or self._kept

    def __enter__(self) -> PipelineFrequencyOptimizer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _is_followed(self, name: str) -> bool:
        """Passes outside of a step, such as those of an evaluation, have no planned clock."""
        is_in_step = self._timeline.step is not None
        return is_in_step and name not in TRANSFER_KINDS and not isinstance(self._phase, Resting)

    def _begin(self) -> None:
        (gpu,) = self._monitor.gpus.values()
        background, planning_background = self._backgrounds
        original_mhz = self._settings.original_clock_mhz
        self._rank = Rank(
            self._monitor,
            self._pipeline_rank,
            self._settings,
            self._identity,
            self._exchange,
            lambda: ClockSetter(gpu, self._monitor.time_source, background, original_mhz),
            planning_background,
            announcement=self._announcement,
            kept=self._kept,
        )
        self._phase = Course(self._rank).begin()

    def _mark(self) -> DeviceEvent:
        """Marks the current point of the training thread; if that fails, steps are still counted."""
        try:
            return self._device_events()
        except Exception as error:
            self._fail(error)
            return LostEvent()

    def _step_aside(self, error: Exception) -> None:
        self._put_back()
        log_fault(self, "planning the clocks of the pipeline is off for the rest of this run", error)

    def _end_for_good(self, error: Exception) -> None:
        self._exchange.fail(error)
        self._stop(PhaseName.OFF)

    def _fail(self, error: Exception) -> None:
        """A job of one process gives up at once; a rank of several at the next exchange, where all do."""
        self._exchange.fail(error)
        if self._exchange.size == 1:
            self._stop(PhaseName.OFF)

    def _stop(self, name: PhaseName) -> None:
        left, self._phase = self._phase, Resting(name)
        self._put_back()
        left.leave()

    def _put_back(self) -> None:
        if self._rank is not None:
            self._rank.put_back()


def _checked_identity(identity: Mapping[str, Any]) -> dict[str, Any]:
    try:
        checked: dict[str, Any] = json.loads(json.dumps(dict(identity)))
    except (TypeError, ValueError) as error:
        raise UsageError(f"identity is {identity!r}; it must hold numbers and text, as JSON can") from error
    return checked
