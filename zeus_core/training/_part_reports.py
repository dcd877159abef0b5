"""The first rank's knowledge of all ranks at the end of a part, and the record of the run that it makes of it."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from zeus_core.adapters.contained import Overhead
from zeus_core.codec import decode, encode
from zeus_core.ports.world import WholeNumbers
from zeus_core.training._ranks import Ranks
from zeus_core.training._run_part import RunPart
from zeus_core.training.account import Account
from zeus_core.training.record.power_series import EnergyPoint, joules_at
from zeus_core.training.record.rank_records import (
    LISTED_RANKS,
    RankReport,
    electricity_record,
    part_ranks,
    versions,
)
from zeus_core.training.record.run_records import PartRecord, PartState, RunRecord

if TYPE_CHECKING:
    from zeus_core.electricity import Electricity

# The points of the power of all devices in the file of a job of many ranks: what one message of an exchange holds.
_POWER_BINS = 96


class PartOutcome(NamedTuple):
    """All that is known of a part beside the account; see `PartRecord` and `RunRecord`."""

    results: Mapping[str, str]
    search: Mapping[str, Any] | None
    saving_fraction: float | None
    saving_uncertainty: float | None
    overhead: Overhead
    detected_evaluations: int


class PartReports:
    """The reports of all ranks on one part of a run.

    Args:
        part: The part, as this rank knows it.
        ranks: The ranks.
    """

    def __init__(self, part: RunPart, ranks: Ranks) -> None:
        self._part = part
        self._ranks = ranks
        self._by_rank: dict[int, RankReport] = {}  # of the others on the first rank alone
        self._power: tuple[EnergyPoint, ...] = ()  # of all devices, where ranks are not listed
        self._remarks: list[str] = []

    @property
    def remarks(self) -> list[str]:
        """Remarks on the numbers for people: those of the first ranks that have sent some, or else of this one."""
        return self._remarks or self._part.split.remarks

    def gather(self, seconds: float) -> None:
        """Send the report of each rank to the first one, at the end of the part; a collective call.

        Args:
            seconds: The time that the part took.
        """
        ranks = self._ranks
        is_listed = ranks.size <= LISTED_RANKS
        sent = ranks.gather_first(lambda: encode(self._own(has_power=is_listed)))
        if not is_listed and seconds > 0:
            power = ranks.reduce(lambda: self._power_numbers(seconds)).sums
            points = (
                EnergyPoint(seconds * (number + 1) / _POWER_BINS, 1e-3 * sum_) for number, sum_ in enumerate(power)
            )
            self._power = (EnergyPoint(0.0, 0.0), *points)
        self._by_rank = dict(enumerate(decode(tuple[RankReport, ...], sent or [], "reports")))
        remarks = [
            (f"rank {rank}, " if ranks.size > 1 else "") + remark
            for rank, report in self._by_rank.items()
            for remark in report.remarks
        ]
        first_remarks = ranks.decide(lambda: remarks[:LISTED_RANKS])
        self._remarks = remarks or first_remarks

    def record(self, outcome: PartOutcome, electricity: Electricity | None, has_ended: bool) -> RunRecord:
        """Return the record of the run, with this part alone, on the first rank.

        Args:
            outcome: All that is known beside the account.
            electricity: By which emissions and cost are reported; None without.
            has_ended: Whether the part has ended.
        """
        part, ranks = self._part, self._ranks
        known = part.own if ranks.size == 1 else (part.reported or part.own)
        if has_ended and ranks.size > 1 and not part.is_whole:
            known = self._known_at_end()
        record = PartRecord(
            name=part.name,
            state=_end_of(part) if has_ended else "running",
            begin_step=part.steps_before,
            step=part.step,
            begun_at_seconds=part.begun_at_seconds,
            until_seconds=part.clock(),
            ranks=part_ranks(part.devices, self._by_rank | {ranks.rank: self._own(has_power=True)}),
            versions=versions(),
            work=part.work,
            results=outcome.results,
            search=outcome.search,
            overhead_seconds=outcome.overhead.seconds,
            detected_evaluations=outcome.detected_evaluations,
            overhead=outcome.overhead,
            power=self._power,
            losses=part.losses.points,
        )
        saving = outcome.saving_fraction, outcome.saving_uncertainty
        return RunRecord(part.run, part.earlier + known, (record,), *saving, electricity_record(electricity))

    def _own(self, has_power: bool) -> RankReport:
        """Return the report of this rank, with the energies over time and the account if `has_power`."""
        split = self._part.split
        devices = split.devices()
        if not has_power:
            devices = {uuid: (energy, ()) for uuid, (energy, _) in devices.items()}
        return RankReport(devices, tuple(split.remarks), self._part.own if has_power else None)

    def _power_numbers(self, seconds: float) -> WholeNumbers:
        """Return the energy of this rank's devices until each of so many equal parts of some time, in millijoules."""
        series = [power for _, power in self._part.split.devices().values() if power]
        moments = [seconds * number / _POWER_BINS for number in range(1, _POWER_BINS + 1)]
        return WholeNumbers([round(1e3 * sum(joules_at(points, at) for points in series)) for at in moments])

    def _known_at_end(self) -> Account:
        """Return the account of all ranks where training has ended by an error: others have not reported their last."""
        part, ranks = self._part, self._ranks
        others_watts = part.split.max_watts * (ranks.gpu_count - len(part.devices[0].devices))
        most_joules = others_watts * max(part.own.total.seconds - part.reported_seconds, 0.0)
        known = most_joules if math.isfinite(most_joules) else None
        return replace(ranks.with_others(part.own, part.others), interruptions=1, unrecorded_joules=known)


def _end_of(part: RunPart) -> PartState:
    """Return how a part has ended: one whose account was asked for has done all its steps."""
    error = None if part.is_whole else sys.exc_info()[0]
    if error is None:
        return "ended"
    return "failed" if issubclass(error, Exception) else "stopped"  # by Ctrl-C, or an exit in a handler of a signal
