"""The part of a run that one process trains: from where it begins or resumes to where it ends."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from zeus_core.events import Activity
from zeus_core.ports.world import WholeNumbers
from zeus_core.training._log_intervals import LogIntervals
from zeus_core.training._ranks import Ranks
from zeus_core.training._run_files import RunFiles
from zeus_core.training.account import TRAINING, Account, unusual_activities
from zeus_core.training.activities.activity_split import ActivitySplit
from zeus_core.training.record.journal import ENTRY_FRACTION
from zeus_core.training.record.journal_lines import Entry
from zeus_core.training.record.loss_curve import LossCurves, LossPoint
from zeus_core.training.record.run_records import RankRecord

if TYPE_CHECKING:
    from zeus_core.training.charges.part_charges import PartCharges


class RunPart:
    """The work of this process on a run, and its account.

    Args:
        run: The name of the run.
        steps_before: Optimizer steps done before.
        earlier: The account of all ranks before this part.
        ranks: The ranks.
        devices: The ranks and their devices.
        split: Divides the energy of this rank.
        files: Record the account of this rank.
        charges: The electricity of this part; None where none is given.
        work: Facts of the work of a step, by name.

    Attributes:
        name: No other part of any run has it.
        step: Optimizer steps done so far.
        begun_at_seconds: Its begin, by the machine's clock.
        intervals: The energy by the latest log, and what each log adds.
        losses: Losses and metrics of evaluations beside the energy.
        own: The account of this rank, as it was recorded last.
        reported: The account of all ranks, as they have reported it last; None before.
        reported_seconds: The time of this rank's own account then.
        others: The account of the others then.
        is_whole: Whether all ranks have reported their energy after the latest step.
        leaves_out: Whether the evaluations so far are part of no log.
    """

    def __init__(
        self,
        run: str,
        steps_before: int,
        earlier: Account,
        ranks: Ranks,
        devices: Sequence[RankRecord],
        split: ActivitySplit,
        files: RunFiles,
        charges: PartCharges | None,
        work: Mapping[str, int | str],
    ) -> None:
        self.run = run
        self.steps_before = steps_before
        self.earlier = earlier
        self.devices = devices
        self.split = split
        self.work = work
        self._ranks = ranks
        self._files = files
        self._charges = charges
        self.name: str = uuid.uuid4().hex
        self.step: int = steps_before
        self.begun_at_seconds: float = files.clock()
        self.intervals: LogIntervals = LogIntervals(split.max_watts * ranks.gpu_count)  # the boards of a job are alike
        self.losses: LossCurves = LossCurves()
        self.own: Account = Account()
        self.reported: Account | None = None
        self.reported_seconds: float = 0.0
        self.others: WholeNumbers | None = None
        self.is_whole: bool = False
        self.leaves_out: bool = False
        self._written_at_seconds = -math.inf
        self._logged_step = steps_before
        self._final: Account | None = None  # of this rank, if it was recorded as its last, and nothing was since
        self._samples = self._tokens = self._generated_tokens = 0

    def clock(self) -> float:
        """Return the seconds since 1970, by the machine's clock."""
        return self._files.clock()

    def entry(self, at_seconds: float, is_last: bool = False) -> Entry:
        """Return the entry of the journal for the account of this rank, as it was recorded last."""
        return Entry(self.run, self.name, self.steps_before, self.step, self.own, at_seconds, is_last)

    def begin_step(self) -> float:
        """Begin a step. Return the time since the latest one that is charged to no step, as it was an unusual gap."""
        self._final, self.is_whole = None, False
        if self._charges is not None:
            self.charge_if_due()
        return self.split.begin_step()

    def end_step(self) -> None:
        """End the step."""
        self.step += 1
        self.split.end_step()

    def note_change(self, activity: Activity) -> None:
        """Note that another activity begins now."""
        self._final = None
        self.charge_if_due(activity)

    def charge_if_due(self, activity: Activity = Activity.STEPS) -> None:
        """Charge the energy until now where that is due, with an entry in the journal.

        Args:
            activity: The one that begins or ends: one outside of training may draw another power, for an hour.
        """
        if self._charges is not None and self._charges.is_due(is_power_changing=activity not in TRAINING):
            self.record()

    def count(self, samples: int, tokens: int, generated_tokens: int) -> None:
        """Count work of this rank. Tokens generated in another activity, such as an evaluation, are part of that."""
        self._samples += samples
        self._tokens += tokens
        if generated_tokens and self.split.activity is Activity.GENERATION:
            self._generated_tokens += generated_tokens

    def record(self, is_last: bool = False, is_log: bool = False) -> Account:
        """Record the account of this rank in the journal, of the part so far, and return it.

        Args:
            is_last: It is that of the whole part.
            is_log: It is that of a log, which the journal leaves out while its latest entry is new beside the part.
        """
        self.split.update(is_last)
        self.own = self._account()
        self._final = self.own if is_last else None
        now = self.clock()
        if not is_log or now - self._written_at_seconds >= ENTRY_FRACTION * (now - self.begun_at_seconds):
            self._written_at_seconds = now
            self._files.write(self.entry(now, is_last))
        return self.own

    def latest(self, is_last: bool = False) -> Account:
        """Return the account of this rank: as it was recorded as its last, or else as it is recorded now."""
        return self._final or self.record(is_last)

    def log(self) -> Account:
        """Return the account of all ranks for a log; a collective call."""
        self._final, self._logged_step = None, self.step
        return self._combined(self._soon)

    def spent(self) -> Account:
        """Return the account of all ranks, with the parts before; a collective call."""
        return self.earlier + self._combined(self._soon)

    def log_evaluation(self, leaves_out: bool) -> float | None:
        """Return the energy of the evaluations since the previous call; None if it is not known. A collective call.

        Args:
            leaves_out: They are part of no log.
        """
        self._final, self.leaves_out = None, leaves_out
        return self.intervals.next_evaluation(self._combined(self._soon))

    def finish(self) -> tuple[Account, dict[str, float]]:
        """End the steps. Return the account of all ranks, and the rest that no log contains. A collective call."""
        self.split.end_steps()
        whole = self._combined(lambda: self.record(is_last=True))
        self.is_whole = True
        rest = self.intervals.close(whole, has_stepped=self.step > self._logged_step)
        self._logged_step = self.step
        return whole, rest

    def abandon(self) -> Account:
        """End a part whose steps will be redone; return the account of its run. A collective call."""
        spent = self._combined(lambda: self.record(is_last=True))
        self.split.stop()
        return self.earlier + replace(spent, redone=spent.total, samples=0, tokens=0)

    def end(self) -> Account:
        """End the part; return the account of this rank: the one that was reported as that of the whole part, if so."""
        self.split.end_steps()
        own = self.latest(is_last=True)
        self.split.stop()
        return own

    def record_losses(self, values: Mapping[str, float]) -> None:
        """Record losses beside the energy of all ranks at the latest log; nothing while some of it is lost."""
        joules = (self.earlier.total + (self.reported or self.own).total).energy_joules
        if joules is not None:
            for name, value in values.items():
                with suppress(TypeError, ValueError):  # a trainer of a user's own may log texts
                    if math.isfinite(number := float(value)):
                        self.losses.add(name, LossPoint(self.step, round(joules, 3), number))

    def _combined(self, own: Callable[[], Account]) -> Account:
        """Add up the accounts of all ranks; a collective call.

        Args:
            own: Returns the account of this rank.
        """
        if self._ranks.size == 1:
            self.reported = own()
            return self.reported

        def report() -> Account:
            account = own()
            self.reported_seconds = account.total.seconds
            return account

        self.reported, self.others = self._ranks.combine_all(report)
        return self.reported

    def _soon(self) -> Account:
        """Return the account of this rank for a log, which extends what was known at one just before."""
        return self._account() if self.split.extend() else self.record(is_log=True)

    def _account(self) -> Account:
        """Return the account of this rank, up to the latest `ActivitySplit.update` or `extend`."""
        # Counts may be floats, or scalars of a framework, which JSON does not have.
        account = Account(
            self.split.total,
            self.split.tallies,
            samples=int(self._samples),
            tokens=int(self._tokens),
            visits=dict(self.split.visits),
            generated_tokens=int(self._generated_tokens),
        )
        account = account if self._charges is None else self._charges.added_to(account)
        if self._ranks.size == 1:
            return account
        # As the other ranks get it: the accounts of all ranks add up to that of the job, to the last bit.
        units, unusual = list(account.charges), unusual_activities(account.activities)
        return Account.from_numbers(account.to_numbers(units, unusual), units, unusual)
