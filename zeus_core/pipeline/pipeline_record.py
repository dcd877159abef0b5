"""The record of a pipeline's training: its energy in the file of the run; in its trace, instructions and clocks too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zeus_core.adapters import contained
from zeus_core.events import Activity
from zeus_core.pipeline.pipeline_observer import PipelineObserver
from zeus_core.pipeline.planner.pipeline_schedule import COMPUTE_KINDS
from zeus_core.ports import DeviceEvent, DeviceEvents
from zeus_core.tracing.recorder import TraceRecorder
from zeus_core.training import TrainingEnergy

_REASONS = {
    "replaying": "the plan is in force",
    "profiling": "instructions are measured at several clocks",
    "off": "the optimizer has stepped aside",
}

# Iterations between two logs, which are collective: what other ranks took since the latest one is lost where a run is
# killed. More often than this only at first.
_LOG_STEPS = 64


class RecordedPipeline:
    """A `PipelineObserver` that records the reports it receives, and passes them to another one.

    The first step, and some of those after it, are collective: every rank must have one.

    Args:
        observer: Receives the same reports, such as a `PipelineFrequencyOptimizer`.
        energy: A `TrainingEnergy` without an optimizer.
        device_events: Marks points in the work of the GPU.
        done: Returns how many iterations were done before, in a resumed training.
    """

    def __init__(
        self,
        observer: PipelineObserver,
        energy: TrainingEnergy,
        device_events: DeviceEvents,
        done: Callable[[], int] = int,
    ) -> None:
        self._observer = observer
        self._energy = energy
        self._energy.add_result(getattr(observer, "result", dict))
        self._device_events = device_events
        self._done = done
        self._has_begun = False
        self._steps = 0
        self._counts: dict[tuple[str, int | None], int] = {}
        self._open: tuple[str, DeviceEvent, dict[str, int]] | None = None
        self._clocks_mhz: tuple[int | None, ...] = ()
        self._computations = 0

    def on_step_begin(self) -> None:
        """Begin an iteration."""
        if not self._has_begun:
            self._has_begun = True
            self._energy.on_train_begin(self._done())
        self._energy.on_step_begin()
        self._begin()
        self._observer.on_step_begin()

    @property
    def _recorder(self) -> TraceRecorder | None:
        record = self._energy.trace_record
        return record if isinstance(record, TraceRecorder) else None

    @contained
    def _begin(self) -> None:
        self._counts.clear()
        self._open = None
        self._clocks_mhz = getattr(self._observer, "clocks_mhz", None) or ()
        self._computations = 0

    def on_instruction_begin(self, name: str, stage: int | None = None, microbatch: int | None = None) -> None:
        """Begin an instruction."""
        self._begin_instruction(name, stage, microbatch)
        self._observer.on_instruction_begin(name, stage, microbatch)

    @contained
    def _begin_instruction(self, name: str, stage: int | None, microbatch: int | None) -> None:
        if self._recorder is None:
            return
        count = self._counts.get((name, stage), 0)
        self._counts[name, stage] = count + 1
        arguments = {"microbatch": count if microbatch is None else microbatch}
        if stage is not None:
            arguments["stage"] = stage
        if name in COMPUTE_KINDS:
            clock_mhz = self._clocks_mhz[self._computations] if self._computations < len(self._clocks_mhz) else None
            self._computations += 1
            if clock_mhz is not None:
                arguments["clock_mhz"] = clock_mhz
        self._open = name, self._device_events(), arguments

    def on_instruction_end(self, name: str) -> None:
        """End the latest instruction."""
        self._observer.on_instruction_end(name)
        self._end_instruction()

    @contained
    def _end_instruction(self) -> None:
        recorder = self._recorder
        if self._open is not None and recorder is not None:
            name, begin, arguments = self._open
            self._open = None
            recorder.add_instruction(name, begin, self._device_events(), arguments)

    def on_step_end(self) -> None:
        """End the iteration; a collective call after the first, the second, the fourth and so on, and now and then."""
        self._observer.on_step_end()
        self._energy.on_step_end()
        self._steps += 1
        if self._steps & (self._steps - 1) == 0 or self._steps % _LOG_STEPS == 0:
            self._energy.log()  # the ranks exchange their energy, and compare their clocks
        self._record_phase()

    @contained
    def _record_phase(self) -> None:
        phase: str | None = getattr(getattr(self._observer, "phase", None), "value", None)
        recorder = self._recorder
        if phase is not None and recorder is not None:
            recorder.set_to(f"clocks: {phase}", _REASONS.get(phase, "the original clocks"))

    def on_pause(self, activity: Activity = Activity.IDLE) -> None:
        """Begin work other than training."""
        self._observer.on_pause(activity)
        if self._has_begun:
            self._energy.on_pause(activity)

    def on_resume(self) -> None:
        """End the latest pause."""
        self._observer.on_resume()
        if self._has_begun:
            self._energy.on_resume()

    def use_work(self, work: Mapping[str, Any]) -> None:
        """Pass on facts that distinguish the work from other work, if the observer uses them."""
        use_work = getattr(self._observer, "use_work", None)
        if use_work is not None:
            use_work(work)

    def record_losses(self, values: Mapping[str, float]) -> None:
        """Record losses beside the energy."""
        self._energy.record_losses(values)

    def state_dict(self) -> dict[str, Any]:
        """Return the energy so far for a checkpoint, in JSON types. A collective call."""
        self._energy.log()
        return self._energy.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the run of a checkpoint at the next iteration."""
        self._has_begun = False
        self._energy.load_state_dict(state)

    def close(self) -> None:
        """End training, and write what was recorded. The observer is closed by its owner."""
        self._energy.on_train_end()
