"""The files of a run: the journal of each rank, and the file of the run, which the first rank keeps."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from zeus_core.monitor import ZeusMonitor
from zeus_core.ports.time_source import clock_seconds
from zeus_core.training._ranks import Ranks
from zeus_core.training._run_part import RunPart
from zeus_core.training.account import Account
from zeus_core.training.record.journal import Journal
from zeus_core.training.record.resume import Checkpoint, take_up_run
from zeus_core.training.record.run_file import JOURNAL_FOLDER
from zeus_core.training.record.run_keeper import Outcome, RunKeeper, electricity_record
from zeus_core.training.record.run_records import KEEP_SECONDS, PartState, RunRecord

if TYPE_CHECKING:
    from zeus_core.electricity import Electricity


class RunFiles:
    """The files of one run after another, of this rank; none without a folder.

    Args:
        folder: The folder that contains theirs; None if there is none.
        monitor: Has the clock.
    """

    def __init__(self, folder: Path | None, monitor: ZeusMonitor) -> None:
        self._monitor = monitor
        self._parent = folder
        self._waits = False
        self._due_seconds = -math.inf

    def use_ranks(self, ranks: Ranks) -> None:
        """Set the ranks, before all else."""
        self._ranks = ranks
        folder = self.folder
        self._journal = None if folder is None else Journal(folder, ranks.rank, ranks.size, self._waits)
        self._keeper = None if folder is None or ranks.rank != 0 else RunKeeper(folder)

    def use_folder(self, folder: Path, from_checkpoint: bool) -> None:
        """Write to this folder from the next training on, or from its first checkpoint on."""
        self._parent, self._waits = folder, from_checkpoint
        self.use_ranks(self._ranks)

    @property
    def folder(self) -> Path | None:
        """Their own folder."""
        return None if self._parent is None else self._parent / JOURNAL_FOLDER

    @property
    def keeps_run(self) -> bool:
        """Whether this rank keeps the file of the run."""
        return self._keeper is not None

    @property
    def is_run_due(self) -> bool:
        """Whether the file of the run is older than ten minutes, or is still to be written."""
        return self._monitor.time_source.now() >= self._due_seconds

    def clock(self) -> float:
        """Return the seconds since 1970."""
        return clock_seconds(self._monitor.time_source)

    def take_up(self, step: int, checkpoint: Checkpoint | None) -> tuple[str, Account]:
        """Return the name of the run, and the account of all ranks before this part: see `take_up_run`."""
        if step > 0:
            self.begin_writing()
        return take_up_run(step, checkpoint, self._journal, self._ranks, self.clock())

    def begin(self, part: RunPart, is_new: bool) -> None:
        """Begin a part of a run."""
        self._due_seconds = -math.inf
        if self._keeper is not None:
            self._keeper.begin(part.run, is_new)
        if self._journal is not None:  # a part that is killed before its first log has begun now
            self._journal.append(part.entry(Account(), part.begun_at_seconds))

    def begin_writing(self) -> None:
        """Write the journal from now on, if it has waited for a checkpoint."""
        if self._journal is not None:
            self._journal.begin_writing()

    def write(self, part: RunPart, own: Account, is_last: bool) -> None:
        """Write the account of this rank into the journal."""
        if self._journal is not None:
            self._journal.append(part.entry(own, self.clock(), is_last))

    def keep_run(self, part: RunPart, outcome: Outcome, electricity: Electricity | None, has_ended: bool) -> None:
        """Bring the file of the run up to date, on the first rank.

        Args:
            part: The latest part.
            outcome: All that is known beside the account.
            electricity: By which emissions and cost are reported; None without.
            has_ended: Whether the part has ended.
        """
        if self._keeper is None or self._journal is None:
            return
        self._due_seconds = self._monitor.time_source.now() + KEEP_SECONDS
        ranks = self._ranks
        reports = part.reports | {ranks.rank: part.report(has_power=True)}
        known = part.own if ranks.size == 1 else (part.reported or part.own)
        if has_ended and ranks.size > 1 and not part.is_whole:
            known = _known_at_end(part, ranks)
        record = part.record(outcome, reports, _end_of(part) if has_ended else "running", self.clock())
        saving = outcome.saving_fraction, outcome.saving_uncertainty
        self._keeper.keep(
            RunRecord(part.run, part.earlier + known, (record,), *saving, electricity_record(electricity)),
            in_folder=not self._journal.waits,
        )


def _end_of(part: RunPart) -> PartState:
    """Return how a part has ended: one whose account was asked for has done all its steps."""
    error = None if part.is_whole else sys.exc_info()[0]
    if error is None:
        return "ended"
    return "failed" if issubclass(error, Exception) else "stopped"  # by Ctrl-C, or an exit in a handler of a signal


def _known_at_end(part: RunPart, ranks: Ranks) -> Account:
    """Return the account of all ranks where training has ended by an error: the others have not reported their last."""
    others_watts = part.split.max_watts * (ranks.gpu_count - len(part.ranks[0].devices))
    most_joules = others_watts * max(part.own.total.seconds - part.reported_seconds, 0.0)
    known = most_joules if math.isfinite(most_joules) else None
    return replace(ranks.with_others(part.own, part.others), interruptions=1, unrecorded_joules=known)
