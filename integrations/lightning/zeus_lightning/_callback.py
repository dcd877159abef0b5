"""The energy of a run as a Lightning callback."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from zeus_core.adapters import contained
from zeus_core.adapters.result import show_result
from zeus_core.events import Activity, TrainingOptimizer
from zeus_core.monitor import ZeusMonitor
from zeus_core.process.restore_registry import restore_registry
from zeus_core.training import TrainingEnergy, TrainingSummary
from zeus_core.validate import checked_object
from zeus_lightning._energy_source import EnergySource
from zeus_lightning._fit_session import Session
from zeus_lightning._namespaces import Callback, LightningModule, Trainer
from zeus_lightning._progress import BatchCounts, epochs_of

if TYPE_CHECKING:
    from zeus_core.batches import MicroBatchOptimizer
    from zeus_core.electricity import Electricity
    from zeus_core.jobs.recurring_run import RecurringRun
    from zeus_lightning.batches.lightning_loop import LightningLoop

_STATE = "zeus_lightning.ZeusCallback"

_logger = logging.getLogger(__name__)


class ZeusCallback(Callback):
    """Measures the energy of a `Trainer`, and logs it where its losses are: pass it in `callbacks=[...]`.

    The trainer's loggers get, each `log_every_n_steps` optimizer steps and with `train/` before the name,
    `energy_j` (the training steps since the previous log, over all ranks and GPUs), `power_w`,
    `energy_per_token_j` or `energy_per_sample_j`, `total_energy_j` (the whole run so far), `power_limit_w`,
    `sm_clock_mhz`, `co2_eq_g` and `cost`, each where it is known. docs/metrics.md describes them.

    The end of each evaluation, within `fit` or by itself, logs `validate/energy_j` or `test/energy_j`. The end of `fit`
    logs the metrics of `zeus_core.training.TrainingSummary.values`, `train_energy_j` first. The progress bar shows
    `power_w`, and `energy_kj` of the whole run.

    None of it is in `trainer.callback_metrics`, `trainer.logged_metrics` or the results of `validate` and `test`, by
    which others select, stop and optimise.

    Totals outlive interruptions: a journal is kept in `zeus-energy` under the trainer's `default_root_dir`, and each
    checkpoint names its run.

    Args:
        monitor: Measures the GPUs; the optimizer's if None, or a new one for the GPU the trainer uses.
        optimizer: Chooses a power limit or an SM clock: a `GlobalPowerLimitOptimizer` or `GlobalClockOptimizer`; or one
            for each rank, a `LevellingOptimizer`. Or a function that makes one for a monitor, such as the class itself;
            or "auto" for the least energy within 10 % more time, or within another slowdown, such as "5%".
        batch_size: Samples in each batch, or a function that counts them. If None the length of its first tensor, or
            for modules that draw windows from it (neuralforecast) the number of these, if it is fixed.
        tokens: Tokens in each batch, or a function that counts them; not counted if None.
        strict: Where no GPU can be measured, raise; otherwise one warning says so, and there are no numbers.
        quiet: Show no result at the end of `fit`.
        electricity: Intensity and price of the electricity, by which emissions and cost are reported; none if None.
        recurring_run: The run of a recurring job that `fit` trains, from `RecurringJob.run`. Validations are reported
            to it; when it says so, the trainer stops, as by `EarlyStopping`.
        micro_batch: The samples of one pass, for the global batch of the trainer: "auto" for those that take the least
            joules, found by probes before training begins; a number; or a `MicroBatchOptimizer`. Those of the loader if
            None.
        trace: Write a trace of `fit`, for Perfetto or Chrome: True for `zeus-energy/trace-RANK.json.gz` under
            `default_root_dir`, or another folder. See docs/tracing.md.

    Attributes:
        energy: The `TrainingEnergy` behind the callback, with its monitor and optimizer; None until a trainer begins.
        micro_batch: The `MicroBatchOptimizer`, or the number, if any.

    Raises:
        UsageError: An argument is wrong; the message names it.
        DeviceError: No GPU can be measured, and `strict` is true. Also raised when a trainer begins.
    """

    def __init__(
        self,
        monitor: ZeusMonitor | None = None,
        # The function comes first, as LightningCLI takes the first type that fits.
        optimizer: Callable[[ZeusMonitor], TrainingOptimizer] | TrainingOptimizer | str | None = None,
        batch_size: int | Callable[[Any], int] | None = None,
        tokens: int | Callable[[Any], int] | None = None,
        strict: bool = False,
        quiet: bool = False,
        electricity: Electricity | None = None,
        recurring_run: RecurringRun | None = None,
        micro_batch: Literal["auto"] | int | MicroBatchOptimizer | None = None,
        trace: bool | str | Path = False,
    ) -> None:
        super().__init__()
        self._is_auto = micro_batch == "auto"
        if micro_batch is not None:
            from zeus_core.batches.micro_batch_optimizer import checked_micro_batch  # a wing, for those who ask for it

            micro_batch = checked_micro_batch(micro_batch)
        self.micro_batch = micro_batch
        self._loop: LightningLoop | None = None
        self._source = EnergySource(monitor, optimizer, strict, electricity, trace)
        if recurring_run is not None:
            checked_object("recurring_run", recurring_run, "report", "the run of `with job.run() as run:`")
        self._run = recurring_run
        self._is_quiet = quiet
        self.is_uninvited: bool = False  # made by an entry point, for scripts that have none of their own
        self._has_trained = False
        self._counts = BatchCounts(batch_size, tokens)
        self._session: Session | None = None
        self._fit_energy: TrainingEnergy | None = None
        self.energy: TrainingEnergy | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Copy the settings alone. The strategy "ddp_spawn" copies callbacks for each process."""
        return {
            **vars(self),
            "_has_trained": False,
            "_run": None,
            "_session": None,
            "_fit_energy": None,
            "energy": None,
        }

    @property
    def summary(self) -> TrainingSummary:
        """The summary of the latest `fit`; until it has ended, and where nothing was measured, an empty one."""
        if self._fit_energy is None:
            return TrainingSummary.of_nothing("no fit has begun in this process, as with ddp_spawn")
        return self._fit_energy.summary

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begin a `fit`, `validate`, `test` or `predict`."""
        if self._source.strict:
            self._source.make_monitor(trainer)  # its error is the only one that leaves a hook
        self._begin_session(trainer, stage)

    @contained
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Choose the micro-batch, when all is prepared."""
        # Next, Lightning installs a handler of SIGTERM that lets the training end in order, and that calls the handler
        # it finds: ours would end the process.
        restore_registry.leave_signals()
        if self._loop is not None:
            energy = self._current.energy
            if not isinstance(self.micro_batch, int | None):
                self.micro_batch.adopt(energy.monitor, energy.optimizer if self._is_auto else None)
            self._loop.use_best()

    @contained
    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Read the state of a checkpoint that training continues from."""
        if trainer.state.fn == "fit":
            self._current.state = checkpoint.get(_STATE, {})

    @contained
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add the state to a checkpoint."""
        state = self._session.current_state() if self._session is not None else {}
        if state:
            checkpoint[_STATE] = state

    @contained
    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin training, with some batches of validation."""
        self._current.begin_training()

    @contained
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin training."""
        self._has_trained = True
        self._current.begin_training()

    @contained
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin an epoch."""
        self._current.energy.on_epoch_begin()

    @contained
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Begin a batch, and maybe an optimizer step with it."""
        self._current.begin_batch()

    @contained
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End a batch, and maybe an optimizer step with it."""
        session = self._current
        self._count(session.energy, pl_module, batch)
        session.end_batch()
        values = session.values_to_log()
        if values:
            session.publish({f"train/{name}": value for name, value in values.items()})
            session.show(values)
        if self._run is not None and self._run.progress(epoch=epochs_of(trainer)):
            trainer.should_stop = True

    @contained
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End an epoch, possibly within a step."""
        self._current.interrupt_step()
        self._current.energy.on_epoch_end()

    @contained
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin an evaluation, within training or by itself."""
        self._current.pause(Activity.EVALUATION)

    @contained
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the evaluation, and log its energy."""
        stage = getattr(trainer.state.stage, "value", "")
        values = self._current.energy.log_evaluation(leaves_out=trainer.sanity_checking)
        if not trainer.sanity_checking:
            self._current.publish({name.replace("eval_", f"{stage}/"): value for name, value in values.items()})
        is_within_training = trainer.state.fn == "fit" and not trainer.sanity_checking
        if is_within_training:
            self._current.energy.record_losses({name: float(each) for name, each in trainer.callback_metrics.items()})
        self._current.energy.on_resume()
        if self._run is not None and is_within_training:  # the metrics are those that early stopping sees
            should_stop = self._run.report(epoch=epochs_of(trainer), metric=dict(trainer.callback_metrics))
            trainer.should_stop = trainer.should_stop or should_stop

    on_test_start = on_validation_start
    on_test_end = on_validation_end

    @contained
    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a prediction."""
        self._current.pause(Activity.PREDICTION)

    @contained
    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the prediction: `energy.evaluation()` has its energy."""
        self._current.energy.on_resume()

    @contained
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End training, and log its summary."""
        values = self._current.energy.finish().log_values()
        names = {"energy_j": "train/energy_j", "eval_energy_j": "validate/energy_j"}
        self._current.publish({names.get(name, name): value for name, value in values.items()})
        self._current.end_training()

    @contained
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """End the session on an exception, Ctrl-C or SIGTERM."""
        self._leave_batches(exception)
        self._leave()

    @contained
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """End the session."""
        self._leave_batches()
        self._leave()

    @property
    def _current(self) -> Session:
        assert self._session is not None, "setup has failed"  # which was logged, so that this is not
        return self._session

    @contained
    def _begin_session(self, trainer: Trainer, stage: str) -> None:
        """Begin a session."""
        if self._session is not None and self._session.is_within(trainer):
            _logger.warning(
                "a trainer within the training of another is not measured apart: its ZeusCallback is removed"
            )
            trainer.callbacks = [callback for callback in trainer.callbacks if callback is not self]
            return
        state = self._leave()
        self._session = None
        if self._is_first_of(trainer):
            run = self._run if stage == "fit" else None
            self.energy = self._source.energy_of(trainer, run)
            self._session = Session(trainer, self.energy, state)
            if stage == "fit":
                self._fit_energy = self.energy
                if self.micro_batch is not None:
                    from zeus_lightning.batches.lightning_loop import LightningLoop

                    self._loop = LightningLoop(trainer, self.micro_batch)

    def _leave(self) -> Any:
        """End the session. Return the state that the next training may continue."""
        if self._session is None:
            return {}
        self._session.leave()
        self._show_result(self._session)
        return self._session.state

    @contained
    def _leave_batches(self, error: BaseException | None = None) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.note_end(error)
            loop.undo()

    @contained
    def _show_result(self, session: Session) -> None:
        """Show the result of a training that has ended, once."""
        has_trained, self._has_trained = self._has_trained, False
        if has_trained and not self._is_quiet and session.is_first_rank:
            batch_rows = {} if isinstance(self.micro_batch, int | None) else self.micro_batch.result()
            show_result({**session.energy.result(), **batch_rows})

    def _is_first_of(self, trainer: Trainer) -> bool:
        """Return whether this callback is the first of its kind. The others are removed from the trainer."""
        first, *others = [callback for callback in trainer.callbacks if isinstance(callback, ZeusCallback)]
        if any(not callback.is_uninvited for callback in others):
            _logger.warning("a trainer needs one ZeusCallback: the first one measures, %d more step aside", len(others))
        if others:
            place = trainer.callbacks.index(first)
            rest = [callback for callback in trainer.callbacks if not isinstance(callback, ZeusCallback)]
            trainer.callbacks = [*rest[:place], first, *rest[place:]]
        return self is first

    @contained
    def _count(self, energy: TrainingEnergy, module: LightningModule, batch: Any) -> None:
        energy.count(self._counts.samples(module, batch), self._counts.tokens(batch))
