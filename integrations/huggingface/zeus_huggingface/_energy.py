"""The energy of a run as a callback of the Hugging Face Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import ProgressCallback, Trainer, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from zeus_core.adapters import contained
from zeus_core.events import Activity
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import GlobalPowerLimitOptimizer
from zeus_core.training import TrainingEnergy, TrainingSummary
from zeus_huggingface._checkpoint import read_energy_state, write_energy_state
from zeus_huggingface._observing import ObservingCallback
from zeus_huggingface._passes import PassHooks
from zeus_huggingface._power_limit import HFGlobalPowerLimitOptimizer

__all__ = ["ZeusTrainerCallback"]


class ZeusTrainerCallback(ObservingCallback):
    """Measures what a `Trainer` spends, and shows it where its losses are: pass it in `callbacks=[...]`.

    With each log of the training loss, in `log_history` and whatever the Trainer reports to:

    =======================  ==========================================================================================
    `energy_j`               training steps since the previous log, of all ranks and GPUs, in joules
    `power_w`                their mean power; also in the progress bar
    `energy_per_token_j`     where tokens are counted (by TRL, or with `include_num_input_tokens_seen`); otherwise
    `energy_per_sample_j`    by the nominal batch size
    `total_energy_j`         the whole run so far: evaluation, saving, and its parts before an interruption included
    `power_limit_w`          the power limit in force
    =======================  ==========================================================================================

    With each evaluation `eval_energy_j` (`test_energy_j` for predictions), and at the end of training, in
    `TrainOutput.metrics` too, what `zeus_core.training.TrainingSummary.values` lists, `train_energy_j` first.

    Totals outlive interruptions: a journal lies in `output_dir/zeus-energy`, and each checkpoint names its run.

    Args:
        monitor: What measures; the optimizer's, or a new one, if None.
        optimizer: Also finds a power limit: a `GlobalPowerLimitOptimizer` or `HFGlobalPowerLimitOptimizer`.
        splits_passes: Tell the energy of text generation and of a reference model apart from the rest of a step. The
            accelerator is waited for at both ends of each.

    Attributes:
        energy: The `TrainingEnergy` behind the callback.

    Raises:
        UsageError: An argument is wrong; the message names it.
        NoDeviceError: There is no GPU to measure.
    """

    def __init__(
        self,
        monitor: ZeusMonitor | None = None,
        optimizer: GlobalPowerLimitOptimizer | HFGlobalPowerLimitOptimizer | None = None,
        splits_passes: bool = True,
    ) -> None:
        if isinstance(optimizer, HFGlobalPowerLimitOptimizer):
            optimizer = optimizer.optimizer
        self.energy = TrainingEnergy(monitor, optimizer)
        roles = {"energy"} if optimizer is None else {"energy", "power limit"}
        super().__init__(self.energy, self.energy.monitor, optimizer, frozenset(roles))
        self._splits_passes = splits_passes
        self._passes: PassHooks | None = None
        self._resumes_from: Any = None
        self._tokens_seen = 0
        self._pauses: list[Activity] = []
        self._evaluation: dict[str, float] = {}

    @property
    def summary(self) -> TrainingSummary | None:
        """What the latest run has taken; None until it has ended."""
        return self.energy.summary

    @contained
    def on_train_enter(self, trainer: Trainer, resume_from_checkpoint: Any) -> None:
        """Training is about to begin."""
        super().on_train_enter(trainer, resume_from_checkpoint)
        if not self.steps_aside:
            self._resumes_from = resume_from_checkpoint

    def begin(self, args: TrainingArguments, state: TrainerState) -> None:
        """Take up the run that is resumed, or begin a new one."""
        trainer = self._trainer
        self.energy.use_folder(str(args.output_dir))
        self._leave_passes()
        if trainer is not None:
            self._tokens_seen = _tokens_seen_by(trainer)
            self._passes = PassHooks(trainer, self.energy) if self._splits_passes else None
        if state.global_step > 0:
            self.energy.load_state_dict(read_energy_state(self._checkpoint_folder(args, state)))
        self.energy.on_train_begin(state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """An optimizer step has ended."""
        super().on_step_end(args, state, control)
        if not self.steps_aside:
            self.energy.count(samples=self._samples_per_step or 0)

    @contained
    def on_pause(self, activity: Activity) -> None:
        """An evaluation, a prediction or a checkpoint begins."""
        super().on_pause(activity)
        self._pauses.append(activity)
        self._evaluation = {}

    @contained
    def on_resume(self) -> None:
        """It is over."""
        super().on_resume()
        self._pauses.pop()

    @contained
    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """A checkpoint was saved."""
        super().on_save(args, state, control)
        energy_state = {} if self.steps_aside else self.energy.state_dict()
        if energy_state and state.is_world_process_zero:
            write_energy_state(_checkpoint_folder(args, state), energy_state)

    @contained
    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Something was logged: its power and energy belong into the progress bar too."""
        trainer = self._trainer
        if self.steps_aside or trainer is None or logs is None or "power_w" not in logs:
            return
        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, ProgressCallback) and callback.training_bar is not None:
                text = f"{logs['power_w']:.0f} W, {logs.get('total_energy_j', 0.0) / 1000:.4g} kJ"
                callback.training_bar.set_postfix_str(text, refresh=False)

    @contained
    def values_to_log(self, trainer: Trainer, logs: dict[str, float]) -> dict[str, float]:
        """What to add to something that is about to be logged.

        Only to what the Trainer itself logs, on all ranks; a user's own log on one of them must wait for nobody.
        """
        if self.steps_aside:
            return {}
        if "loss" in logs and trainer.control.should_log:
            self._count_tokens(trainer)
            return self.energy.log()
        if "train_runtime" in logs and "train_loss" in logs:
            self.energy.finish()
            return self.training_metrics()
        prefixes = [name.removesuffix("_runtime") for name in logs if name.endswith("_runtime")]
        if prefixes and Activity.EVALUATION in self._pauses:
            self._evaluation = self.energy.evaluation(prefixes[0])
        return self._evaluation if prefixes else {}

    @contained
    def evaluation_metrics(self, prefix: str) -> dict[str, float]:
        """What to add to the metrics of an evaluation, which has been logged already, or of a prediction."""
        if self.steps_aside:
            return {}
        is_logged = f"{prefix}_energy_j" in self._evaluation
        return self._evaluation if is_logged else self.energy.evaluation(prefix)

    def training_metrics(self) -> dict[str, float]:
        """What to add to the metrics of the training that is just over."""
        summary = None if self.steps_aside else self.energy.summary
        return summary.values() if summary is not None else {}

    @contained
    def on_train_exit(self, trainer: Trainer) -> None:
        """Training has ended in whatever way."""
        if not self.steps_aside:
            self._leave_passes()
        super().on_train_exit(trainer)

    @property
    def _trainer(self) -> Trainer | None:
        return self._trainings[-1][0] if self._trainings else None

    def _leave_passes(self) -> None:
        if self._passes is not None:
            self._passes.detach()
            self._passes = None

    def _count_tokens(self, trainer: Trainer) -> None:
        """Of all ranks together, so that the first rank alone counts."""
        seen = _tokens_seen_by(trainer)
        if trainer.state.is_world_process_zero:
            self.energy.count(tokens=max(seen - self._tokens_seen, 0))
        self._tokens_seen = seen

    def _checkpoint_folder(self, args: TrainingArguments, state: TrainerState) -> Path:
        """The checkpoint that training resumes from."""
        if isinstance(self._resumes_from, str | Path):
            return Path(self._resumes_from)
        return _checkpoint_folder(args, state)


def _checkpoint_folder(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(str(args.output_dir)) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"


def _tokens_seen_by(trainer: Trainer) -> int:
    """What TRL counts, or the Trainer itself."""
    return int(getattr(trainer, "_total_train_tokens", 0)) or int(trainer.state.num_input_tokens_seen)
