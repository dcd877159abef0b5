"""The accounts of training runs, one after another, over activities, ranks and interruptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeus_core.codec import decode, encode
from zeus_core.errors import WorldError
from zeus_core.events import (
    STEP_BEGIN,
    Activity,
    EpochBegin,
    EpochEnd,
    Event,
    PassBegin,
    PassEnd,
    Pause,
    Resume,
    StepBegin,
    StepEnd,
    TrainBegin,
    TrainEnd,
)
from zeus_core.monitor import ZeusMonitor
from zeus_core.ports import World
from zeus_core.ports.world import SoloWorld
from zeus_core.training._part_reports import PartOutcome, PartReports
from zeus_core.training._ranks import Ranks
from zeus_core.training._run_files import RunFiles
from zeus_core.training._run_part import RunPart
from zeus_core.training._summary import known_values
from zeus_core.training.account import Account
from zeus_core.training.activities.activity_split import ActivitySplit
from zeus_core.training.activities.limit_reading import LimitReading
from zeus_core.training.activities.tally import Tally
from zeus_core.training.charges.charged_electricity import electricity_log_values
from zeus_core.training.record.rank_records import rank_record
from zeus_core.training.record.resume import CHECKPOINT, Checkpoint
from zeus_core.training.record.run_records import RankRecord

if TYPE_CHECKING:
    from zeus_core.electricity import Electricity
    from zeus_core.training.charges.part_charges import PartCharges
    from zeus_core.training.traced import RunTraced

_STEP_WITHOUT_GAP = StepBegin(0.0)


class RunRecorder:
    """The account of one training run after another, and its journal and checkpoints: an observer of its events.

    Collective methods say so: every rank must call them at the same step, and they raise `WorldError` on every rank if
    one failed or did not answer in time.

    Args:
        monitor: Measures this rank's GPUs.
        folder: The folder of the journal; no journal is kept if None.
        electricity: The intensity and price that all energy is charged at; none if None.
        trace: Makes a trace; none is made if None.
        says_how: Whether people are told how to announce an evaluation: those who have written the loop themselves.
    """

    def __init__(
        self,
        monitor: ZeusMonitor,
        folder: Path | None,
        electricity: Electricity | None,
        trace: RunTraced | None,
        says_how: bool = True,
    ) -> None:
        self._monitor = monitor
        self._says_how = says_how
        self._trace = trace
        self._electricity = electricity
        self._limit = LimitReading(monitor)
        self._part: RunPart | None = None
        self._spent: Tally | None = None  # at the end of a part, or when it was asked for last
        self._split: ActivitySplit | None = None  # the latest one, which also measures evaluations outside of training
        self._reports: PartReports | None = None  # on the current part, or the latest one
        self.ended: tuple[int, Account] | None = None
        """The steps and the account of the latest training that has ended, in a job of one rank; None before."""
        self.last_log: dict[str, float] = {}
        """The rest that no log contained of the training that `account` was called for; see `LogIntervals.close`."""
        self._work: dict[str, int | str] = {}
        self._files = RunFiles(folder, monitor.time_source)
        self.use_world(SoloWorld())

    def use_world(self, world: World) -> None:
        """Set the ranks, before training begins; one until then."""
        self.ranks: Ranks = Ranks(world)
        """The ranks, and the GPUs that each counts, once training has begun."""
        self._gpu_indices: list[int] | None = None  # the GPUs that this rank counts, once the ranks have shared them
        self._files.use_ranks(self.ranks)

    def use_folder(self, folder: Path, from_checkpoint: bool) -> None:
        """Keep the journal in this folder from the next training on, or from its first checkpoint on."""
        self._files.use_folder(folder, from_checkpoint)

    def use_work(self, work: Mapping[str, int | str]) -> None:
        """Note facts of the work of a step, such as the size of the model, by name."""
        self._work = {
            name: int(value) if isinstance(value, int) else value
            for name, value in work.items()
            if isinstance(value, int | str)
        }
        if self._part is not None:
            self._part.work = self._work

    def receive(self, event: Event) -> None:
        """Take an event into the account. `TrainBegin` is collective; so is the first `Pause` outside of training.

        `StepBegin` is ignored: see `begin_step`.
        """
        if not isinstance(event, StepEnd):
            self._follow(event)
        elif self._part is not None:
            self._part.end_step()

    def _follow(self, event: Event) -> None:
        match event:
            case Pause():
                self._pause(event.activity)
            case Resume():
                self._leave()
                if self._part is None and self._split is not None:
                    self._split.stop()  # what `Pause` started
            case PassBegin():
                self._enter(event.activity)
            case PassEnd():
                self._leave()
            case EpochBegin():
                self._switch(Activity.STEPS)
            case EpochEnd():
                self._switch(Activity.IDLE)
            case TrainBegin():
                self._begin(event.step)
            case TrainEnd():
                self.ended = self._end()

    def begin_step(self) -> StepBegin:
        """Begin a step, before all other observers do. Return its event, with the verdict on the gap before it."""
        part = self._part
        if part is None:
            return STEP_BEGIN
        gap_seconds = part.begin_step()
        return StepBegin(gap_seconds) if gap_seconds > 0 else _STEP_WITHOUT_GAP

    def leaves_out_excess(self) -> bool:
        """Charge what the step under way took longer than usual to no step. Return whether it took longer."""
        return self._part is not None and self._part.split.leaves_out_excess()

    def ends_unusual_gap(self, *, ends_steps: bool = False) -> bool:
        """End the gap since the latest step, before what follows begins. Return whether it is unusual.

        Args:
            ends_steps: No step follows, and the gap is idle, unusual or not.
        """
        if self._part is None:
            return False
        return self._part.split.end_steps() if ends_steps else self._part.split.ends_unusual_gap()

    def _begin(self, step: int) -> None:
        """Begin a part of a run; a collective call. If the previous part has not ended, its steps are redone.

        Args:
            step: Optimizer steps already done, in a resumed training.
        """
        gpu_indices = self._shared_gpu_indices()
        if self.ranks.gpu_count == 0:
            return  # there is nothing to count, on any rank
        abandoned = self._part
        self._reports = self._part = self._spent = None
        self.last_log = {}
        if abandoned is not None:
            self._files.load_state({})
            run, earlier = abandoned.run, abandoned.abandon()
        else:
            run, earlier = self._files.take_up(step)
        if self._split is not None:
            self._split.stop()
        self.ranks.activities = ()
        devices = self.ranks.gather_first(
            lambda: encode(rank_record(self._monitor, gpu_indices, self.ranks.cpu_indices))
        )
        # On all ranks, or on none.
        trace = None
        if self._trace is not None:
            trace = self._trace.begin(self.ranks, self._files.folder, step, run, by_all=self.ranks.are_traced)
        says_how = self._says_how and self.ranks.rank == 0
        self._split = self.ranks.make(lambda: ActivitySplit(self._monitor, gpu_indices, trace, says_how))
        if self._trace is not None:
            self._trace.compare_clocks()
        self._part = part = RunPart(
            run,
            step,
            earlier,
            self.ranks,
            decode(tuple[RankRecord, ...], devices or []),
            self._split,
            self._files,
            self._charges(self._split, earlier),
            self._work,
        )
        self._reports = PartReports(part, self.ranks)
        self._limit.start()
        self._files.begin(part.entry(part.begun_at_seconds), is_new=abandoned is None and step == 0)

    def _charges(self, split: ActivitySplit, earlier: Account) -> PartCharges | None:
        if self._electricity is None:
            return None
        # Imported here, as the sources of intensity and prices are imported with it.
        from zeus_core.training.charges.part_charges import PartCharges, warn_of_other_units

        if self.ranks.rank == 0:
            warn_of_other_units(earlier, self._electricity)
        return PartCharges(self._electricity, self._monitor, self.ranks.cpu_indices, split)

    def _switch(self, activity: Activity) -> None:
        """Begin an activity of the training, and forget the one it interrupts; nothing outside of training."""
        if self._part is not None:
            self._part.note_change(activity)
            self._part.split.switch(activity)

    def _pause(self, activity: Activity) -> None:
        """Begin an activity that interrupts training, until `_leave`. Outside of training, the first is collective."""
        if self._part is None:
            gpu_indices = self._shared_gpu_indices()
            if self.ranks.gpu_count > 0:
                self._split = self._split or ActivitySplit(self._monitor, gpu_indices)
                self._split.start()
        self._enter(activity)

    def keep(self) -> None:
        """Bring the journal up to date, in a long pause."""
        if self._part is not None:
            self._part.record()

    def _enter(self, activity: Activity) -> None:
        """Begin an activity within another one, until `_leave`."""
        if self._part is not None:
            self._part.note_change(activity)
        if self._split is not None:
            self._split.enter(activity)

    def _leave(self) -> None:
        """Continue with the activity that was interrupted last."""
        if self._part is not None:
            self._part.charge_if_due(self._part.split.activity)
        if self._split is not None:
            self._split.leave()

    def count(self, samples: int, tokens: int, generated_tokens: int) -> None:
        """Count work of this rank; see `RunPart.count`."""
        if self._part is not None:
            self._part.count(samples, tokens, generated_tokens)

    def log_values(self, set_limit_watts: int | None, clock_mhz: int | None) -> dict[str, float]:
        """Return the values of `LOG_METRICS` that are known; empty outside of training. A collective call.

        A log that follows another one within a second extends what was known then, and writes nothing to the journal.

        Args:
            set_limit_watts: The limit that the optimizer has set; None without one.
            clock_mhz: The SM clock that the optimizer has locked; None without one.
        """
        part = self._part
        if part is None:
            return {}
        if self._trace is not None:
            self._trace.log()
        now = part.log()
        totals: dict[str, float | None] = {
            "total_energy_j": (part.earlier.total + now.total).energy_joules,
            "power_limit_w": self._limit.watts(set_limit_watts),
            "sm_clock_mhz": clock_mhz,
        }
        if self._electricity is not None:
            totals |= electricity_log_values(part.earlier + now, self._electricity)
        return {**part.intervals.next(now), **known_values(totals)}

    def record_losses(self, values: Mapping[str, float]) -> None:
        """Record losses beside the energy of all ranks at the latest log; nothing while some of it is lost."""
        if self._part is not None:
            self._part.record_losses(values)

    def spent(self) -> Tally | None:
        """Return time and energy of the run so far; that of the latest one after it, None before. A collective call."""
        if self._part is not None:
            self._spent = self._part.spent().total
        return self._spent

    def logged_evaluation_joules(self, leaves_out: bool) -> float | None:
        """Return the energy of the evaluations since the previous call; None if unknown. A collective call.

        Outside of training, that of the latest one; so too after a call that has left others out, of which more becomes
        known meanwhile.
        """
        part = self._part
        if part is None:
            return self.evaluation_joules()
        latest_joules = self.evaluation_joules() if part.leaves_out else None
        joules = part.log_evaluation(leaves_out)
        return joules if latest_joules is None else latest_joules

    def evaluation_joules(self) -> float | None:
        """Return the energy of the current or latest evaluation; None if unknown. A collective call."""
        total = self.ranks.combine(self._own_evaluation).total
        return total.energy_joules if total.seconds > 0 else None

    def account(self) -> tuple[int, Account] | None:
        """Return the steps of this part and the account of the run; None outside of training. A collective call."""
        part = self._part
        if part is None:
            return None
        if self._trace is not None:
            self._trace.compare_clocks()
        whole, self.last_log = part.finish()
        account = part.earlier + whole
        self._spent = account.total
        with suppress(WorldError):  # the account is known, also if a rank ends before it has sent those of its devices
            if self._reports is not None:
                self._reports.gather(whole.total.seconds)
        return part.step - part.steps_before, account

    def _end(self) -> tuple[int, Account] | None:
        """End the part. Not collective: only a job of one rank gets what `account` returns."""
        part, self._part = self._part, None
        if part is None:
            return None
        own = part.end()
        self._limit.stop()
        if self._trace is not None:
            self._trace.end(own)
        return (part.step - part.steps_before, part.earlier + own) if self.ranks.size == 1 else None

    def keep_run(self, outcome: Callable[[], PartOutcome]) -> None:
        """Bring the file of the run up to date, on the first rank. Not collective.

        Args:
            outcome: Returns all that is known beside the account.
        """
        if self._reports is not None and self._files.keeps_run:
            self._files.keep_run(self._reports.record(outcome(), self._electricity, has_ended=self._part is None))

    @property
    def remarks(self) -> Sequence[str]:
        """Remarks on the numbers of the current or latest part, for people."""
        return () if self._reports is None else self._reports.remarks

    @property
    def is_run_due(self) -> bool:
        """Whether the file of the run is to be brought up to date, in training."""
        return self._part is not None and self._files.is_run_due

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, in JSON types; empty outside of training. Not collective."""
        part = self._part
        if part is None:
            return {}
        self._files.begin_writing()
        own = part.latest()
        if self._trace is not None:
            self._trace.keep(own)
        known = own if self.ranks.size == 1 else part.intervals.seen
        return CHECKPOINT.to_json(Checkpoint(part.run, self.ranks.size, part.earlier + known))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the run of a checkpoint at the next `begin`. A damaged state is ignored, with a warning."""
        self._files.load_state(state)

    def _shared_gpu_indices(self) -> list[int]:
        if self._gpu_indices is None:
            signals = () if self._electricity is None else self._electricity.signals
            units = [signal.facts.amount_unit for signal in signals]
            self._gpu_indices = self.ranks.share(self._monitor, units, self._trace is not None)
        return self._gpu_indices

    def _own_evaluation(self) -> Account:
        if self._split is None:
            return Account()
        self._split.update()
        return Account(total=self._split.evaluation or Tally())
