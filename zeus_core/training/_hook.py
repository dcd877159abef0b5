"""Hooks: contained methods that a training loop calls, whose time is accounted for."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

from zeus_core.adapters import contained

__all__ = ["Hooked", "hook"]

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class Hooked:
    """Base of classes that have hooks."""

    overhead_seconds: float = 0.0
    """Time this process has spent in hooks, waits for the accelerator and for other ranks included."""

    _thread_in_hook: int | None = None


@overload
def hook(method: Callable[_Parameters, _Result], /) -> Callable[_Parameters, _Result | None]: ...


@overload
def hook(
    *, default: Callable[[], _Result]
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]: ...


def hook(
    method: Callable[..., Any] | None = None, /, *, default: Callable[[], Any] = lambda: None
) -> Callable[..., Any]:
    """Decorate a method of a `Hooked`: it is contained (see `contained`), and its time is accounted for.

    A hook called within another one returns the default at once, as when a signal handler saves a checkpoint.

    Args:
        method: The method, where the decorator is used without arguments.
        default: Makes the value that is returned after a fault; None if left out.
    """
    if method is None:
        return functools.partial(hook, default=default)
    contained_method = contained(default=default)(method)

    @functools.wraps(method)
    def hooked_method(self: Hooked, *args: Any, **kwargs: Any) -> Any:
        thread = threading.get_ident()
        if self._thread_in_hook == thread:
            return default()
        self._thread_in_hook = thread
        begin = time.perf_counter()
        try:
            return contained_method(self, *args, **kwargs)
        finally:
            self.overhead_seconds += time.perf_counter() - begin
            self._thread_in_hook = None

    return hooked_method
