"""The part of a run that one process trains: from where it begins or resumes to where it ends."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from zeus_core.codec import decode, encode
from zeus_core.ports.world import WholeNumbers
from zeus_core.training._log_intervals import LogIntervals
from zeus_core.training._ranks import Ranks
from zeus_core.training.account import Account, unusual_activities
from zeus_core.training.activities.activity_split import ActivitySplit
from zeus_core.training.record.journal_lines import Entry
from zeus_core.training.record.loss_curve import LossCurves, LossPoint
from zeus_core.training.record.power_series import EnergyPoint, joules_at
from zeus_core.training.record.run_keeper import LISTED_RANKS, Outcome, RankReport, part_ranks, versions
from zeus_core.training.record.run_records import PartRecord, PartState, RankRecord

if TYPE_CHECKING:
    from zeus_core.training.charges.part_charges import PartCharges

# The points of the power of all devices in the file of a job of many ranks: what one message of an exchange holds.
_POWER_BINS = 96


@dataclass
class RunPart:
    """The work of this process on a run.

    Attributes:
        run: The name of the run.
        begin_step: Optimizer steps done before.
        step: Optimizer steps done so far.
        logged_step: Those of them at the latest log.
        earlier: The account of all ranks before this part.
        split: Divides the energy of this rank.
        intervals: The energy by the latest log, and what each log adds.
        begun_at_seconds: Its begin, by the machine's clock.
        ranks: The ranks and their devices.
        work: Facts of the work of a step, by name.
        charges: The electricity of this part, where it is given.
        samples: Samples of this rank.
        tokens: Tokens of this rank.
        generated_tokens: Tokens that this rank has generated for training.
        own: The account of this rank, as written down last.
        summarized: The same, if it was reported as the whole part, and nothing was since.
        reported: The account of all ranks, as they have reported it last.
        reported_seconds: The time of this rank's own account then.
        others: The account of the others then.
        reports: The reports of the ranks at the end, by rank; those of the others on the first one alone.
        power: The energy of all devices over time, where ranks are not listed.
        losses: Losses and metrics of evaluations beside the energy.
        remarks: Remarks on the numbers for people, of the ranks that have sent them.
        leaves_out: Whether the evaluations so far are part of no log.
        is_whole: Whether all ranks have reported their energy after the latest step.
        is_alone: Whether there is one rank.
        name: No other part of any run has it.
    """

    run: str
    begin_step: int
    step: int
    logged_step: int
    earlier: Account
    split: ActivitySplit
    intervals: LogIntervals
    begun_at_seconds: float
    ranks: Sequence[RankRecord]
    work: Mapping[str, int | str]
    charges: PartCharges | None = None
    samples: int = 0
    tokens: int = 0
    generated_tokens: int = 0
    own: Account = field(default_factory=Account)
    summarized: Account | None = None
    reported: Account | None = None
    reported_seconds: float = 0.0
    others: WholeNumbers | None = None
    reports: dict[int, RankReport] = field(default_factory=dict)
    power: tuple[EnergyPoint, ...] = ()
    losses: LossCurves = field(default_factory=LossCurves)
    remarks: list[str] = field(default_factory=list)
    leaves_out: bool = False
    is_whole: bool = False
    is_alone: bool = True
    name: str = field(default_factory=lambda: uuid.uuid4().hex)

    def account(self) -> Account:
        """Return the account of this rank, up to the latest `ActivitySplit.update` or `extend`."""
        # Counts may be floats, or scalars of a framework, which JSON does not have.
        account = Account(
            self.split.total,
            self.split.tallies,
            samples=int(self.samples),
            tokens=int(self.tokens),
            visits=dict(self.split.visits),
            generated_tokens=int(self.generated_tokens),
        )
        account = account if self.charges is None else self.charges.added_to(account)
        if self.is_alone:
            return account
        # As the other ranks get it: the accounts of all ranks add up to that of the job, to the last bit.
        units, unusual = list(account.charges), unusual_activities(account.activities)
        return Account.from_numbers(account.to_numbers(units, unusual), units, unusual)

    def combine(self, ranks: Ranks, own: Callable[[], Account]) -> Account:
        """Add up the accounts of all ranks; a collective call.

        Args:
            ranks: The ranks.
            own: Returns the account of this rank.
        """
        if self.is_alone:
            self.reported = own()
            return self.reported

        def report() -> Account:
            account = own()
            self.reported_seconds = account.total.seconds
            return account

        self.reported, self.others = ranks.combine_all(report)
        return self.reported

    def record_losses(self, values: Mapping[str, float]) -> None:
        """Record losses beside the energy of all ranks at the latest log; nothing while some of it is lost."""
        joules = (self.earlier.total + (self.reported or self.own).total).energy_joules
        if joules is not None:
            for name, value in values.items():
                with suppress(TypeError, ValueError):  # a trainer of a user's own may log texts
                    if math.isfinite(number := float(value)):
                        self.losses.add(name, LossPoint(self.step, round(joules, 3), number))

    def report_all(self, ranks: Ranks, seconds: float) -> None:
        """Report the devices of all ranks to the first one, at the end of the part; a collective call.

        Args:
            ranks: The ranks.
            seconds: The time that the part took.
        """
        is_listed = ranks.size <= LISTED_RANKS
        sent = ranks.gather_first(lambda: encode(self.report(has_power=is_listed)))
        if not is_listed and seconds > 0:
            power = ranks.reduce(lambda: self._power_numbers(seconds)).sums
            points = (
                EnergyPoint(seconds * (number + 1) / _POWER_BINS, 1e-3 * sum_) for number, sum_ in enumerate(power)
            )
            self.power = (EnergyPoint(0.0, 0.0), *points)
        self.reports = dict(enumerate(decode(tuple[RankReport, ...], sent or [], "reports")))
        remarks = [
            (f"rank {rank}, " if ranks.size > 1 else "") + remark
            for rank, report in self.reports.items()
            for remark in report.remarks
        ]
        first_remarks = ranks.decide(lambda: remarks[:LISTED_RANKS])
        self.remarks = remarks or first_remarks

    def report(self, has_power: bool) -> RankReport:
        """Return what this rank reports at the end of the part, or the first rank knows of itself.

        Args:
            has_power: With the energies over time, and the account.
        """
        devices = self.split.devices()
        if not has_power:
            devices = {uuid: (energy, ()) for uuid, (energy, _) in devices.items()}
        return RankReport(devices, tuple(self.split.remarks), self.own if has_power else None)

    def _power_numbers(self, seconds: float) -> WholeNumbers:
        """Return the energy of this rank's devices until each of so many equal parts of some time, in millijoules."""
        series = [power for _, power in self.split.devices().values() if power]
        moments = [seconds * number / _POWER_BINS for number in range(1, _POWER_BINS + 1)]
        return WholeNumbers([round(1e3 * sum(joules_at(points, at) for points in series)) for at in moments])

    def entry(self, own: Account, at_seconds: float, is_last: bool = False) -> Entry:
        """Return the entry of the journal for an account of this rank."""
        return Entry(self.run, self.name, self.begin_step, self.step, own, at_seconds, is_last)

    def record(
        self,
        outcome: Outcome,
        reports: Mapping[int, RankReport],
        state: PartState,
        now: float,
    ) -> PartRecord:
        """Return the record of this part in the file of the run.

        Args:
            outcome: All that is known beside the account.
            reports: The reports of some ranks, by rank.
            state: Whether it goes on, or how it has ended.
            now: This moment, by the machine's clock.
        """
        return PartRecord(
            name=self.name,
            state=state,
            begin_step=self.begin_step,
            step=self.step,
            begun_at_seconds=self.begun_at_seconds,
            until_seconds=now,
            ranks=part_ranks(self.ranks, reports),
            versions=versions(),
            work=self.work,
            results=outcome.results,
            search=outcome.search,
            overhead_seconds=outcome.overhead.seconds,
            detected_evaluations=outcome.detected_evaluations,
            overhead=outcome.overhead,
            power=self.power,
            losses=self.losses.points,
        )
