"""The files of a run: the journal of each rank, and the file of the run, which the first rank keeps."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zeus_core.errors import UsageError
from zeus_core.ports import TimeSource
from zeus_core.ports.time_source import clock_seconds
from zeus_core.training._ranks import Ranks
from zeus_core.training.account import Account
from zeus_core.training.record.journal import Journal
from zeus_core.training.record.journal_lines import Entry
from zeus_core.training.record.resume import CHECKPOINT, Checkpoint, take_up_run
from zeus_core.training.record.run_file import JOURNAL_FOLDER
from zeus_core.training.record.run_keeper import RunKeeper
from zeus_core.training.record.run_records import KEEP_SECONDS, RunRecord

_logger = logging.getLogger(__name__)


class RunFiles:
    """The files of one run after another, of this rank; none without a folder.

    Args:
        folder: The folder that contains theirs; None if there is none.
        time_source: Has the clock.
    """

    def __init__(self, folder: Path | None, time_source: TimeSource) -> None:
        self._time_source = time_source
        self._parent = folder
        self._waits = False
        self._due_seconds = -math.inf
        self._checkpoint: Checkpoint | None = None  # that the next part continues

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
        """Whether this rank keeps the file of the run, and it is older than ten minutes or still to be written."""
        return self._keeper is not None and self._time_source.now() >= self._due_seconds

    def clock(self) -> float:
        """Return the seconds since 1970."""
        return clock_seconds(self._time_source)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue the run of a checkpoint in the next part. A damaged state is ignored, with a warning."""
        self._checkpoint = None
        try:
            self._checkpoint = None if state == {} else CHECKPOINT.from_json(state)
        except UsageError as error:
            _logger.warning("the energy state of the checkpoint is damaged: %s", error)

    def take_up(self, step: int) -> tuple[str, Account]:
        """Return the name of the run, and the account of all ranks before this part: see `take_up_run`."""
        if step > 0:
            self.begin_writing()
        checkpoint, self._checkpoint = self._checkpoint, None
        return take_up_run(step, checkpoint, self._journal, self._ranks, self.clock())

    def begin(self, first: Entry, is_new: bool) -> None:
        """Begin a part of a run with its first entry: so one that is killed before its first log has begun now."""
        self._due_seconds = -math.inf
        if self._keeper is not None:
            self._keeper.begin(first.run, is_new)
        self.write(first)

    def begin_writing(self) -> None:
        """Write the journal from now on, if it has waited for a checkpoint."""
        if self._journal is not None:
            self._journal.begin_writing()

    def write(self, entry: Entry) -> None:
        """Write an entry into the journal."""
        if self._journal is not None:
            self._journal.append(entry)

    def keep_run(self, record: RunRecord) -> None:
        """Replace the file of the run, on the first rank, by its record with its latest part alone."""
        if self._keeper is not None and self._journal is not None:
            self._due_seconds = self._time_source.now() + KEEP_SECONDS
            self._keeper.keep(record, in_folder=not self._journal.waits)
