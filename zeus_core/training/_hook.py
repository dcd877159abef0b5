"""Hooks: methods that a training loop calls, which must neither fail nor cost it anything unnoticed."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

from zeus_core.adapters import contained

__all__ = ["Hooked", "hook"]

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class Hooked:
    """Base of classes that have hooks."""

    overhead_seconds = 0.0
    """Time this process has spent in hooks, waits for the accelerator and for other ranks included."""

    _thread_in_hook: int | None = None


def hook(method: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result | None]:
    """Decorate a method of a `Hooked`: no error leaves it, and the time it takes is accounted for.

    A hook that is called amid another one, as by a signal handler that saves a checkpoint, does nothing.
    """
    contained_method = contained(method)

    @functools.wraps(method)
    def hooked_method(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result | None:
        self = cast(Hooked, args[0])
        thread = threading.get_ident()
        if self._thread_in_hook == thread:
            return None
        self._thread_in_hook = thread
        begin = time.perf_counter()
        try:
            return contained_method(*args, **kwargs)
        finally:
            self.overhead_seconds += time.perf_counter() - begin
            self._thread_in_hook = None

    return hooked_method
