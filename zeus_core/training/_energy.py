"""`TrainingEnergy`: where the energy of a training run goes, whatever framework runs it."""

from __future__ import annotations

import itertools
import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from zeus_core._validate import checked_instance
from zeus_core.errors import DeviceError, UsageError
from zeus_core.events import Activity, NoObserver, TrainingObserver
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor._windows import checked_monitor
from zeus_core.optimizer import GlobalPowerLimitOptimizer
from zeus_core.ports import SoloWorld, World
from zeus_core.training._account import Account
from zeus_core.training._checkpoint import Checkpoint
from zeus_core.training._hook import Hooked, hook
from zeus_core.training._journal import Entry, Journal
from zeus_core.training._log_intervals import LogIntervals
from zeus_core.training._ranks import Ranks
from zeus_core.training._resume import take_up_run
from zeus_core.training._split import ActivitySplit
from zeus_core.training._summary import TrainingSummary, known_values
from zeus_core.training._tally import Tally

__all__ = ["TrainingEnergy"]

_logger = logging.getLogger(__name__)

_JOURNAL_FOLDER = "zeus-energy"
_numbers = itertools.count(1)


@dataclass
class _Part:
    """What this process does of a run, from where it begins or resumes to where it ends."""

    run: str
    begin_step: int
    step: int
    earlier: Account  # what all ranks took before it
    samples: int = 0
    tokens: int = 0
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    laps: LogIntervals = field(default_factory=LogIntervals)


class TrainingEnergy(Hooked):
    """Measures a training run: its energy as training goes on, by activity, per token or sample, and in all.

    Tell it what happens, or let an adapter of your framework do so:

        with TrainingEnergy(ZeusMonitor(), folder="output") as energy:
            for batch in batches:
                with energy.step(samples=len(batch)):
                    train(batch)
                if it_is_time:
                    writer.add_scalars(energy.log())
            with energy.during(Activity.EVALUATION):
                evaluate()
        print(energy.summary)

    The hooks never raise: after a fault, which is logged once, training goes on without the numbers it has cost.
    Of several ranks each device is counted once, and `on_train_begin`, `log`, `evaluation` and `finish` are collective:
    every rank must call them at the same step, and all get the same numbers.

    Args:
        monitor: What measures; the optimizer's if None, or a new one.
        optimizer: An optimizer to be told the same events.
        world: The ranks of the job, such as `zeus_core.pytorch.torch_world()`.
        folder: Where a journal is kept, from which a resumed run learns what was spent before; none if None.

    Raises:
        UsageError: An argument is wrong; the message names it.
        NoDeviceError: There is no GPU to measure.
    """

    def __init__(
        self,
        monitor: ZeusMonitor | None = None,
        optimizer: GlobalPowerLimitOptimizer | None = None,
        *,
        world: World | None = None,
        folder: str | Path | None = None,
    ) -> None:
        self.optimizer = _checked_optimizer(optimizer, monitor)
        """The optimizer that is told the same events."""
        self._observer: TrainingObserver = NoObserver() if optimizer is None else optimizer
        if monitor is None:
            monitor = optimizer.monitor if optimizer is not None else ZeusMonitor()
        self.monitor = checked_monitor(monitor)
        """What measures."""
        self.summary: TrainingSummary | None = None
        """What the latest run has taken; None until it has ended."""
        self._window = f"__zeus_core_training_energy_{next(_numbers)}"
        self._folder = None if folder is None else Path(folder)
        self._gpu_indices: list[int] | None = None  # those this rank counts
        self._part: _Part | None = None
        self._latest_split: ActivitySplit | None = None
        self._checkpoint: Checkpoint | None = None
        self._take_world(SoloWorld())
        if world is not None:
            self.use_world(world)

    def use_world(self, world: World) -> None:
        """Take other ranks, before training begins: an adapter learns late who they are."""
        self._take_world(world)
        self._observer.use_world(world)

    def use_folder(self, folder: str | Path) -> None:
        """Keep the journal in this folder from the next training on."""
        self._folder = Path(folder)
        self._keep_journal()

    @hook
    def on_train_begin(self, step: int = 0) -> None:
        """Training begins: a collective call. If it had begun before and not ended, what was done since is done again.

        Args:
            step: Optimizer steps already done, in a resumed training.
        """
        self._observer.on_train_end()
        self._observer.on_train_begin()
        given_up, checkpoint = self._part, self._checkpoint
        self._part = self._checkpoint = self.summary = None
        if given_up is not None:
            spent = self._ranks.combine(lambda: self._write_down(given_up))
            run, earlier = given_up.run, given_up.earlier + Account(spent.total, spent.activities, redone=spent.total)
        else:
            run, earlier = take_up_run(step, checkpoint, self._journal, self._ranks)
        if self._gpu_indices is None:
            self._gpu_indices = self._ranks.share(self.monitor)
        self._ranks.gather(self._begin_split)  # together, so that a rank on which it fails is not waited for later
        self._part = _Part(run, step, step, earlier)

    @hook
    def on_epoch_begin(self) -> None:
        """An epoch begins, with the loading of its first data."""
        self._observer.on_epoch_begin()
        self._do(Activity.STEPS)

    @hook
    def on_step_begin(self) -> None:
        """An optimizer step begins."""
        self._observer.on_step_begin()
        self._do(Activity.STEPS)

    @hook
    def on_step_end(self) -> None:
        """An optimizer step has ended."""
        self._observer.on_step_end()
        if self._part is not None:
            self._part.step += 1

    @hook
    def on_pause(self, activity: Activity = Activity.IDLE, on_all_ranks: bool = False) -> None:
        """Something else than training begins, until `on_resume` or the next step."""
        self._observer.on_pause(activity, on_all_ranks)
        if self._part is None:
            self._keep_sampling()  # for an evaluation of its own
        self._split.enter(activity)

    @hook
    def on_resume(self) -> None:
        """What the latest `on_pause` announced is over."""
        self._split.leave()
        if self._part is None:
            self.monitor.cancel(self._window)
        self._observer.on_resume()

    @hook
    def on_interference(self) -> None:
        """Something else than training has already happened since the last step ended."""
        self._observer.on_interference()

    @hook
    def on_epoch_end(self) -> None:
        """The epoch has ended."""
        self._observer.on_epoch_end()
        self._do(Activity.IDLE)

    @hook
    def on_train_end(self) -> None:
        """Training has ended, in whatever way. Not collective: a rank may be the only one that is left."""
        self._observer.on_train_end()
        if self._part is None:
            return
        part, self._part = self._part, None
        self.monitor.cancel(self._window)
        own = self._write_down(part)
        if self.summary is None and self._ranks.size == 1:
            self.summary = self._summary(part, own)

    @hook
    def on_pass_begin(self, activity: Activity) -> None:
        """A pass begins that is part of a training step and worth telling apart, until `on_pass_end`."""
        self._split.enter(activity)

    @hook
    def on_pass_end(self) -> None:
        """The pass is over."""
        self._split.leave()

    def count(self, samples: int = 0, tokens: int = 0) -> None:
        """Samples or tokens this rank has trained on, since they were counted last."""
        if self._part is not None:
            self._part.samples += samples
            self._part.tokens += tokens

    @contextmanager
    def step(self, samples: int = 0, tokens: int = 0) -> Iterator[None]:
        """An optimizer step as a `with` block, with what this rank trains on in it."""
        self.on_step_begin()
        yield
        self.on_step_end()
        self.count(samples, tokens)

    @contextmanager
    def during(self, activity: Activity) -> Iterator[None]:
        """Something else than training as a `with` block."""
        self.on_pause(activity)
        try:
            yield
        finally:
            self.on_resume()

    def log(self) -> dict[str, float]:
        """What to log now: a collective call. Empty outside of training and after a fault.

        What `interval_values` lists, of the training steps since the previous log, and

        ===================  =======================================================================================
        `total_energy_j`     all of the run so far: earlier parts, evaluation and saving included
        `power_limit_w`      the power limit in force; the highest of this rank's GPUs
        ===================  =======================================================================================
        """
        return self._log() or {}

    @hook
    def _log(self) -> dict[str, float]:
        if self._part is None:
            return {}
        part = self._part
        now = self._ranks.combine(lambda: self._write_down(part))
        totals = {
            "total_energy_j": (part.earlier.total + now.total).energy_joules,
            "power_limit_w": self._power_limit_watts(),
        }
        return {**part.laps.next(now), **known_values(totals)}

    def evaluation(self, prefix: str = "eval") -> dict[str, float]:
        """What the present evaluation has taken, or the latest: a collective call.

        Returns:
            `eval_energy_j`, or the same with another prefix; nothing if some of it was lost, or there was none.
        """
        return self._evaluated(prefix) or {}

    @hook
    def _evaluated(self, prefix: str) -> dict[str, float]:
        together = self._ranks.combine(self._own_evaluation)
        was_any = together.total.seconds > 0
        return known_values({f"{prefix}_energy_j": together.total.energy_joules if was_any else None})

    def finish(self) -> TrainingSummary | None:
        """What the run has taken, at the end of training: a collective call. None outside of training."""
        return self._finish()

    @hook
    def _finish(self) -> TrainingSummary | None:
        part = self._part
        if part is not None:
            self.summary = self._summary(part, self._ranks.combine(lambda: self._own(part)))
        return self.summary

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint should keep, in JSON's types. Not collective; the journal is brought up to date too."""
        return self._state_dict() or {}

    @hook
    def _state_dict(self) -> dict[str, Any]:
        part = self._part
        if part is None:
            return {}
        own = self._write_down(part)
        known = own if self._ranks.size == 1 else part.laps.seen
        return Checkpoint(part.run, self._ranks.size, part.earlier + known).to_json()

    @hook
    def load_state_dict(self, state: Any) -> None:
        """Take up the run of a checkpoint at the next `on_train_begin`. A state that cannot be read is reported."""
        self._checkpoint = None
        try:
            self._checkpoint = None if state == {} else Checkpoint.from_json(state)
        except UsageError as error:
            _logger.warning("the energy state of the checkpoint is damaged: %s", error)

    def __enter__(self) -> TrainingEnergy:
        self.on_train_begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        self.on_train_end()

    def _take_world(self, world: World) -> None:
        self._ranks = Ranks(world)
        self._gpu_indices = None
        self._keep_journal()

    def _keep_sampling(self) -> None:
        """GPUs without an energy counter are sampled while a window is open."""
        self.monitor.begin_window(self._window, restart=True)

    def _keep_journal(self) -> None:
        folder = None if self._folder is None else self._folder / _JOURNAL_FOLDER
        self._journal = None if folder is None else Journal(folder, self._ranks.rank, self._ranks.size)

    @property
    def _split(self) -> ActivitySplit:
        """The split of the present training, or, outside of one, of what is done there: a collective call at first."""
        if self._latest_split is None:
            if self._gpu_indices is None:
                self._gpu_indices = self._ranks.share(self.monitor)
            self._begin_split()
        assert self._latest_split is not None
        return self._latest_split

    def _begin_split(self) -> None:
        self._keep_sampling()
        self._latest_split = ActivitySplit(self.monitor, self._gpu_indices or [])

    def _do(self, activity: Activity) -> None:
        if self._part is not None:
            self._split.switch(activity)

    def _own(self, part: _Part) -> Account:
        """What this rank has taken of a part so far."""
        self._split.update()
        return Account(self._split.total, self._split.tallies, samples=part.samples, tokens=part.tokens)

    def _own_evaluation(self) -> Account:
        self._split.update()
        return Account(total=self._split.evaluation or Tally())

    def _summary(self, part: _Part, taken: Account) -> TrainingSummary:
        saving_fraction = None if self.optimizer is None else self.optimizer.saving_fraction
        return TrainingSummary(
            part.step - part.begin_step, part.earlier + taken, saving_fraction, self.overhead_seconds
        )

    def _write_down(self, part: _Part) -> Account:
        """Bring the journal up to date. Returns what this rank has taken of the part."""
        own = self._own(part)
        if self._journal is not None:
            self._journal.append(Entry(part.run, part.name, part.begin_step, part.step, own))
        return own

    def _power_limit_watts(self) -> float | None:
        try:
            return max(gpu.read_power_limit_watts() for gpu in self.monitor.gpus.values())
        except DeviceError:
            return None  # and is left out


def _checked_optimizer(
    optimizer: GlobalPowerLimitOptimizer | None, monitor: ZeusMonitor | None
) -> GlobalPowerLimitOptimizer | None:
    if optimizer is None:
        return None
    checked_instance("optimizer", optimizer, GlobalPowerLimitOptimizer, "GlobalPowerLimitOptimizer(monitor)")
    if monitor not in {None, optimizer.monitor}:
        raise UsageError("optimizer has another monitor than the one given; give both the same, or only the optimizer")
    return optimizer
