"""Calls of functions in a separate process, so that they take no time from the training threads of this one.

Python runs one thread at a time. A thread that computes delays training whenever training releases the GIL, which it
does at every kernel launch.
"""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from zeus_core.errors import ZeusError

_Result = TypeVar("_Result")

_REPLY = b"\0zeus-core reply\0"  # separates the reply from output that native code may have printed


def run_in_child(function: Callable[..., _Result], *arguments: Any) -> _Result:
    """Call a function in a separate process, which exits when the function returns, and return its result.

    The process imports the function's module, not the running program, which therefore needs no `__main__` guard.

    Args:
        function: A function of a module.
        arguments: Its arguments. They and the result must be picklable.

    Raises:
        ZeusError: The process could not be started, or died.
        Exception: The function raised it.
    """
    path = [str(folder) for folder in sys.path]
    program = f"import sys; sys.path[:] = {path!r}; import {__name__} as child_process; child_process.serve_one_call()"
    call = pickle.dumps((function, arguments))
    try:
        finished = subprocess.run([sys.executable, "-c", program], input=call, stdout=subprocess.PIPE)
    except OSError as error:
        raise ZeusError(f"{function.__name__} needs a separate process, which cannot be started: {error}") from error
    try:
        has_returned, result = pickle.loads(finished.stdout.split(_REPLY)[1])
    except Exception as error:  # pickle raises errors of many kinds for half a reply
        raise ZeusError(f"{function.__name__} ran in a separate process, which {_end_of(finished)}") from error
    if not has_returned:
        raise result
    value: _Result = result
    return value


def _end_of(finished: subprocess.CompletedProcess[bytes]) -> str:
    code = finished.returncode
    if code < 0:
        return f"was ended by signal {-code}, perhaps because memory ran out"
    return f"ended with code {code} and no result"


def serve_one_call() -> None:
    """Call the function this process receives and reply with the result. The main program of the separate process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the training process
    replies, sys.stdout = sys.stdout.buffer, sys.stderr  # printed text must not mix with the reply
    try:
        function, arguments = pickle.load(sys.stdin.buffer)
        reply = pickle.dumps((True, function(*arguments)))
    except Exception as error:
        reply = _pickled_error(error)
    replies.write(_REPLY + reply)
    replies.flush()


def _pickled_error(error: Exception) -> bytes:
    try:
        reply = pickle.dumps((False, error))
        pickle.loads(reply)
        return reply
    except Exception:  # the exception, or an object in it, cannot be pickled
        return pickle.dumps((False, ZeusError(repr(error))))
