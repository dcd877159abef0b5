"""`TrainingEnergy`: measures where the energy of a training run goes, in any framework."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeus_core.adapters import contained
from zeus_core.adapters.contained import Hooked
from zeus_core.adapters.result import show_result
from zeus_core.codec import encode
from zeus_core.device.gpu import StepLoads
from zeus_core.environment import SAVE, note, observes
from zeus_core.errors import UsageError
from zeus_core.events import (
    PASS_END,
    STEP_BEGIN,
    STEP_END,
    TRAIN_END,
    Activity,
    Event,
    Observer,
    PassBegin,
    Pause,
    StepBegin,
    StepEnd,
    TrainBegin,
    TrainEnd,
    TrainingHooks,
    TrainingOptimizer,
)
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor.no_monitor import NoMonitor, training_monitor
from zeus_core.ports import World
from zeus_core.ports.site_defaults import with_site_defaults
from zeus_core.ports.world import checked_world, warn_if_others_train
from zeus_core.training._cpu_window import CpuWindow
from zeus_core.training._metrics import LoggedValues
from zeus_core.training._observers import Observers
from zeus_core.training._part_reports import PartOutcome
from zeus_core.training._run_recorder import RunRecorder
from zeus_core.training._summary import TrainingSummary, known_values, remark_rows
from zeus_core.training.account import Account
from zeus_core.training.charges.charged_electricity import checked_electricity
from zeus_core.validate import checked_object, checked_path, shown

if TYPE_CHECKING:
    from zeus_core.electricity import Electricity
    from zeus_core.training.run_meter import MeteredRun
    from zeus_core.training.traced import Record, RunTraced


_logger = logging.getLogger(__name__)

_SEARCH = "search"  # the part of the state of a checkpoint that is the optimizer's


under_way: weakref.WeakKeyDictionary[TrainingEnergy, int] = weakref.WeakKeyDictionary()  # with the process of each


class TrainingEnergy(TrainingHooks, Hooked):
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

    Each hook makes one event, which the optimizer receives, the observers that were added, and the account. No method
    raises during training: the first fault is logged, and training continues without the numbers it has cost.

    In a job of several ranks each device is counted once, and `on_train_begin`, `log`, `evaluation` and `finish` are
    collective: every rank must call them at the same step, and all get the same numbers. So is the first `on_pause` if
    training has not begun.

    Args:
        monitor: Measures this rank's GPUs; the optimizer's if None, or a new one.
        optimizer: An optimizer that receives the same events; "auto" for the power limit that takes the least energy
            within 10 % more time, or another slowdown, such as "5%". If None, the one that `ZEUS_SAVE` asks for.
        world: The ranks of the job, such as `zeus_core.pytorch.torch_world()`; this process alone if None.
        folder: The folder of the journal, from which a resumed run reads what was spent before; none is kept if None.
        strict: Where no GPU can be measured, raise; otherwise one warning says so, and there are no numbers but the
            energy of the CPUs over the whole training, where it can be read.
        quiet: Show no result at the end of training.
        electricity: Intensity and price of the electricity, by which emissions and cost are reported; none if None.
        recurring_run: The run of a recurring job whose time and energy this is, from `RecurringJob.run`. Report its
            evaluations to it by `recurring_run.report`.
        trace: Write a trace of the training, for Perfetto or Chrome: True for `zeus-energy/trace-RANK.json.gz` in the
            folder, or another folder. See docs/tracing.md.

    Attributes:
        monitor: As passed, or made.
        optimizer: As passed, or made for "auto" or `ZEUS_SAVE`.
        quiet: As passed.
        detected_evaluations: Evaluations of the current or latest run that its adapter has detected.

    Raises:
        UsageError: An argument is wrong; the message names it.
        DeviceError: No GPU can be measured, and `strict` is true.
    """

    def __init__(
        self,
        monitor: ZeusMonitor | None = None,
        optimizer: TrainingOptimizer | str | None = None,
        *,
        world: World | None = None,
        folder: str | Path | None = None,
        strict: bool = False,
        quiet: bool = False,
        electricity: Electricity | None = None,
        recurring_run: MeteredRun | None = None,
        trace: bool | str | Path = False,
    ) -> None:
        if isinstance(optimizer, str):
            from zeus_core.optimizer.asked import automatic_optimizer  # imported here, as it imports the search

            monitor = training_monitor(monitor, strict)
            optimizer = automatic_optimizer(optimizer)(monitor)
        self._is_asked = optimizer is None  # by variables, if at all
        if optimizer is None:
            monitor = training_monitor(monitor, strict)
            optimizer = _asked_optimizer(monitor)
        _check_optimizer(optimizer, monitor)
        if monitor is None and optimizer is not None:
            monitor = optimizer.monitor
        self.monitor: ZeusMonitor = training_monitor(monitor, strict)
        self.optimizer = optimizer
        self._optimizer: TrainingOptimizer = optimizer or TrainingOptimizer()  # without one, its answers
        self._further_result: Callable[[], dict[str, str]] = dict
        self._summary: TrainingSummary | None = None  # of the latest run that has ended
        self.quiet: bool = quiet
        if optimizer is not None:
            optimizer.quiet = True  # its result is part of the one shown here
        self._training: TrainBegin | None = None  # under way
        self._has_begun = False
        self._electricity = checked_electricity(electricity)
        self._trace = None if trace is False else _traced(trace, self.monitor, optimizer)
        self._recorder = RunRecorder(
            self.monitor,
            None if folder is None else Path(checked_path("folder", folder, "output", "folder")),
            self._electricity,
            self._trace,
            says_how=not quiet,
        )
        self._loads = StepLoads(self.monitor.gpus.values())
        self._observers = Observers(optimizer, self._trace, self._recorder)
        self.detected_evaluations: int = 0
        self._cpus = CpuWindow(self.monitor)
        self._is_world_checked = False
        if world is not None:
            self.use_world(world)
        if recurring_run is not None:
            _measure(recurring_run, self.monitor, self._recorder)

    @property
    def summary(self) -> TrainingSummary:
        """The summary of the latest run; until it has ended, and if nothing was measured, an empty one with why."""
        return self._summary or TrainingSummary.of_nothing(self._why_nothing)

    @property
    def _why_nothing(self) -> str:
        if isinstance(self.monitor, NoMonitor):
            return self.monitor.reason
        if self._training is not None:
            return "it has not ended"
        return "the log names a fault, or a rank did not call finish()" if self._has_begun else "it has not begun"

    @property
    def saving_fraction(self) -> float | None:
        """Energy per step saved by the setting the optimizer chose; None if unknown."""
        return self._optimizer.saving_fraction

    @property
    def trace_record(self) -> Record | None:
        """The record that a trace keeps of the training under way; None without one."""
        return None if self._trace is None else self._trace.recorder

    @property
    def is_end_due(self) -> bool:
        """Whether the process ends before the next step, to go on later: now a checkpoint is to be saved."""
        return self._optimizer.is_end_due

    @contained(default=dict[str, str])
    def result(self) -> dict[str, str]:
        """Return the result of the latest training for people, as labelled lines; empty if there is none."""
        names = ", ".join(sorted({gpu.name for gpu in self.monitor.gpus.values()}))
        rows = {}
        if self._summary is not None and names:
            rows = {"measured on": names, **self._loads.rows(), **self._summary.rows()}
        return {**rows, **self._cpus.rows(), **self._optimizer_rows()}

    def add_result(self, result: Callable[[], dict[str, str]]) -> None:
        """Show the result of an optimizer that receives the training from elsewhere, beside that of the training.

        Args:
            result: Returns its labelled lines.
        """
        self._further_result = result

    def _optimizer_rows(self) -> dict[str, str]:
        return {**self._optimizer.result(), **self._further_result()}

    def leave_settings_alone(self) -> None:
        """Drop the search that `ZEUS_SAVE` asks for, before training begins, as others set the limit or share GPUs."""
        if self._is_asked and self.optimizer is not None:
            self._observers.remove(self.optimizer)
            self.optimizer, self._optimizer = None, TrainingOptimizer()

    def use_world(self, world: World) -> None:
        """Set the ranks. Call before training begins."""
        checked_world(world)
        self._is_world_checked = True
        self._recorder.use_world(world)
        self._optimizer.use_world(world)

    def use_work(self, work: Mapping[str, int | str]) -> None:
        """Distinguish the optimizer's work from other work; see `GlobalPowerLimitOptimizer.use_work`."""
        self._optimizer.use_work(work)
        self._note_work(work)

    def on_prepared(self, models: Sequence[Any], optimizers: Sequence[Any], device: Any) -> None:
        """Report what is trained to the optimizer; see `TrainingHooks.on_prepared`."""
        self._optimizer.on_prepared(models, optimizers, device)

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

    def add_observer(self, observer: Observer) -> None:
        """Have an observer receive each event from now on, after the optimizer.

        It receives the beginning of a training that is under way first. Its faults are contained, as those of a hook.

        Raises:
            UsageError: It has no method `receive`.
        """
        checked_object("observer", observer, "receive", "an object with receive(event)")
        self._observers.add(observer, self._training)

    def on_train_begin(self, step: int = 0, *, max_steps: int | None = None) -> None:
        """Report that training begins; a collective call. Steps of a training that has not ended are done again.

        Args:
            step: Optimizer steps already done, in a resumed training.
            max_steps: The steps of the whole training, those included, if the loop knows.
        """
        self.receive(TrainBegin(max_steps, step))

    @contained(is_hook=True)
    def on_next_step(self) -> None:
        """Report that a step has ended and the next one begins, in a loop that reports nothing else.

        Time beyond the usual of a step that takes unusually long belongs to no step, and to no trial of an optimizer.
        """
        if self._training is not None:
            self._observers.leave_out_excess()
            self._send(STEP_END)
            self._send(STEP_BEGIN)

    def on_pass_begin(self, activity: Activity) -> None:
        """Report the beginning of a pass with an account of its own within a training step, until `on_pass_end`."""
        self.receive(PassBegin(activity))

    def on_pass_end(self) -> None:
        """Report the end of the pass."""
        self.receive(PASS_END)

    @contained(is_hook=True)
    def receive(self, event: Event) -> None:
        """Receive an event of training, and send it on. The end is not collective: this rank may be the last alive."""
        self._send(event)

    def _send(self, event: Event) -> None:
        kind = type(event)
        if kind is TrainEnd and self._training is None:
            self._optimizer.receive(event)  # restores what it could not restore before
            return
        if kind is StepBegin and self._optimizer.is_pause_due:
            self._observers.send(Pause())
            self._outside_of_hooks(lambda: self._optimizer.pause(self._recorder.keep))
        elif isinstance(event, TrainBegin):
            self._prepare(event)
        if kind is StepEnd and self._loads:
            self._outside_of_hooks(self._loads.end)
        self._observers.send(event)
        if kind is StepBegin:
            self._loads.begin()
        if kind is TrainEnd:
            self._conclude()

    def _prepare(self, training: TrainBegin) -> None:
        if not self._is_world_checked:
            self._is_world_checked = True
            warn_if_others_train()
        self._optimizer.receive(TRAIN_END)  # but the account goes on, if training has not ended
        self._training, self._summary, self.detected_evaluations = training, None, 0
        self._has_begun = True
        self._cpus.begin()
        note("training")
        under_way[self] = os.getpid()

    def _conclude(self) -> None:
        self._cpus.end()
        self._training, ended = None, self._recorder.ended
        under_way.pop(self, None)
        if self._summary is None and ended is not None:
            self._summary = self._summary_of(*ended)
        self._keep_run()
        if not self.quiet and self._recorder.ranks.rank == 0:
            show_result(self.result())

    def count(self, samples: int = 0, tokens: int = 0, generated_tokens: int = 0) -> None:
        """Count samples or tokens this rank has trained on, or generated for training, since the previous call.

        Generated tokens are to be counted before the end of the `Activity.GENERATION` that they belong to.
        """
        self._recorder.count(samples, tokens, generated_tokens)

    @contextmanager
    def step(self, samples: int = 0, tokens: int = 0) -> Iterator[None]:
        """Report an optimizer step as a `with` block, and count what this rank trains on in it."""
        self.on_step_begin()
        yield
        self.on_step_end()
        self.count(samples, tokens)

    @contextmanager
    def during(self, activity: Activity | str) -> Iterator[None]:
        """Report work other than training as a `with` block.

        Args:
            activity: A kind of work, or a name of your own, such as "rollout". A run counts 32 of these apart.

        Raises:
            UsageError: It is no such name.
        """
        self.on_pause(Activity(activity))
        try:
            yield
        finally:
            self.on_resume()

    @contained(is_hook=True, default=dict[str, float])
    def log(self) -> dict[str, float]:
        """Return what to log now: the metrics of `LOG_METRICS` that are known. A collective call.

        Returns:
            Values by name; empty outside of training and after a fault.
        """
        values = self._recorder.log_values(self._optimizer.power_limit_watts, self._optimizer.sm_clock_mhz)
        if self._recorder.is_run_due:
            self._keep_run()
        return LoggedValues(values)

    @contained(is_hook=True)
    def record_losses(self, values: Mapping[str, float]) -> None:
        """Record losses, or metrics of an evaluation, beside the energy at the latest log. Not collective.

        Args:
            values: Numbers by name, such as `{"loss": 2.3}`; others than finite ones are left out.
        """
        self._recorder.record_losses(values)

    @contained(is_hook=True, default=dict[str, float])
    def evaluation(self, prefix: str = "eval") -> dict[str, float]:
        """Return the energy of the current or latest evaluation. A collective call.

        Returns:
            `eval_energy_j`, or the same with another prefix; empty if some of it was lost, or there was none.
        """
        return known_values({f"{prefix}_energy_j": self._recorder.evaluation_joules()})

    @contained(is_hook=True, default=dict[str, float])
    def log_evaluation(self, prefix: str = "eval", *, leaves_out: bool = False) -> dict[str, float]:
        """Return what to log at the end of an evaluation. A collective call.

        Args:
            prefix: The prefix of the name.
            leaves_out: It is not logged, as a check before training: the next log does not contain it either.

        Returns:
            `eval_energy_j`, the energy of the evaluations since the previous call, or the same with another prefix;
            empty if some of it was lost, or there was none.
        """
        return known_values({f"{prefix}_energy_j": self._recorder.logged_evaluation_joules(leaves_out)})

    @contained(is_hook=True, default=lambda: TrainingSummary.of_nothing("the log names a fault"))
    def finish(self) -> TrainingSummary:
        """Return the summary of the run, at the end of training: see `summary`. A collective call."""
        taken = self._recorder.account()
        if taken is not None:
            self._summary = self._summary_of(*taken, self._recorder.last_log)
            self._keep_run()
        return self.summary

    @contained(is_hook=True, default=dict[str, Any])
    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, in JSON types, and bring the journal up to date. Not collective."""
        state = self._recorder.state_dict()
        self._keep_run()
        search = self._optimizer.state_dict() if state else None
        return {**state, _SEARCH: search} if search else state

    @contained(is_hook=True)
    def load_state_dict(self, state: Any) -> None:
        """Continue the run of a checkpoint at the next `on_train_begin`. A damaged state is ignored, with a warning."""
        if isinstance(state, Mapping) and _SEARCH in state:
            search, state = state[_SEARCH], {name: value for name, value in state.items() if name != _SEARCH}
            self._optimizer.load_state_dict(search)
        self._recorder.load_state_dict(state)

    def __enter__(self) -> TrainingEnergy:
        self.on_train_begin()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.finish()
        self.on_train_end()

    def _summary_of(self, steps: int, account: Account, last_log: Mapping[str, float] | None = None) -> TrainingSummary:
        return TrainingSummary(
            steps,
            account,
            self.saving_fraction,
            self.detected_evaluations,
            self._optimizer.saving_uncertainty,
            self._electricity,
            tuple(self._recorder.remarks),
            self.overhead,
            last_log or {},
        )

    def _keep_run(self) -> None:
        """Bring the file of the run up to date, on the rank that keeps it."""
        self._recorder.keep_run(
            lambda: PartOutcome(
                {**self._loads.rows(), **remark_rows(self._recorder.remarks), **self._optimizer_rows()},
                _search_of(self.optimizer),
                self.saving_fraction,
                self._optimizer.saving_uncertainty,
                self.overhead,
                self.detected_evaluations,
            )
        )


def _search_of(optimizer: TrainingOptimizer | None) -> Any:
    """Return the latest search of an optimizer, in JSON types; None if it is of another kind, or there is none."""
    if optimizer is None:
        return None
    from zeus_core.optimizer.global_setting.search_optimizer import search_record  # loads what an optimizer needs

    return encode(search_record(optimizer))


def _asked_optimizer(monitor: ZeusMonitor) -> TrainingOptimizer | None:
    """Return the search that variables ask for; None without one."""
    environment = with_site_defaults(os.environ)
    if not environment.get(SAVE) and not observes(environment):
        return None
    from zeus_core.optimizer.asked import asked_optimizer  # imported here, as it imports the search

    return asked_optimizer(monitor)


def _check_optimizer(optimizer: TrainingOptimizer | None, monitor: ZeusMonitor | None) -> None:
    if optimizer is None:
        return
    if not isinstance(optimizer, TrainingOptimizer):
        wanted = "one such as GlobalPowerLimitOptimizer(monitor), or a zeus_core.events.TrainingOptimizer of your own"
        raise UsageError(f"optimizer is {shown(optimizer)}; it must be {wanted}")
    if monitor is not None and monitor is not optimizer.monitor:
        raise UsageError("optimizer has another monitor than the one given; give both the same, or only the optimizer")


def _traced(trace: bool | str | Path, monitor: ZeusMonitor, optimizer: TrainingOptimizer | None) -> RunTraced:
    from zeus_core.training.traced import make_trace  # imported here, as few trainings are traced

    return make_trace(trace, monitor.time_source, optimizer)


def _measure(run: MeteredRun, monitor: ZeusMonitor, recorder: RunRecorder) -> None:
    from zeus_core.training.run_meter import RunMeter  # imported here, as few trainings are of a recurring job

    checked_object("recurring_run", run, "use_meter", "the run of a recurring job, as in `with job.run() as run:`")
    run.use_meter(RunMeter(monitor, recorder))
