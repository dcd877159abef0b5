"""Containment of faults: no error leaves a method that training calls."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from threading import get_ident
from time import perf_counter
from typing import Any, ParamSpec, TypeVar, overload

from zeus_core.errors import ZeusError
from zeus_core.process.deadline import HOOK_SECONDS, seconds_left

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_LOGGED = "_has_logged_a_fault"


class Hooked:
    """Base of classes that account for the time of their hooks."""

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
def contained(method: Callable[_Parameters, _Result], /) -> Callable[_Parameters, _Result | None]: ...


@overload
def contained(
    *, on_fault: Callable[[Any, Exception], object] | None = None, is_hook: bool = False
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result | None]]: ...


@overload
def contained(
    *,
    default: Callable[[], _Result],
    on_fault: Callable[[Any, Exception], object] | None = None,
    is_hook: bool = False,
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]: ...


def contained(
    method: Callable[..., Any] | None = None,
    /,
    *,
    default: Callable[[], Any] = lambda: None,
    on_fault: Callable[[Any, Exception], object] | None = None,
    is_hook: bool = False,
) -> Callable[..., Any]:
    """Decorate a method so that no error leaves it: a default value is returned instead.

    Only `Exception`s are contained; Ctrl-C and the like pass. All that the outermost such method waits for has one
    deadline: a driver that hangs holds training up for a second, and what it was asked for is lost.

    Args:
        method: The method, where the decorator is used without arguments.
        default: Makes the value that is returned after a fault; None if left out.
        on_fault: Called with the object and its error: the feature steps aside, and logs the fault. Must not raise.
            If left out, the first fault of the object is logged, and the feature continues.
        is_hook: Whether the time of the method is added to the `overhead_seconds` of its object, a `Hooked`. Such a
            method called within another one of that object returns the default value at once, as when a signal handler
            saves a checkpoint.
    """
    if method is None:
        return functools.partial(contained, default=default, on_fault=on_fault, is_hook=is_hook)

    @functools.wraps(method)
    def contained_method(self: Any, *args: Any, **kwargs: Any) -> Any:
        thread, begin = get_ident(), 0.0
        if is_hook:
            if self._thread_in_hook == thread:
                return default()
            self._thread_in_hook = thread
            begin = perf_counter()
        is_outermost = thread not in seconds_left
        try:
            seconds_left.setdefault(thread, HOOK_SECONDS)
            return method(self, *args, **kwargs)
        except Exception as error:
            if on_fault is not None:
                on_fault(self, error)
            else:
                log_fault(self, f"{type(self).__name__}.{method.__name__} failed", error)
            return default()
        finally:
            if is_outermost:
                seconds_left.pop(thread, None)
            if is_hook:
                self.overhead_seconds += perf_counter() - begin
                self._thread_in_hook = None

    return contained_method


def log_fault(reporter: Any, consequence: str, error: Exception) -> None:
    """Log a fault of an object, if it is the first one: the others follow from it.

    Args:
        reporter: The object. Its module is the name of the logger.
        consequence: The function that failed, or is off from now on.
        error: The fault. An error of this package holds its remedy; any other is logged with its traceback.
    """
    if getattr(reporter, _LOGGED, False):
        return
    setattr(reporter, _LOGGED, True)
    logging.getLogger(type(reporter).__module__).error(
        "%s; training continues: %s", consequence, error, exc_info=not isinstance(error, ZeusError)
    )
