"""Hooks: contained methods that a training loop calls, whose time is accounted for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import get_ident
from time import perf_counter
from typing import Any, ParamSpec, TypeVar, overload

from zeus_core._process.deadline import HOOK_SECONDS, seconds_left
from zeus_core.adapters._contained import log_failure

__all__ = ["Hooked", "hook"]

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class Hooked:
    """Base of classes that have hooks."""

    overhead_seconds: float = 0.0
    """Time this process has spent in hooks, waits for the accelerator and for other ranks included."""

    _thread_in_hook: int | None = None

    def _outside_of_hooks(self, action: Callable[[], object]) -> None:
        """Do something, within a hook, that may call hooks and is no overhead: a pause with a checkpoint before it."""
        self._thread_in_hook = None
        begin = perf_counter()
        action()
        self.overhead_seconds -= perf_counter() - begin


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

    @functools.wraps(method)
    def hooked_method(self: Hooked, *args: Any, **kwargs: Any) -> Any:
        thread = get_ident()
        if self._thread_in_hook == thread:
            return default()
        self._thread_in_hook = thread
        begin = perf_counter()
        is_outermost = thread not in seconds_left
        try:  # as `contained` does, which would be one more call in each hook of each step
            seconds_left.setdefault(thread, HOOK_SECONDS)
            return method(self, *args, **kwargs)
        except Exception as error:
            log_failure(self, method, error)
            return default()
        finally:
            if is_outermost:
                seconds_left.pop(thread, None)
            self.overhead_seconds += perf_counter() - begin
            self._thread_in_hook = None

    return hooked_method
