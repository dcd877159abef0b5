"""Reports of a run to the storage, in the background, and in files while it cannot be reached."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zeus_core.documents import Document
from zeus_core.errors import UsageError
from zeus_core.jobs._job_records import JobRun
from zeus_core.ports import Background

if TYPE_CHECKING:  # which needs Optuna
    from zeus_core.jobs._job_store import JobStore


@dataclass(frozen=True)
class _PendingRun:
    storage: str
    job: str
    number: int | None
    record: JobRun


_PENDING = Document("zeus-core pending run", 1, _PendingRun)

# The end of a run waits so long for the database, of which a usual request takes 20 ms; then a file keeps the result.
_LAST_REPORT_SECONDS = 5.0

_logger = logging.getLogger(__name__)


def fault_text(error: BaseException) -> str:
    """Return why a storage failed, in one line: what the driver says, without the statement and where to read on."""
    while error.__cause__ is not None and type(error).__name__ == "StorageInternalError":  # Optuna's, which says less
        error = error.__cause__
    return str(error).split("\n", 1)[0]


class PendingRuns:
    """The files of one job in a folder. No method raises.

    Args:
        folder: The folder, made when there is something to keep.
        storage: The URL of the storage, without its password.
        job: The name of the job.
    """

    def __init__(self, folder: Path, storage: str, job: str) -> None:
        self._folder = folder
        self._owner = storage, job
        self._stem = re.sub(r"[^A-Za-z0-9._-]+", "-", job)[:80]

    def keep(self, number: int | None, record: JobRun) -> None:
        """Write the result of a run; see `JobStore.finish`."""
        path = self._path(record)
        try:
            _PENDING.write(path, _PendingRun(*self._owner, number, record))
        except (OSError, ValueError) as error:
            _logger.error("the result of a run is lost: %s cannot be written: %s", path, error)
        else:
            _logger.warning("the result of this run is kept in %s, and reported by the next run of the job", path)

    def drop(self, record: JobRun) -> None:
        """Delete the file of a run that was reported after all."""
        try:
            self._path(record).unlink(missing_ok=True)
        except OSError as error:
            _logger.warning("%s cannot be deleted: %s", self._path(record), error)

    def report(self, store: JobStore) -> None:
        """Report what is kept, and delete what was taken."""
        for path, number, record in self._found():
            try:
                store.finish(number, record)
            except Exception as error:
                _logger.warning("the result in %s could not be reported, and stays there: %s", path, fault_text(error))
            else:
                self.drop(record)

    def _found(self) -> Iterator[tuple[Path, int | None, JobRun]]:
        for path in sorted(self._folder.glob(f"{self._stem}-*.json")) if self._folder.is_dir() else []:
            try:
                pending = _PENDING.read(path)
                if (pending.storage, pending.job) == self._owner:
                    yield path, pending.number, pending.record
            except (OSError, UsageError) as error:
                _logger.warning("%s is not reported: %s", path, error)

    def _path(self, record: JobRun) -> Path:
        return self._folder / f"{self._stem}-{record.uid}.json"


class RunReporter:
    """Reports one run. No method raises, and only `finish` waits.

    Args:
        store: The history; None if it could not be reached when the run began.
        number: The number of the run there.
        pending: Keeps the result if the history cannot.
        background: Runs the requests.
        heartbeat_seconds: How often to say that the run is alive.
    """

    def __init__(
        self,
        store: JobStore | None,
        number: int | None,
        pending: PendingRuns,
        background: Background,
        heartbeat_seconds: float,
    ) -> None:
        self._store = store
        self._number = number
        self._pending = pending
        self._background = background
        self._next: JobRun | None = None  # to be reported, if it is not yet
        self._has_complained = False
        self._stop_beating: Callable[[], None] = (
            (lambda: None) if number is None else background.repeatedly(self._beat, heartbeat_seconds)
        )

    def update(self, record: JobRun) -> None:
        """Report how far the run is. If several reports wait, only the latest is made."""
        is_under_way, self._next = self._next is not None, record
        if not is_under_way:
            self._background.soon(self._update)

    def finish(self, record: JobRun) -> None:
        """Report how the run ended, or keep that in a file."""
        has_ended, is_reported = threading.Event(), threading.Event()

        def report() -> None:
            if self._attempt(lambda store: store.finish(self._number, record)):
                is_reported.set()
                if has_ended.is_set():  # too late
                    self._pending.drop(record)
            has_ended.set()

        self._stop_beating()
        self._next = None
        self._background.soon(report)
        has_ended.wait(_LAST_REPORT_SECONDS)
        has_ended.set()
        if not is_reported.is_set():
            self._pending.keep(self._number, record)

    def _update(self) -> None:
        record, self._next = self._next, None
        if record is not None and self._number is not None:
            number = self._number
            self._attempt(lambda store: store.update(number, record))

    def _beat(self) -> None:
        number = self._number
        if number is not None:
            self._attempt(lambda store: store.beat(number))

    def _attempt(self, request: Callable[[JobStore], object]) -> bool:
        """Make a request, and return whether it was answered; the first failure is logged."""
        if self._store is None:
            return False
        try:
            request(self._store)
        except Exception as error:
            if not self._has_complained:
                self._has_complained = True
                _logger.warning("the storage of the job cannot be reached; training continues: %s", fault_text(error))
            return False
        return True
