"""Calls of a driver that are made again after a passing fault."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from zeus_core.errors import DriverFaultError

_Answer = TypeVar("_Answer")

# Between four tries. Faults that pass (UNKNOWN, TIMEOUT, IN_USE, a session that another thread has closed) are over in
# milliseconds; more waits would only delay the message about a GPU that is broken.
_WAITS_SECONDS = (0.01, 0.03, 0.1)


def retried(
    call: Callable[[], _Answer],
    faults: type[Exception] = DriverFaultError,
    final: tuple[type[Exception], ...] = (),
    unless: Callable[[], bool] = lambda: False,
) -> _Answer:
    """Make a call, and up to three times more after a passing fault, within 0.14 s of waiting.

    Only for what is read once, such as in constructors, and for changes: other faults are part of a reading.

    Args:
        call: The call.
        faults: The errors that may pass.
        final: Those of them that do not.
        unless: Returns whether the call is no longer to be made.

    Raises:
        Exception: The call raised it each time, or it is an error that does not pass.
    """
    for wait_seconds in _WAITS_SECONDS:
        try:
            return call()
        except final:
            raise
        except faults:
            if unless():
                raise
            time.sleep(wait_seconds)
    return call()
