"""The energy of a run as a callback of the Hugging Face Trainer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import ProgressCallback, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from zeus_core.adapters import contained
from zeus_core.events import STEP_END, Activity, TrainingOptimizer
from zeus_core.monitor import ZeusMonitor
from zeus_core.training import TrainingEnergy, TrainingSummary
from zeus_core.units import energy_text
from zeus_huggingface._checkpoint import read_energy_state, write_energy_state
from zeus_huggingface._listener import Reporter, TrainerListener, Training, listening
from zeus_huggingface._model_card import add_energy
from zeus_huggingface._trainer_optimizer import HFGlobalPowerLimitOptimizer, warn_of_copied_search
from zeus_huggingface._trainer_patches import patch_trainer

if TYPE_CHECKING:
    from zeus_core.batches.micro_batch_optimizer import MicroBatchSetting
    from zeus_core.electricity import Electricity
    from zeus_core.jobs.recurring_run import RecurringRun


@listening
class ZeusTrainerCallback(TrainerCallback):
    """Measures the energy of a `Trainer`, and logs it where its losses are: pass it in `callbacks=[...]`.

    With each log of the training loss, in `log_history` and to every reporter of the Trainer:

    =====================  =====  =====================================================================
    `energy_j`             J      training steps since the previous log, over all ranks and GPUs
    `power_w`              W      mean power of these steps
    `energy_per_token_j`   J      energy per token, if tokens are counted
    `energy_per_sample_j`  J      energy per sample, if samples are counted and tokens are not
    `total_energy_j`       J      the whole run so far, with evaluations, checkpoints and earlier parts
    `power_limit_w`        W      power limit in force, the highest of this rank's GPUs, as of the last second
    `sm_clock_mhz`         MHz    SM clock that the optimizer has locked, if it searches clocks
    `co2_eq_g`             g      CO2 equivalent of the whole run so far, if an intensity is given
    `cost`                 money  cost of the whole run so far, in the currency of the price, if one is given
    =====================  =====  =====================================================================

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
        roles = {"energy"} if optimizer is None else {"energy", "power limit"}
        if optimizer is None or isinstance(optimizer, str):
            optimizer = self.energy.optimizer
        self.optimizer = optimizer
        self._run = recurring_run
        if micro_batch is not None:
            from zeus_core.batches.micro_batch_optimizer import checked_micro_batch  # a wing, for those who ask for it

            micro_batch = checked_micro_batch(micro_batch, self.energy.monitor, optimizer)
        self.micro_batch = micro_batch
        reporter = EnergyReporter(self.energy, splits_passes)
        self.listener = TrainerListener(
            type(self).__name__, reporter, self.energy.monitor, frozenset(roles), quiet, self.micro_batch
        )
        self.listener.recurring_run = recurring_run
        patch_trainer(self)

    def __reduce__(self) -> Any:
        """Copy the settings alone: a copy measures the GPUs that its process sees, and sets no power limit.

        Ray makes a copy for each process of a search for hyperparameters, and several of them may share a GPU.
        """
        return _copied_callback, (type(self), self.optimizer is not None, self._settings)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Any = None,
        **_: Any,
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


class EnergyReporter(Reporter):
    """Reports to a `TrainingEnergy`, logs its values, and keeps its state in checkpoints.

    Args:
        energy: Receives the events.
        splits_passes: Whether to measure the passes within a step apart.
    """

    def __init__(self, energy: TrainingEnergy, splits_passes: bool) -> None:
        super().__init__(energy, splits_passes)
        self._energy = energy
        self._tokens_seen = 0

    @property
    def summary(self) -> TrainingSummary:
        """The summary of the latest training; see `TrainingEnergy.summary`."""
        return self._energy.summary

    def begin(self, training: Training | None, args: TrainingArguments, state: TrainerState) -> None:
        """Begin a run, or continue the one of the checkpoint."""
        self._energy.use_folder(str(args.output_dir), from_checkpoint=True)
        if training is not None:
            self._tokens_seen = _tokens_seen_by(training.trainer)
        if state.global_step > 0:
            self._energy.load_state_dict(read_energy_state(_resumed_checkpoint(training, args, state)))
        self._begin(training, state)

    def leave_settings_alone(self) -> None:
        """Make no search that variables ask for."""
        self._energy.leave_settings_alone()

    def end_step(self, samples: int) -> None:
        """Report the end of an optimizer step, and count its samples."""
        self._energy.receive(STEP_END)
        self._energy.count(samples)

    def save(self, args: TrainingArguments, state: TrainerState) -> None:
        """Add the state to a checkpoint."""
        super().save(args, state)
        energy_state = self._energy.state_dict()
        if energy_state and state.is_world_process_zero:
            write_energy_state(_checkpoint_folder(args, state), energy_state)

    @contained(default=dict[str, float])
    def values_to_log(self, trainer: Trainer, logs: dict[str, float]) -> dict[str, float]:
        """Return values for the logs of the Trainer itself, which are made on all ranks; a user's own may not be."""
        if "loss" in logs and trainer.control.should_log:
            self._count_tokens(trainer)
            values = self._energy.log()
            self._energy.record_losses({"loss": logs["loss"]})
            self._show(trainer, values)
            return values
        if "train_runtime" in logs and "train_loss" in logs:
            self._energy.finish()
            return self.summary.log_values()
        prefixes = [name.removesuffix("_runtime") for name in logs if name.endswith("_runtime")]
        if prefixes and Activity.EVALUATION in self.activities:
            values = self._energy.log_evaluation(prefixes[0])
            self._energy.record_losses(_results_of_evaluation(logs))
            return values
        return {}

    def end(self, args: TrainingArguments) -> None:
        """Add the reload of the best model to the summary: since transformers 5 it comes after the last log."""
        if args.load_best_model_at_end:
            self._energy.finish()

    def training_metrics(self) -> dict[str, float]:
        """Return the values of the summary."""
        return self.summary.values()

    @contained
    def add_to_model_card(self, trainer: Trainer, folder: Path) -> None:
        """Add the energy of the training that has ended."""
        if trainer.is_world_process_zero():
            add_energy(folder, self._energy)

    def count_generated(self, tokens: int) -> None:
        """Count the tokens of text that was generated for training."""
        self._energy.count(generated_tokens=tokens)

    def _count_tokens(self, trainer: Trainer) -> None:
        """Count on the first rank alone: the Trainer's number is that of all ranks."""
        seen = _tokens_seen_by(trainer)
        if trainer.state.is_world_process_zero:
            self._energy.count(tokens=max(seen - self._tokens_seen, 0))
        self._tokens_seen = seen

    @contained
    def _show(self, trainer: Trainer, values: dict[str, float]) -> None:
        """Show power and energy in the progress bar."""
        if "power_w" not in values:
            return
        total = f", {energy_text(values['total_energy_j'])}" if "total_energy_j" in values else ""
        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, ProgressCallback) and callback.training_bar is not None:
                callback.training_bar.set_postfix_str(f"{values['power_w']:.0f} W{total}", refresh=False)


def _resumed_checkpoint(training: Training | None, args: TrainingArguments, state: TrainerState) -> Path:
    """Return the folder of the checkpoint that training resumes from."""
    if training is not None and isinstance(training.resume_from_checkpoint, str | Path):
        return Path(training.resume_from_checkpoint)
    return _checkpoint_folder(args, state)


def _checkpoint_folder(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(str(args.output_dir)) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"


def _tokens_seen_by(trainer: Trainer) -> int:
    """Return the tokens TRL has counted, or the Trainer itself."""
    return int(getattr(trainer, "_total_train_tokens", 0)) or int(trainer.state.num_input_tokens_seen)


def _results_of_evaluation(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return what an evaluation found, without what it took."""
    cost = ("epoch", "_runtime", "_time", "_per_second", "_energy_j")
    return {name: value for name, value in logs.items() if isinstance(value, float) and not name.endswith(cost)}
