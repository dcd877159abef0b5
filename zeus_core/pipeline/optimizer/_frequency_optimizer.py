"""`PipelineFrequencyOptimizer`: the clocks of a training pipeline, profiled, planned and replayed during training."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from zeus_core.adapters import contained
from zeus_core.adapters.contained import log_fault
from zeus_core.adapters.result import show_result
from zeus_core.errors import UsageError
from zeus_core.events import Activity, StepBegin, TrainEnd
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor.no_monitor import checked_monitor
from zeus_core.pipeline.optimizer._course import PlanningCourse
from zeus_core.pipeline.optimizer._deployment import PlanPrediction
from zeus_core.pipeline.optimizer._plan_result import PlanResult
from zeus_core.pipeline.optimizer._replaying import Replaying
from zeus_core.pipeline.optimizer._stage import RankContext, Resting
from zeus_core.pipeline.optimizer._watches import AnnouncementBoard
from zeus_core.pipeline.optimizer.frequency_phases import Fault, PlanningPhase
from zeus_core.pipeline.optimizer.frequency_settings import PipelineFrequencySettings
from zeus_core.pipeline.planner.pipeline_profile import PipelineProfile
from zeus_core.pipeline.planner.pipeline_schedule import COMPUTE_KINDS, TRANSFER_KINDS
from zeus_core.pipeline.profile.iterations import IterationCost
from zeus_core.pipeline.profile.pipeline_job import PipelineRank
from zeus_core.pipeline.profile.rank_profile import RankProfile
from zeus_core.pipeline.profile.step_timeline import StepTimeline
from zeus_core.ports import Background, DeviceEvent, DeviceEvents, World
from zeus_core.ports.background import ThreadBackground
from zeus_core.ports.device_events import HostEvents, LostEvent
from zeus_core.ports.exchange import Exchange
from zeus_core.ports.world import checked_world
from zeus_core.validate import checked_number, shown, wrong_argument

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
    at `close` (or the end of a `with` block), for evaluation, and when the process ends, however it does.

    The hooks never raise. They block at the end of some steps only, to exchange results with the other ranks: at the
    end of warm-up and of the baseline, after each clock that is profiled, at each step while rank 0 plans, and every
    third step later on: every 0.2 s where steps are short, and more often where data-parallel pipelines may wait for
    each other (see `PipelineFrequencySettings.follow_stragglers`). While profiling, they also wait for the GPU to
    finish its work, and for the driver to set the clock. After a fault, which is logged with its remedy, the clocks are
    restored on all ranks and training continues without a plan. Without permission to set clocks it measures once, at
    the original clocks, and logs what is missing.

    Args:
        monitor: Measures the one GPU of this rank.
        pipeline_rank: The rank's position among the pipelines; if None, its rank in `world`, in one pipeline of all.
        settings: The goal and its limits; no slowdown if None.
        world: All ranks of the job, such as `zeus_core.pytorch.torch_world()`; this process alone if None.
        identity: Properties that the profile depends on besides the GPU, such as the model's partition, in JSON types:
            a saved profile is used only if all of them are the same.
        device_events: Marks points in the work of the GPU; host timestamps if None, for a synchronous device.
        make_background: Makes the queues of work outside the training thread, two of them: clocks wait for no plan.

    Raises:
        UsageError: An argument is wrong; the message names it.
        Exception: `make_background` raised it.
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
        make_background: Callable[[], Background] = ThreadBackground,
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
        if not isinstance(self._pipeline_rank, PipelineRank):  # such as a number: it would fail in a hook
            raise wrong_argument("pipeline_rank", pipeline_rank, "a PipelineRank(0)")
        if not isinstance(self._settings, PipelineFrequencySettings):  # such as a dict
            raise wrong_argument("settings", settings, "a PipelineFrequencySettings(slowdown_factor=1.05)")
        self._identity = _checked_identity({} if identity is None else identity)
        self._work: dict[str, Any] = {}
        self._device_events: DeviceEvents = HostEvents(monitor.time_source) if device_events is None else device_events
        self._backgrounds = (make_background(), make_background())
        self._timeline = StepTimeline(self._mark, self._pipeline_rank.rank)
        self._board = AnnouncementBoard()
        self._step_begin_seconds = 0.0
        self._is_result_due = False
        self._last_result: dict[str, str] = {}
        self._course = PlanningCourse(self._make_context, self._board)

    @property
    def phase(self) -> PlanningPhase:
        """The current phase."""
        return self._course.stage.phase

    @property
    def baseline(self) -> IterationCost | None:
        """The latest measured iteration at the original clocks; None until it is known."""
        return self._course.baseline

    @property
    def predicted(self) -> PlanPrediction | None:
        """The predicted cost of an iteration of all pipelines with the plans in force; None if not replaying."""
        stage = self._course.stage
        return stage.prediction if isinstance(stage, Replaying) else None

    @property
    def measured(self) -> IterationCost | None:
        """The iteration of the latest comparison (every `check_steps`); None before, or if not replaying."""
        stage = self._course.stage
        return stage.comparison.after if isinstance(stage, Replaying) and stage.comparison else None

    @property
    def observations(self) -> Sequence[RankProfile]:
        """Each rank's measurements at the original clocks, if clocks may not be set; empty until then."""
        return self._course.observations

    @property
    def clocks_mhz(self) -> tuple[int | None, ...] | None:
        """The clocks of this rank's computations by the plan in force, in order, in MHz; None if not replaying.

        An entry is None where the plan leaves the clock as it is.
        """
        stage = self._course.stage
        return stage.clocks_mhz if isinstance(stage, Replaying) else None

    def profile(self, pipeline: int = 0, *, interpolated: bool = False) -> PipelineProfile | None:
        """Return the measured profile of a pipeline; None until it is enough to plan with, or is measured again.

        Args:
            pipeline: Number of the data-parallel pipeline, from 0.
            interpolated: Whether to add the options between measured clocks, which plans may use too. Their standard
                errors hold the errors of interpolation.
        """
        profile = self._course.profile
        if profile is None:
            return None
        return profile.planning_options(pipeline) if interpolated else profile.of_pipeline(pipeline)

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
        self._board.announce(self._exchange.rank, time_seconds)

    def state_dict(self) -> dict[str, Any]:
        """Return the measurements for a checkpoint, in JSON types. The same on every rank."""
        return {"profile": self._course.kept() or {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Use the measurements of an earlier run, if they fit this job. Call this before training begins."""
        self._course.checkpoint = state.get("profile") if isinstance(state, Mapping) else None

    @contained
    def use_work(self, work: Mapping[str, int | str]) -> None:
        """Add facts that distinguish the work of this rank's steps from other work, such as the shapes of its tensors.

        A profile is used for the same facts only, and the job is measured again where they change. May be called after
        any step.
        """
        self._work.update(_checked_identity(work))

    @contained(default=dict[str, str])
    def result(self) -> dict[str, str]:
        """Return the result so far for people, as labelled lines; empty before the first step.

        They say whether a plan is in force, what it saves, and what profiling cost. After the end of training they are
        those of its end.
        """
        if not self._is_result_due:
            return self._last_result
        course, stage = self._course, self._course.stage
        is_in_force = isinstance(stage, Replaying) and not stage.is_at_original_clocks
        result = PlanResult(
            self.phase,
            self.baseline,
            self.predicted,
            course.comparison,
            course.profiling_steps,
            course.profiling_seconds,
            "" if is_in_force else course.reason,
            course.has_replayed,
            course.earlier,
        )
        return {"measured on": course.context.gpu.name, **result.rows()}

    @contained
    def show_result(self) -> None:
        """Show the result on standard error, on the first rank, unless it was shown or `settings.quiet` is true."""
        if self._is_result_due:
            self._last_result = self.result()
            self._is_result_due = False
            if self._exchange.rank == 0 and not self._settings.quiet:
                show_result(self._last_result)

    @_hook
    def on_step_begin(self) -> None:
        """Begin an iteration."""
        self._is_result_due = True
        self._step_begin_seconds = self._monitor.time_source.now()
        self._course.follow(StepBegin)
        self._timeline.begin_step()
        if self._timeline.step is not None:
            self._course.stage.begin_step(self._timeline.step.begin)

    @_hook
    def on_instruction_begin(self, name: str, stage: int | None = None, microbatch: int | None = None) -> None:
        """Begin an instruction.

        Args:
            name: Its kind: one of `zeus_core.pipeline.COMPUTE_KINDS`, `TRANSFER_KINDS`, "optimizer-step" or
                "all-reduce".
            stage: The stage it belongs to, for ranks that have several; the rank's position in its pipeline if None.
            microbatch: The number of its microbatch, from 0; counted by stage and kind if None.
        """
        if not self._is_followed(name):
            return
        instruction, begin = self._timeline.begin(name, stage, microbatch)
        if name in COMPUTE_KINDS:
            self._course.stage.begin_computation(instruction, begin)

    @_hook
    def on_instruction_end(self, name: str) -> None:
        """End the latest instruction."""
        if not self._is_followed(name):
            return
        end = self._timeline.end()
        if end is not None and name in COMPUTE_KINDS:
            self._course.stage.end_computation(end)

    @contained(on_fault=lambda self, error: self._end_for_good(error))
    def on_step_end(self) -> None:
        """End the iteration."""
        seconds = self._monitor.time_source.now() - self._step_begin_seconds
        self._course.end_step(self._timeline.end_step(), seconds)

    @_hook
    def on_pause(self, activity: Activity = Activity.IDLE) -> None:
        """Let something other than training run at the original clocks, until the next step."""
        self._course.stage.pause(self._mark())

    def on_resume(self) -> None:
        """End the latest pause. The next step resumes the plan."""

    def close(self) -> None:
        """End training, for any reason: restore the clocks, and show the result.

        A later step starts over with the measured profile.
        """
        self.show_result()
        self._course.follow(TrainEnd)
        self._course.context.restore()  # again, where it failed before
        self._course.checkpoint = self._course.kept()

    def __enter__(self) -> PipelineFrequencyOptimizer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _is_followed(self, name: str) -> bool:
        """Return whether an instruction may have a planned clock. Passes in an evaluation have none."""
        is_in_step = self._timeline.step is not None
        return is_in_step and name not in TRANSFER_KINDS and not isinstance(self._course.stage, Resting)

    def _make_context(self) -> RankContext:
        return RankContext(
            self._monitor,
            self._pipeline_rank,
            self._settings,
            self._identity,
            self._work,
            self._exchange,
            *self._backgrounds,
        )

    def _mark(self) -> DeviceEvent:
        """Mark the current point of the training thread; if that fails, steps are still counted."""
        try:
            return self._device_events()
        except Exception as error:
            self._fail(error)
            return LostEvent()

    def _step_aside(self, error: Exception) -> None:
        self._course.context.restore()
        log_fault(self, "planning the clocks of the pipeline is off for the rest of this run", error)

    def _end_for_good(self, error: Exception) -> None:
        self._exchange.fail(error)
        self._course.follow(Fault(reason=str(error) or repr(error)))

    def _fail(self, error: Exception) -> None:
        """Give up: at once in a job of one process, else at the next exchange, where all ranks do."""
        self._exchange.fail(error)
        if self._exchange.size == 1:
            self._course.follow(Fault(reason=str(error) or repr(error)))


def _checked_identity(identity: Mapping[str, Any]) -> dict[str, Any]:
    try:
        checked: dict[str, Any] = json.loads(json.dumps(dict(identity)))
    except Exception as error:  # also that of an object whose own methods fail
        raise UsageError(f"identity is {shown(identity)}; it must hold numbers and text, as JSON can") from error
    return checked
