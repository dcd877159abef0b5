"""The energy of a loop written with accelerate."""

from __future__ import annotations

import logging
from typing import Any

from accelerate import Accelerator

from zeus_core._validate import checked_whole_number
from zeus_core.adapters import contained
from zeus_core.events import Activity
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import GlobalPowerLimitOptimizer
from zeus_core.training import TrainingEnergy, TrainingSummary
from zeus_core.training._account import TRAINING
from zeus_huggingface.accelerate._accelerator import checked_accelerator, own_monitor, samples_of_batch
from zeus_huggingface.accelerate._checkpoint import put_into, take_up_from
from zeus_huggingface.accelerate._loop import AcceleratorLoop
from zeus_huggingface.accelerate._pending import PendingValues
from zeus_huggingface.accelerate._power_limit import PowerLimitOptimizer

__all__ = ["ZeusAccelerate"]

_logger = logging.getLogger(__name__)


class ZeusAccelerate(AcceleratorLoop):
    """Measures what a loop spends, and adds it to what `accelerator.log` logs.

    Make one after `accelerator.prepare` and before `accelerator.load_state`, on all processes:

        with ZeusAccelerate(accelerator) as energy:
            for batch in batches:
                ...  # as before
                accelerator.log({"loss": loss.item()}, step=step)
            with energy.evaluation():
                evaluate()

    The first log after an optimizer step also gets

    =======================  ==========================================================================================
    `energy_j`               training steps since the previous log, of all processes and GPUs, in joules
    `power_w`                their mean power
    `energy_per_token_j`     where tokens are counted with `count`; otherwise
    `energy_per_sample_j`    where samples are counted
    `total_energy_j`         the whole run so far: evaluation, saving, and its parts before an interruption included
    `power_limit_w`          the power limit in force
    =======================  ==========================================================================================

    and the first after an evaluation `eval_energy_j`. At the end, which is `accelerator.end_training()` or the end of
    the `with` block, is logged what `zeus_core.training.TrainingSummary.values` lists, `train_energy_j` first.

    Of several processes, all are certain to be at the same place only when an optimizer has stepped, so that is where
    they tell each other what they have taken: after every `exchange_steps` steps. `accelerator.log` and evaluations
    may be for the main process alone; what is logged is what was known at the latest exchange. Only the end waits for
    all of them, for a minute at most.

    `accelerator.save_state` keeps what is needed to go on counting after `accelerator.load_state`; with a
    `project_dir`, a journal in its folder `zeus-energy` adds what was spent between a checkpoint and a kill.

    Args:
        accelerator: What the loop trains with.
        monitor: What measures; if None, the optimizer's, or a new one of the GPU this process trains on.
        optimizer: Also finds a power limit: a `PowerLimitOptimizer`, or a `GlobalPowerLimitOptimizer`.
        samples_per_step: Samples of this process in an optimizer step. If None, each `accelerator.backward` counts the
            batch of the prepared dataloader in use; 0 if you count them yourself.
        exchange_steps: Optimizer steps from one exchange of several processes to the next.

    Attributes:
        energy: The `TrainingEnergy` behind it.
        steps: Optimizer steps of the run so far, those before the checkpoint it was resumed from included.

    Raises:
        UsageError: An argument is wrong; the message names it.
        NoDeviceError: There is no GPU to measure.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        monitor: ZeusMonitor | None = None,
        optimizer: PowerLimitOptimizer | GlobalPowerLimitOptimizer | None = None,
        *,
        samples_per_step: int | None = None,
        exchange_steps: int = 10,
    ) -> None:
        self._counts_batches = samples_per_step is None
        self._samples_per_step = checked_whole_number("samples_per_step", samples_per_step or 0, minimum=0)
        self._exchange_steps = checked_whole_number("exchange_steps", exchange_steps, minimum=1)
        if isinstance(optimizer, PowerLimitOptimizer):
            optimizer.close()  # from now on it is told from here
            optimizer = optimizer.optimizer
        if monitor is None and optimizer is None:
            monitor = own_monitor(checked_accelerator(accelerator))
        self.energy = TrainingEnergy(monitor, optimizer, folder=checked_accelerator(accelerator).project_dir)
        self._pending = PendingValues(self.energy)
        self._latest_step: int | None = None  # as the loop numbers them
        super().__init__(accelerator, self.energy, self.energy.monitor)
        self._wraps.wrap("log", self._log)
        self._hooks.append(accelerator.register_save_state_pre_hook(self._on_save_state))
        self._hooks.append(accelerator.register_load_state_pre_hook(self._on_load_state))

    @property
    def summary(self) -> TrainingSummary | None:
        """What the run has taken; None until it has ended."""
        return self.energy.summary

    def count(self, samples: int = 0, tokens: int = 0) -> None:
        """Samples or tokens this process has trained on, since they were counted last."""
        self.energy.count(samples, tokens)

    @contained
    def on_backward(self) -> None:
        """A backward pass for training begins."""
        super().on_backward()
        if self._counts_batches:
            self.count(samples_of_batch(self._accelerator))

    @contained
    def on_step_end(self) -> None:
        """A step has ended, on all processes alike."""
        super().on_step_end()
        self.count(self._samples_per_step)
        self._pending.has_stepped = True
        if self._world.size > 1 and self.steps % self._exchange_steps == 0:
            self._pending.learn()

    def on_activity_begin(self, activity: Activity) -> None:
        """Something that is announced begins: as a part of a step, or in between."""
        super().on_activity_begin(activity)
        if activity in TRAINING:
            self.energy.on_pass_begin(activity)

    def on_activity_end(self, activity: Activity) -> None:
        """It is over."""
        super().on_activity_end(activity)
        if activity in TRAINING:
            self.energy.on_pass_end()
        if activity is Activity.EVALUATION:
            self._pending.has_evaluated = True

    @contained
    def on_end(self) -> None:
        """Log what the run has taken: a collective call."""
        self._pending.learn()
        summary = self.energy.finish()
        values = {**self._pending.take(), **({} if summary is None else summary.values())}
        if values:
            self._accelerator.log(values, self._latest_step)

    def _log(self, log: Any, values: Any, step: int | None = None, *args: Any, **kwargs: Any) -> Any:
        self._latest_step = step
        energy_values = self._values_to_log()
        if energy_values:
            try:
                return log({**energy_values, **values}, step, *args, **kwargs)
            except Exception as error:
                _logger.warning("a tracker does not take the energy values, and gets none this time: %s", error)
        return log(values, step, *args, **kwargs)

    @contained
    def _values_to_log(self) -> dict[str, float]:
        if self._world.size == 1:
            self._pending.learn() if self._pending.has_stepped else self._pending.learn_evaluation()
        return self._pending.take()

    @contained
    def _on_save_state(self, models: Any, weights: Any, folder: str) -> None:
        put_into(folder, self.energy, self.steps, self._accelerator)

    @contained
    def _on_load_state(self, models: Any, folder: str) -> None:
        step = take_up_from(folder, self.energy, self._world, self._accelerator)
        self.steps = self.steps if step is None else step
