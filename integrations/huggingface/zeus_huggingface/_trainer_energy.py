"""The energy of a run as a callback of the Hugging Face Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from zeus_core.adapters import contained
from zeus_core.events import EPOCH_BEGIN, EPOCH_END, INTERFERENCE, STEP_BEGIN, STEP_END, TrainingOptimizer
from zeus_core.monitor import ZeusMonitor
from zeus_core.training import TrainingEnergy, TrainingSummary
from zeus_huggingface._energy_log import EnergyLog, read_energy_state, write_energy_state
from zeus_huggingface._trainer_calls import POWER_LIMIT, TrainerCalls, Training
from zeus_huggingface._trainer_optimizer import HFGlobalPowerLimitOptimizer, warn_of_copied_search
from zeus_huggingface._trainer_patches import patch_trainer

if TYPE_CHECKING:
    from zeus_core.batches.micro_batch_optimizer import MicroBatchSetting
    from zeus_core.electricity import Electricity
    from zeus_core.jobs.recurring_run import RecurringRun


class ZeusTrainerCallback(TrainerCallback):
    """Measures the energy of a `Trainer`, and logs it where its losses are: pass it in `callbacks=[...]`.

    Each log of the training loss, in `log_history` and to every reporter of the Trainer, contains
    `energy_j` (the training steps since the previous log, over all ranks and GPUs), `power_w`,
    `energy_per_token_j` or `energy_per_sample_j`, `total_energy_j` (the whole run so far), `power_limit_w`,
    `sm_clock_mhz`, `co2_eq_g` and `cost`, each where it is known. docs/metrics.md describes them.

    Tokens are counted if TRL counts them, or with `include_num_input_tokens_seen`; samples by the nominal batch size.
    The progress bar shows `power_w` and `total_energy_j`. Each evaluation logs `eval_energy_j`. The end of training
    logs the metrics of `zeus_core.training.TrainingSummary.values`, `train_energy_j` first; they are in
    `TrainOutput.metrics` too. The metrics that evaluations and predictions return, by which checkpoints and
    hyperparameters are chosen, are those without this callback: `energy.evaluation()` has the energy of the latest one.

    Totals outlive interruptions: from the first checkpoint on, a journal is kept in `output_dir/zeus-energy`, and each
    checkpoint names its run.

    Args:
        monitor: Measures the GPUs; the optimizer's if None, or a new one.
        optimizer: Chooses a power limit or an SM clock: a `GlobalPowerLimitOptimizer`, `GlobalClockOptimizer` or
            `HFGlobalPowerLimitOptimizer`; or one for each rank, a `LevellingOptimizer`; "auto" for the power limit
            with the least energy within 10 % more time, or within another slowdown, such as "5%".
        splits_passes: Measure text generation, and the passes of reference and reward models, apart from the rest of a
            step. The accelerator is synchronized at both ends of each.
        strict: Where no GPU can be measured, raise; otherwise one warning says so, and there are no numbers.
        quiet: Show no result at the end of training.
        electricity: Intensity and price of the electricity, by which emissions and cost are reported; none if None.
        recurring_run: The run of a recurring job that is trained, from `RecurringJob.run`. Evaluations are reported to
            it; when it says so, training ends, with a checkpoint unless `save_strategy` is "no".
        micro_batch: The samples of one pass, for the global batch of the Trainer's arguments: "auto" for those that
            take the least joules, found by probes before training begins; a number; or a `MicroBatchOptimizer`. Those
            of the Trainer if None.
        trace: Write a trace of the training, for Perfetto or Chrome: True for `zeus-energy/trace-RANK.json.gz` under
            `output_dir`, or another folder. See docs/tracing.md.

    Attributes:
        energy: The `TrainingEnergy` behind the callback.
        optimizer: The `GlobalPowerLimitOptimizer`, `GlobalClockOptimizer` or `LevellingOptimizer`, if any.
        micro_batch: The `MicroBatchOptimizer`, or the number, if any.

    Raises:
        UsageError: An argument is wrong; the message names it.
        DeviceError: No GPU can be measured, and `strict` is true.
    """

    def __init__(
        self,
        monitor: ZeusMonitor | None = None,
        optimizer: TrainingOptimizer | HFGlobalPowerLimitOptimizer | str | None = None,
        splits_passes: bool = True,
        *,
        strict: bool = False,
        quiet: bool = False,
        electricity: Electricity | None = None,
        recurring_run: RecurringRun | None = None,
        micro_batch: MicroBatchSetting | None = None,
        trace: bool | str | Path = False,
    ) -> None:
        if isinstance(optimizer, HFGlobalPowerLimitOptimizer):
            optimizer = optimizer.optimizer
        self._settings = {
            "splits_passes": splits_passes,
            "strict": strict,
            "quiet": quiet,
            "electricity": electricity,
            "micro_batch": micro_batch if isinstance(micro_batch, int | str | None) else "auto",
            "trace": trace,
        }
        self.energy = TrainingEnergy(
            monitor,
            optimizer,
            strict=strict,
            quiet=True,  # the result of all callbacks is shown in one
            electricity=electricity,
            recurring_run=recurring_run,
            trace=trace,
        )
        roles = {"energy"} if optimizer is None else {"energy", POWER_LIMIT}
        if optimizer is None or isinstance(optimizer, str):
            optimizer = self.energy.optimizer
        self.optimizer = optimizer
        self._run = recurring_run
        if micro_batch is not None:
            from zeus_core.batches.micro_batch_optimizer import checked_micro_batch  # a wing, for those who ask for it

            micro_batch = checked_micro_batch(micro_batch, self.energy.monitor, optimizer)
        self.micro_batch = micro_batch
        self._log = EnergyLog(self.energy)
        self._calls = TrainerCalls(
            type(self).__name__,
            self.energy,
            self.energy.monitor,
            frozenset(roles),
            quiet=quiet,
            splits_passes=splits_passes,
            micro_batch=micro_batch,
            log=self._log,
        )
        patch_trainer(self)

    def __reduce__(self) -> Any:
        """Copy the settings alone: a copy measures the GPUs that its process sees, and sets no power limit.

        Ray makes a copy for each process of a search for hyperparameters, and several of them may share a GPU.
        """
        return _copied_callback, (type(self), self.optimizer is not None, self._settings)

    @contained
    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Begin a run, continue the one of a checkpoint, or begin again with a smaller batch: a collective call."""
        calls = self._calls
        if calls.steps_aside:
            return
        calls.prepare(args, state)
        self.energy.use_folder(str(args.output_dir), from_checkpoint=True)
        if calls.training is not None:
            self._log.begin(calls.training.trainer)
        if state.global_step > 0:
            self.energy.load_state_dict(read_energy_state(_resumed_checkpoint(calls.training, args, state)))
        calls.begin(args, state)

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        """Begin an epoch."""
        self._calls.observer.receive(EPOCH_BEGIN)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Begin an optimizer step."""
        self._calls.observer.receive(STEP_BEGIN)

    @contained
    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """End an optimizer step, and do what the optimizer and a recurring run ask for."""
        if not self._calls.steps_aside:
            self.energy.receive(STEP_END)
            self.energy.count(self._calls.samples_per_step)
            if self.energy.is_end_due:
                control.should_save = True
        if self._run is not None and state.epoch and self._run.progress(epoch=state.epoch):
            control.should_training_stop = True

    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        """Report a step of an evaluation: a Trainer with an evaluation of its own has not announced it."""
        self._calls.observer.receive(INTERFERENCE)

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        """End an epoch."""
        self._calls.observer.receive(EPOCH_END)

    @contained
    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Add the state to a checkpoint that was saved."""
        if self._calls.steps_aside:
            return
        self.energy.receive(INTERFERENCE)  # a Trainer that saves in its own way has not announced it
        energy_state = self.energy.state_dict()
        if energy_state and state.is_world_process_zero:
            write_energy_state(_checkpoint_folder(args, state), energy_state)

    @contained
    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """End training. The summary has the reload of the best model: since transformers 5 it follows the last log."""
        if args.load_best_model_at_end and not self._calls.steps_aside:
            self.energy.finish()
        self._calls.end(state)

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics: Any = None, **_: Any
    ) -> None:
        """Report an evaluation to the run of a recurring job, if there is one: a collective call."""
        if self._run is None or not metrics or not state.epoch:  # one before the first step says nothing of training
            return
        if self._run.report(epoch=state.epoch, metric=metrics):
            control.should_training_stop = True
            control.should_save = control.should_save or str(getattr(args.save_strategy, "value", "no")) != "no"

    @property
    def summary(self) -> TrainingSummary:
        """The summary of the latest run; until it has ended, and where nothing was measured, an empty one."""
        return self.energy.summary


def _copied_callback(
    kind: type[ZeusTrainerCallback], had_optimizer: bool, settings: dict[str, Any]
) -> ZeusTrainerCallback:
    if had_optimizer:
        warn_of_copied_search(kind)
    callback = kind(**settings)
    callback.energy.leave_settings_alone()
    callback.optimizer = None
    return callback


def _resumed_checkpoint(training: Training | None, args: TrainingArguments, state: TrainerState) -> Path:
    """Return the folder of the checkpoint that training resumes from."""
    if training is not None and isinstance(training.resume_from_checkpoint, str | Path):
        return Path(training.resume_from_checkpoint)
    return _checkpoint_folder(args, state)


def _checkpoint_folder(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(str(args.output_dir)) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
