"""The audit log: a line of JSON for each change, written before it is made."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from zeus_core.device.remote.protocol import encode_line
from zeus_core.errors import DriverFaultError
from zeus_core.files import without_links
from zeus_core.settings.entry import LedgerEntry
from zeus_core.settings.restoring import RestoreOutcome

_logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0  # logrotate waits for longer before it compresses a file that it has moved (delaycompress)


class AuditLog:
    """Appends lines to a file, from any thread. A file that was moved away, as by logrotate, is opened anew.

    Args:
        path: The file, made with the mode 0640 if need be; None: standard output, for the journal of systemd.

    Raises:
        OSError: It cannot be opened, or it is a link.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._file = self._open()
        self._has_warned = False
        self._looks_at = 0.0
        self._is_torn = False  # the last line in the file is not complete
        self._counts: Counter[str] = Counter()  # of lines, by event

    def write(self, event: str, fields: Mapping[str, Any]) -> None:
        """Append a line: the time, the event, and the fields.

        Raises:
            DriverFaultError: It cannot be written, as on a full disk.
        """
        line = encode_line({"time": _now(), "event": event, **fields})
        try:
            with self._lock:
                if time.monotonic() >= self._looks_at:
                    self._follow()
                written = os.write(self._file, b"\n" + line if self._is_torn else line)
                self._is_torn = written < len(line)
                self._counts[event] += 1
            if self._is_torn:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._has_warned = False
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                _logger.error("the audit log %s cannot be written, so nothing is changed: %s", self._path, error)
            raise DriverFaultError(f"the daemon cannot write its audit log, and changes nothing: {error}") from error

    def counts(self) -> dict[str, int]:
        """Return the number of lines since the daemon began, by event."""
        with self._lock:
            return dict(self._counts)

    def note(self, event: str, fields: Mapping[str, Any]) -> None:
        """Append a line about a thing that must happen in any case, such as a restore."""
        try:
            self.write(event, fields)
        except DriverFaultError:
            return  # said once, on standard error

    def _open(self) -> int:
        if self._path is None:
            return os.dup(1)
        descriptor = without_links(str(self._path), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
        os.fchmod(descriptor, 0o640)
        return descriptor

    def _follow(self) -> None:
        """Open the file anew if another one, or none, has its name now."""
        self._looks_at = time.monotonic() + _LOOK_SECONDS
        if self._path is None:
            return
        try:
            named = self._path.stat()
        except FileNotFoundError:
            named = None
        opened = os.fstat(self._file)
        if named is None or (named.st_dev, named.st_ino) != (opened.st_dev, opened.st_ino):
            new = self._open()
            os.close(self._file)
            self._file = new


def note_end(audit: AuditLog, outcome: RestoreOutcome, why: str, **more: Any) -> None:
    """Write to the audit log how the change of a knob has ended, and why."""
    entry = outcome.entry
    because = {} if outcome.is_done else {"because": entry.failure}
    new = entry.original if outcome.instead is None else outcome.instead
    changed = {"old": outcome.value, "new": new, "outcome": outcome.kind, "why": why, **because}
    audit.note("ended", {**describe(entry), **more, **changed})


def describe(entry: LedgerEntry) -> dict[str, Any]:
    """Return what all lines about an entry have in common."""
    return {
        "device": entry.device_uuid,
        "knob": entry.knob,
        "pid": entry.owner.pid,
        "uid": entry.uid,
        "program": entry.program,
        "job": entry.job,
    }


def _now() -> str:
    """Return the time in UTC, such as "2026-11-22T10:31:00.000250+00:00"."""
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    return f"{_second(seconds)}.{nanoseconds // 1000:06d}+00:00"


@lru_cache(maxsize=1)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
