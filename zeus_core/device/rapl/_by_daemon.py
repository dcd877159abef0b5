"""Energy counters that only root may read, read by the daemon."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from zeus_core.device.rapl.powercap import read_file
from zeus_core.errors import DeviceError, PermissionDeniedError
from zeus_core.process.deadline import CALL_SECONDS, RESTORE_SECONDS
from zeus_core.process.parallel import ParallelCalls

if TYPE_CHECKING:
    from zeus_core.device.remote.client import DaemonConnection


class _DirectOrDaemon:
    """Reads files of the powercap tree: itself, or by the daemon what this process may not read, if there is one.

    Raises what `read_file` raises. Several threads may use it, and a forked process has a connection of its own.
    """

    def __init__(self) -> None:
        self._connection: DaemonConnection | None = None
        self._calls = ParallelCalls()

    def __call__(self, path: Path) -> str:
        """Return the text of a file."""
        try:
            return read_file(path)
        except PermissionError:
            if path.name != "energy_uj":
                raise
            try:
                return str(self._ask(path.parent.name))
            except PermissionDeniedError:  # there is no daemon, or it does not allow it
                pass
            except DeviceError as error:
                raise OSError(str(error)) from error
            raise

    def _ask(self, zone: str) -> int:
        """Return the microjoules of a zone. Raises `DeviceError`."""
        if self._connection is None:
            from zeus_core.device.remote.client import DaemonConnection

            self._connection = DaemonConnection()
        # Longer than anybody waits: a daemon that does not answer occupies the thread, and is not asked meanwhile.
        ask = partial(self._connection.ask, "energy", {"zone": zone}, RESTORE_SECONDS)
        return int(self._calls.call_one_within(CALL_SECONDS, 0, ask)["microjoules"])


direct_or_daemon = _DirectOrDaemon()
"""One for the process, which thereby has one connection, opened where it is needed."""
