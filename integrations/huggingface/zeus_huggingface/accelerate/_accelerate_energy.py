"""The energy of a loop written with accelerate."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate import Accelerator

from zeus_core.adapters import contained
from zeus_core.events import Activity, TrainingOptimizer
from zeus_core.monitor import ZeusMonitor
from zeus_core.training import TrainingEnergy, TrainingSummary
from zeus_core.training.account import TRAINING
from zeus_core.validate import checked_whole_number, wrong_argument
from zeus_huggingface._energy_log import read_energy_state, write_energy_state
from zeus_huggingface.accelerate._accelerator_checks import checked_accelerator, monitor_for, samples_of_batch
from zeus_huggingface.accelerate._loop import AcceleratorLoop, PowerLimitOptimizer
from zeus_huggingface.accelerate._pending import PendingValues

if TYPE_CHECKING:
    from zeus_core.batches.micro_batch_optimizer import MicroBatchSetting
    from zeus_core.electricity import Electricity
    from zeus_core.jobs.recurring_run import RecurringRun
    from zeus_huggingface.accelerate.batches.accelerate_loop import AccelerateLoop, ComputeLoss

_logger = logging.getLogger(__name__)


class ZeusAccelerate(AcceleratorLoop):
    """Measures the energy of a loop, and adds it to what `accelerator.log` logs.

    Make one after `accelerator.prepare` and before `accelerator.load_state`, on all processes:

        with ZeusAccelerate(accelerator) as energy:
            for batch in batches:
                ...  # as before
                accelerator.log({"loss": loss.item()}, step=step)
            with energy.evaluation():  # it is detected if this is missing
                evaluate()

    The first log after an optimizer step also contains
    `energy_j` (the training steps since the previous log, over all ranks and GPUs), `power_w`,
    `energy_per_token_j` or `energy_per_sample_j`, `total_energy_j` (the whole run so far), `power_limit_w`,
    `sm_clock_mhz`, `co2_eq_g` and `cost`, each where it is known. docs/metrics.md describes them.

    The first log after an evaluation contains `eval_energy_j`. The end, which is `accelerator.end_training()` or
    the end of the `with` block, logs the metrics of `zeus_core.training.TrainingSummary.values`.

    In a multi-process job, all processes are certain to be at the same place only when an optimizer has stepped.
    So they exchange their values there, every `exchange_steps` steps, and a log contains the values of the latest
    exchange. `accelerator.log` and evaluations may be called on the main process alone. Only the end waits for all
    processes, for a minute at most.

    `accelerator.save_state` saves the state that is needed to continue the totals after `accelerator.load_state`. With
    a `project_dir`, a journal in its folder `zeus-energy` adds the energy spent between a checkpoint and a kill.

    Args:
        accelerator: The accelerator of the loop.
        monitor: Measures the GPUs; if None, the optimizer's, or a new one for the GPU this process trains on.
        optimizer: Chooses a power limit or an SM clock: a `PowerLimitOptimizer`, `GlobalPowerLimitOptimizer` or
            `GlobalClockOptimizer`; or one for each rank, a `LevellingOptimizer`; "auto" for the power limit with the
            least energy within 10 % more time, or within another slowdown, such as "5%".
        samples_per_step: Samples of this process in an optimizer step. If None, each `accelerator.backward` counts the
            batch of the prepared dataloader in use; 0 if you count them yourself.
        exchange_steps: Optimizer steps from one exchange of several processes to the next.
        strict: Where no GPU can be measured, raise; otherwise one warning says so, and there are no numbers.
        quiet: Show no result at the end.
        electricity: Intensity and price of the electricity, by which emissions and cost are reported; none if None.
        recurring_run: The run of a recurring job whose time and energy this is, from `RecurringJob.run`. Report its
            evaluations to it by `recurring_run.report`, on all processes.
        micro_batch: The samples of one pass, for the global batch of the loop: "auto" for those that take the least
            joules, found by probes before the loop begins; a number; or a `MicroBatchOptimizer`. Those of the loader if
            None. The loop must use `accelerator.accumulate`, and count its steps by `accelerator.sync_gradients`.
        compute_loss: Returns the loss of a batch on the device, for the probes. If None, `model(**batch).loss`.
        trace: Write a trace of the training, for Perfetto or Chrome: True for `zeus-energy/trace-RANK.json.gz` under
            `project_dir`, or another folder. See docs/tracing.md.

    Attributes:
        energy: The `TrainingEnergy` behind it.
        steps: Optimizer steps of the run so far, with those before the checkpoint it was resumed from.
        micro_batch: The `MicroBatchOptimizer`, or the number, if any.

    Raises:
        UsageError: An argument is wrong; the message names it.
        DeviceError: No GPU can be measured, and `strict` is true.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        monitor: ZeusMonitor | None = None,
        optimizer: PowerLimitOptimizer | TrainingOptimizer | str | None = None,
        *,
        samples_per_step: int | None = None,
        exchange_steps: int = 10,
        strict: bool = False,
        quiet: bool = False,
        electricity: Electricity | None = None,
        recurring_run: RecurringRun | None = None,
        micro_batch: MicroBatchSetting | None = None,
        compute_loss: ComputeLoss | None = None,
        trace: bool | str | Path = False,
    ) -> None:
        if compute_loss is not None and not callable(compute_loss):
            raise wrong_argument("compute_loss", compute_loss, "a function of a batch that returns its loss")
        if micro_batch is not None:  # a wing, for those who ask for it
            from zeus_core.batches.micro_batch_optimizer import checked_micro_batch
            from zeus_huggingface.accelerate.batches.accelerate_loop import AccelerateLoop

            checked_micro_batch(micro_batch)
        self._counts_batches = samples_per_step is None
        samples = 0 if samples_per_step is None else samples_per_step
        self._samples_per_step = checked_whole_number("samples_per_step", samples, minimum=0)
        self._exchange_steps = checked_whole_number("exchange_steps", exchange_steps, minimum=1)
        if isinstance(optimizer, PowerLimitOptimizer):
            optimizer.close()  # this object reports to it from now on
            optimizer = optimizer.optimizer
        checked_accelerator(accelerator)
        if monitor is None and (optimizer is None or isinstance(optimizer, str)):
            monitor = monitor_for(accelerator, None, strict)
        folder = accelerator.project_dir
        self.energy = TrainingEnergy(
            monitor,
            optimizer,
            folder=folder,
            strict=strict,
            quiet=True,  # the loop shows the result
            electricity=electricity,
            recurring_run=recurring_run,
            trace=trace,
        )
        if isinstance(optimizer, str):
            optimizer = self.energy.optimizer
        self._loop: AccelerateLoop | None = None  # if it may have another micro-batch
        if micro_batch is not None:
            micro_batch = checked_micro_batch(micro_batch, self.energy.monitor, optimizer)
            self._loop = AccelerateLoop(accelerator, compute_loss, micro_batch)
            self._loop.use_best()
        self.micro_batch = micro_batch
        self._pending = PendingValues(self.energy)
        self._latest_step: int | None = None  # by the number the loop passes
        super().__init__(accelerator, self.energy, self.energy.monitor, quiet)
        self._wraps.wrap("log", self._log)
        self._hooks.append(accelerator.register_save_state_pre_hook(self._on_save_state))
        self._hooks.append(accelerator.register_load_state_pre_hook(self._on_load_state))

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._loop is not None:
            self._loop.note_end(error)
        super().__exit__(kind, error, trace)

    @property
    def summary(self) -> TrainingSummary:
        """The summary of the run; until it has ended, and where nothing was measured, an empty one."""
        return self.energy.summary

    def count(self, samples: int = 0, tokens: int = 0) -> None:
        """Count samples or tokens this process has trained on, since the previous call."""
        self.energy.count(samples, tokens)

    @contained
    def on_backward(self) -> None:
        """Begin a backward pass for training."""
        super().on_backward()
        if self._counts_batches:
            samples = None if self._loop is None else self._loop.samples_of_batch
            self.count(samples_of_batch(self._accelerator) if samples is None else samples)

    @contained
    def on_step_end(self) -> None:
        """End a step, on all processes."""
        super().on_step_end()
        self.count(self._samples_per_step)
        self._pending.has_stepped = True
        if self._world.size > 1 and self.steps % self._exchange_steps == 0:
            self._pending.exchange()

    def on_activity_begin(self, activity: Activity) -> None:
        """Begin an announced activity, within a step or between two."""
        super().on_activity_begin(activity)
        if activity in TRAINING:
            self.energy.on_pass_begin(activity)

    def on_activity_end(self, activity: Activity) -> None:
        """End the activity."""
        super().on_activity_end(activity)
        if activity in TRAINING:
            self.energy.on_pass_end()
        if activity is Activity.EVALUATION:
            self._pending.has_evaluated = True

    def close(self) -> None:
        """End training, normally or by an error, and leave the accelerator as it was. Not collective."""
        self._report_detected_evaluations()
        super().close()
        if self._loop is not None:
            self._loop.undo()

    def result(self) -> dict[str, str]:
        """Return the result for people, as labelled lines."""
        batch_rows = {} if isinstance(self.micro_batch, int | None) else self.micro_batch.result()
        return {**super().result(), **batch_rows}

    def _report_detected_evaluations(self) -> None:
        self.energy.detected_evaluations = self.detected_evaluations

    @contained
    def on_end(self) -> None:
        """Log the summary of the run: a collective call."""
        self._end_detected_evaluation()
        self._report_detected_evaluations()
        self._pending.exchange()
        summary = self.energy.finish()
        values = {**self._pending.take_last(summary.last_log), **summary.values()}
        if values:
            self._accelerator.log(values, self._latest_step)

    def _log(self, log: Any, values: Any, step: int | None = None, *args: Any, **kwargs: Any) -> Any:
        self._latest_step = step
        self._end_detected_evaluation()
        energy_values = self._values_to_log()
        self._record_losses(values)
        if energy_values:
            try:
                return log({**energy_values, **values}, step, *args, **kwargs)
            except Exception as error:
                _logger.warning("a tracker refuses the energy values; this log has none: %s", error)
        return log(values, step, *args, **kwargs)

    @contained
    def _values_to_log(self) -> dict[str, float]:
        if self._world.size == 1:
            self._pending.exchange()
        return self._pending.take()

    @contained
    def _record_losses(self, values: Mapping[str, Any]) -> None:
        """Record losses and metrics of evaluations, beside the energy: the numbers of what is logged under such names.

        A tensor is none: to read it, training would wait for the GPU.
        """
        names = [name for name in values if "loss" in name or name.startswith(("eval", "val", "test"))]
        self.energy.record_losses({name: values[name] for name in names if isinstance(values[name], float)})

    @contained
    def _on_save_state(self, models: Any, weights: Any, folder: str) -> None:
        state = self.energy.state_dict()
        if state and self._accelerator.is_main_process:
            write_energy_state(Path(folder), {**state, "step": self.steps})

    @contained
    def _on_load_state(self, models: Any, folder: str) -> None:
        """Continue the run of a checkpoint that is being loaded: a collective call."""
        state = read_energy_state(Path(folder)) if self._accelerator.is_main_process else None
        state = self._world.gather(state)[0]  # all processes act alike, even if one cannot read the file
        step = state.get("step") if isinstance(state, dict) else None
        if not isinstance(step, int):
            if self.energy.monitor.gpus:
                _logger.warning("%s has no energy state: the totals exclude what was spent before it", folder)
            return
        self.energy.on_train_end()
        self.energy.load_state_dict({name: value for name, value in state.items() if name != "step"})
        self.energy.on_train_begin(step)
        self._report_prepared()
        self.energy.on_pause(Activity.CHECKPOINT)  # loading has not ended
        self.steps = step
