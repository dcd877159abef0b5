"""Results of runs that the storage could not take: kept in files, and reported when it can be reached again."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from zeus_core._codec import decode, encode
from zeus_core._documents import JsonFormat
from zeus_core.errors import UsageError
from zeus_core.optimizer.batch_size._record import RunRecord

__all__ = ["PendingRuns", "TakesRuns", "fault_text"]

_FORMAT = JsonFormat("zeus-core pending run", 1)

_logger = logging.getLogger(__name__)


def fault_text(error: BaseException) -> str:
    """Return why a storage failed, in one line: what the driver says, without the statement and where to read on."""
    while error.__cause__ is not None and type(error).__name__ == "StorageInternalError":  # Optuna's, which says less
        error = error.__cause__
    return str(error).split("\n", 1)[0]


class TakesRuns(Protocol):
    """The history that runs are reported to."""

    def finish(self, number: int | None, record: RunRecord) -> None:
        """Keep the record of a run that has ended, once."""
        ...


class PendingRuns:
    """The files of one job in a folder. No method raises.

    Args:
        folder: The folder, made when there is something to keep.
        storage: The URL of the storage, without its password.
        job: The name of the job.
    """

    def __init__(self, folder: Path, storage: str, job: str) -> None:
        self._folder = folder
        self._owner = {"storage": storage, "job": job}
        self._stem = re.sub(r"[^A-Za-z0-9._-]+", "-", job)[:80]

    def keep(self, number: int | None, record: RunRecord) -> None:
        """Write the result of a run; see `JobStore.finish`."""
        path = self._path(record)
        try:
            _FORMAT.write(path, {**self._owner, "number": number, "record": encode(record)})
        except (OSError, ValueError) as error:
            _logger.error("the result of a run is lost: %s cannot be written: %s", path, error)
        else:
            _logger.warning("the result of this run is kept in %s, and reported by the next run of the job", path)

    def drop(self, record: RunRecord) -> None:
        """Delete the file of a run that was reported after all."""
        try:
            self._path(record).unlink(missing_ok=True)
        except OSError as error:
            _logger.warning("%s cannot be deleted: %s", self._path(record), error)

    def report(self, store: TakesRuns) -> None:
        """Report what is kept, and delete what was taken."""
        for path, number, record in self._found():
            try:
                store.finish(number, record)
            except Exception as error:
                _logger.warning("the result in %s could not be reported, and stays there: %s", path, fault_text(error))
            else:
                self.drop(record)

    def _found(self) -> Iterator[tuple[Path, int | None, RunRecord]]:
        for path in sorted(self._folder.glob(f"{self._stem}-*.json")) if self._folder.is_dir() else []:
            try:
                fields = _FORMAT.read(path)
                if {name: fields.get(name) for name in self._owner} == self._owner:
                    number = decode(int | None, fields.get("number"), "number")  # type: ignore[arg-type]
                    yield path, number, decode(RunRecord, fields.get("record"))
            except (OSError, UsageError) as error:
                _logger.warning("%s is not reported: %s", path, error)

    def _path(self, record: RunRecord) -> Path:
        return self._folder / f"{self._stem}-{record.uid}.json"
