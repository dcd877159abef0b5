"""Tells the storage what happens in a run, in the background: training never waits for a database."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from zeus_core.optimizer.batch_size._pending import PendingRuns, TakesRuns, fault_text
from zeus_core.optimizer.batch_size._record import RunRecord
from zeus_core.ports import Background

__all__ = ["KeepsRuns", "RunReporter"]

# The end of a run waits so long for the database, of which a usual request takes 20 ms; then a file keeps the result.
_LAST_REPORT_SECONDS = 5.0

_logger = logging.getLogger(__name__)


class KeepsRuns(TakesRuns, Protocol):
    """The history of a job, as a run that is under way sees it. Every method may raise, if it cannot be reached."""

    def beat(self, number: int) -> None:
        """Say that a run is alive."""
        ...

    def update(self, number: int, record: RunRecord) -> None:
        """Replace the record of a run."""
        ...


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
        store: KeepsRuns | None,
        number: int | None,
        pending: PendingRuns,
        background: Background,
        heartbeat_seconds: float,
    ) -> None:
        self._store = store
        self._number = number
        self._pending = pending
        self._background = background
        self._next: RunRecord | None = None  # to be reported, if it is not yet
        self._has_complained = False
        self._stop_beating: Callable[[], None] = (
            (lambda: None) if number is None else background.repeatedly(self._beat, heartbeat_seconds)
        )

    def update(self, record: RunRecord) -> None:
        """Report how far the run is. If several reports wait, only the latest is made."""
        is_under_way, self._next = self._next is not None, record
        if not is_under_way:
            self._background.soon(self._update)

    def finish(self, record: RunRecord) -> None:
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

    def _attempt(self, request: Callable[[KeepsRuns], object]) -> bool:
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
