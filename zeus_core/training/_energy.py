"""`TrainingEnergy`: measures where the energy of a training run goes, in any framework."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from zeus_core._validate import checked_flag, checked_object, checked_path
from zeus_core.adapters import contained
from zeus_core.adapters._result import show_result
from zeus_core.events import Activity, NoObserver, TrainingObserver
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor._no_monitor import training_monitor
from zeus_core.ports import World
from zeus_core.ports._world import SoloWorld, checked_world, warn_if_others_train
from zeus_core.training._electricity import checked_electricity
from zeus_core.training._hook import Hooked, hook
from zeus_core.training._optimizer import KeepsSearch, PausesTraining, TrainingOptimizer, check_optimizer
from zeus_core.training._outcome import outcome_of, summary_of
from zeus_core.training._run_recorder import RunRecorder
from zeus_core.training._summary import TrainingSummary, known_values

if TYPE_CHECKING:
    from zeus_core.electricity import Electricity
    from zeus_core.optimizer.batch_size import RecurringRun
    from zeus_core.tracing._recorder import TraceRecorder
    from zeus_core.training._run_trace import RunTrace

__all__ = ["TrainingEnergy"]


_SEARCH = "search"  # the part of the state of a checkpoint that is the optimizer's


class TrainingEnergy(Hooked):
    """Measures the energy of a training run, by activity, per token or sample, and in all.

    An adapter of your framework reports to it, or your own loop does:

        with TrainingEnergy(ZeusMonitor(), folder="output") as energy:
            for batch in batches:
                with energy.step(samples=len(batch)):
                    train(batch)
                if it_is_time:
                    writer.add_scalars(energy.log())
            with energy.during(Activity.EVALUATION):
                evaluate()
        print(energy.summary)

    It is a `TrainingObserver`, and forwards the events to the optimizer. No method raises during training: the first
    fault is logged, and training continues without the numbers it has cost.

    In a job of several ranks each device is counted once, and `on_train_begin`, `log`, `evaluation` and `finish` are
    collective: every rank must call them at the same step, and all get the same numbers. So is the first `on_pause` if
    training has not begun.

    Args:
        monitor: Measures this rank's GPUs; the optimizer's if None, or a new one.
        optimizer: An optimizer that receives the same events.
        world: The ranks of the job, such as `zeus_core.pytorch.torch_world()`; this process alone if None.
        folder: The folder of the journal, from which a resumed run reads what was spent before; none is kept if None.
        strict: Where no GPU can be measured, raise; otherwise one warning says so, and there are no numbers.
        quiet: Show no result at the end of training.
        electricity: Intensity and price of the electricity, by which emissions and cost are reported; none if None.
        recurring_run: The run of a recurring job whose time and energy this is, from `RecurringJob.run`. Report its
            evaluations to it by `recurring_run.report`.
        trace: Write a trace of the training, for Perfetto or Chrome: True for `zeus-energy/trace-RANK.json.gz` in the
            folder, or another folder. See docs/tracing.md.

    Attributes:
        monitor: As passed, or made.
        optimizer: As passed.
        summary: The summary of the latest run; None until it has ended.
        quiet: As passed.
        detected_evaluations: Evaluations of the current or latest run that its adapter has detected.

    Raises:
        UsageError: An argument is wrong; the message names it.
        DeviceError: No GPU can be measured, and `strict` is true.
    """

    def __init__(
        self,
        monitor: ZeusMonitor | None = None,
        optimizer: TrainingOptimizer | None = None,
        *,
        world: World | None = None,
        folder: str | Path | None = None,
        strict: bool = False,
        quiet: bool = False,
        electricity: Electricity | None = None,
        recurring_run: RecurringRun | None = None,
        trace: bool | str | Path = False,
    ) -> None:
        checked_flag("strict", strict)
        check_optimizer(optimizer, monitor)
        if monitor is None and optimizer is not None:
            monitor = optimizer.monitor
        self.monitor: ZeusMonitor = training_monitor(monitor, strict)
        self.optimizer = optimizer
        self.summary: TrainingSummary | None = None
        self.quiet: bool = checked_flag("quiet", quiet)
        self._observer: TrainingObserver = optimizer or NoObserver()
        if optimizer is not None:
            optimizer.quiet = True  # its result is part of the one shown here
        self._pausing = optimizer if isinstance(optimizer, PausesTraining) else None
        self._is_result_due = False
        self._electricity = checked_electricity(electricity)
        self._trace = None if trace is False else _run_trace(trace, self.monitor)
        self._recorder = RunRecorder(
            self.monitor,
            SoloWorld(),
            None if folder is None else Path(checked_path("folder", folder, "output", "folder")),
            self._electricity,
            self._trace,
        )
        self.detected_evaluations: int = 0
        self._is_world_checked = False
        if world is not None:
            self.use_world(world)
        if recurring_run is not None:
            _measure(recurring_run, self.monitor, self._recorder)

    @property
    def saving_fraction(self) -> float | None:
        """Energy per step saved by the setting the optimizer chose; None if unknown."""
        return self._observer.saving_fraction

    @property
    def _trace_recorder(self) -> TraceRecorder | None:
        """The record of the training under way; None without one."""
        return None if self._trace is None else self._trace.recorder

    @property
    def is_end_due(self) -> bool:
        """Whether the process ends before the next step, to go on later: now a checkpoint is to be saved."""
        return self._observer.is_end_due

    @contained(default=dict[str, str])
    def result(self) -> dict[str, str]:
        """Return the result of the latest training for people, as labelled lines; empty if there is none."""
        names = ", ".join(sorted({gpu.name for gpu in self.monitor.gpus.values()}))
        rows = {} if self.summary is None or not names else {"measured on": names, **self.summary.rows()}
        return {**rows, **self._observer.result()}

    def use_world(self, world: World) -> None:
        """Set the ranks. Call before training begins."""
        checked_world(world)
        self._is_world_checked = True
        self._recorder.use_world(world)
        self._observer.use_world(world)

    def use_work(self, work: Mapping[str, int | str]) -> None:
        """Tell the optimizer's work from other work; see `GlobalPowerLimitOptimizer.use_work`."""
        self._observer.use_work(work)
        self._note_work(work)

    @contained
    def _note_work(self, work: Mapping[str, int | str]) -> None:
        self._recorder.use_work(work)

    def use_folder(self, folder: str | Path, *, from_checkpoint: bool = False) -> None:
        """Keep the journal in this folder from the next training on.

        Args:
            folder: The folder.
            from_checkpoint: Write nothing before the first `state_dict`, which every rank must then call.
        """
        self._recorder.use_folder(Path(checked_path("folder", folder, "output", "folder")), from_checkpoint)

    @hook
    def forget(self) -> None:
        """Discard what the optimizer learned from steps: from now on a step is another amount of work."""
        self._observer.forget()

    @hook
    def on_train_begin(self, step: int = 0, *, max_steps: int | None = None) -> None:
        """Report that training begins; a collective call. Steps of a training that has not ended are done again.

        Args:
            step: Optimizer steps already done, in a resumed training.
            max_steps: The steps of the whole training, those included, if the loop knows.
        """
        if not self._is_world_checked:
            self._is_world_checked = True
            warn_if_others_train()
        self._observer.on_train_end()
        self._observer.on_train_begin(max_steps=None if max_steps is None else max(max_steps - step, 1))
        self.summary = None
        self._is_result_due = True
        self._recorder.begin(step)
        self.detected_evaluations = 0

    @hook
    def on_epoch_begin(self) -> None:
        """Report that an epoch begins, with the loading of its first data."""
        self._observer.on_epoch_begin()
        self._recorder.switch(Activity.STEPS)

    @hook
    def on_step_begin(self) -> None:
        """Report that an optimizer step begins."""
        if self._pausing is not None and self._pausing.is_pause_due:
            self._wait_out(self._pausing)
        self._observer.on_step_begin()
        self._recorder.begin_step()
        if self._trace is not None:
            self._trace.tell_setting(self.optimizer)

    def _wait_out(self, pausing: PausesTraining) -> None:
        """Have the optimizer pause training; within a hook."""
        self._recorder.pause(Activity.IDLE)
        pausing.while_paused = self._recorder.keep
        self._outside_of_hooks(pausing.pause)

    @hook
    def on_step_end(self) -> None:
        """Report that an optimizer step has ended."""
        self._observer.on_step_end()
        self._recorder.end_step()
        if self._trace is not None:
            self._trace.tell_setting(self.optimizer)

    @hook
    def on_pause(self, activity: Activity = Activity.IDLE, on_all_ranks: bool = False) -> None:
        """Report that work other than training is about to start, until `on_resume` or the next step.

        Args:
            activity: The work.
            on_all_ranks: Whether every rank reports it.
        """
        self._observer.on_pause(activity, on_all_ranks)
        self._recorder.pause(activity)

    @hook
    def on_resume(self) -> None:
        """Report the end of the work that the latest `on_pause` announced."""
        self._recorder.leave()
        self._recorder.stop_sampling()
        self._observer.on_resume()

    @hook
    def on_interference(self) -> None:
        """Report that work other than training has already happened since the last step ended."""
        self._observer.on_interference()

    @hook
    def on_epoch_end(self) -> None:
        """Report that the epoch has ended."""
        self._observer.on_epoch_end()
        self._recorder.switch(Activity.IDLE)

    @hook
    def on_train_end(self) -> None:
        """Report that training has ended, also by an error. Not collective: this rank may be the last one alive."""
        self._observer.on_train_end()
        if self._trace is not None:
            self._trace.tell_setting(self.optimizer)
        ended = self._recorder.end()
        if self.summary is None and ended is not None:
            self.summary = summary_of(self, self.optimizer, self._electricity, *ended)
        self._keep_run()
        if self._is_result_due:
            self._is_result_due = False
            if not self.quiet and self._recorder.rank == 0:
                show_result(self.result())

    @hook
    def on_pass_begin(self, activity: Activity) -> None:
        """Report the beginning of a pass with an account of its own within a training step, until `on_pass_end`."""
        self._recorder.enter(activity)

    @hook
    def on_pass_end(self) -> None:
        """Report the end of the pass."""
        self._recorder.leave()

    def count(self, samples: int = 0, tokens: int = 0) -> None:
        """Count samples or tokens this rank has trained on, since the previous call."""
        self._recorder.count(samples=samples, tokens=tokens)

    @contextmanager
    def step(self, samples: int = 0, tokens: int = 0) -> Iterator[None]:
        """Report an optimizer step as a `with` block, and count what this rank trains on in it."""
        self.on_step_begin()
        yield
        self.on_step_end()
        self.count(samples, tokens)

    @contextmanager
    def during(self, activity: Activity) -> Iterator[None]:
        """Report work other than training as a `with` block."""
        self.on_pause(activity)
        try:
            yield
        finally:
            self.on_resume()

    @hook(default=dict[str, float])
    def log(self) -> dict[str, float]:
        """Return what to log now: the metrics of `LOG_METRICS` that are known. A collective call.

        Returns:
            Values by name; empty outside of training and after a fault.
        """
        optimizer = self.optimizer
        clock_mhz: int | None = getattr(optimizer, "sm_clock_mhz", None)
        return self._recorder.log_values(None if optimizer is None else optimizer.power_limit_watts, clock_mhz)

    @hook(default=dict[str, float])
    def evaluation(self, prefix: str = "eval") -> dict[str, float]:
        """Return the energy of the current or latest evaluation. A collective call.

        Returns:
            `eval_energy_j`, or the same with another prefix; empty if some of it was lost, or there was none.
        """
        return known_values({f"{prefix}_energy_j": self._recorder.evaluation_joules()})

    @hook
    def finish(self) -> TrainingSummary | None:
        """Return the summary of the run, at the end of training; None outside of it. A collective call."""
        taken = self._recorder.account()
        if taken is not None:
            self.summary = summary_of(self, self.optimizer, self._electricity, *taken)
            self._keep_run()
        return self.summary

    @hook(default=dict[str, Any])
    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, in JSON types, and bring the journal up to date. Not collective."""
        state = self._recorder.state_dict()
        self._keep_run()
        keeper = self.optimizer if isinstance(self.optimizer, KeepsSearch) else None
        search = keeper.state_dict() if state and keeper is not None else None
        return {**state, _SEARCH: search} if search else state

    @hook
    def load_state_dict(self, state: Any) -> None:
        """Continue the run of a checkpoint at the next `on_train_begin`. A damaged state is ignored, with a warning."""
        if isinstance(state, Mapping) and _SEARCH in state:
            search, state = state[_SEARCH], {name: value for name, value in state.items() if name != _SEARCH}
            if isinstance(self.optimizer, KeepsSearch):
                self.optimizer.load_state_dict(search)
        self._recorder.load_state_dict(state)

    def __enter__(self) -> TrainingEnergy:
        self.on_train_begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        self.on_train_end()

    def _keep_run(self) -> None:
        """Bring the file of the run up to date, on the rank that keeps it."""
        if not self._recorder.keeps_run:
            return
        self._recorder.keep_run(outcome_of(self, self.optimizer, self._observer.result()))


def _run_trace(trace: bool | str | Path, monitor: ZeusMonitor) -> RunTrace:
    from zeus_core.training._run_trace import RunTrace, checked_trace  # imported here, as few trainings are traced

    folder = checked_trace(trace)
    return RunTrace(monitor.time_source, None if isinstance(folder, bool) else folder)


def _measure(run: RecurringRun, monitor: ZeusMonitor, recorder: RunRecorder) -> None:
    from zeus_core.training._recurring import RunMeter  # imported here, as few trainings are of a recurring job

    checked_object("recurring_run", run, "use_meter", "the run of a recurring job, as in `with job.run() as run:`")
    run.use_meter(RunMeter(monitor, recorder))
