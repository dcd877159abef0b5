"""Containment of faults: no error leaves a method that training calls."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from threading import get_ident
from typing import Any, ParamSpec, TypeVar, overload

from zeus_core._process.deadline import HOOK_SECONDS, seconds_left
from zeus_core.errors import ZeusError

__all__ = ["contained", "log_failure", "log_fault"]

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_LOGGED = "_has_logged_a_fault"


@overload
def contained(method: Callable[_Parameters, _Result], /) -> Callable[_Parameters, _Result | None]: ...


@overload
def contained(
    *, on_fault: Callable[[Any, Exception], object]
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result | None]]: ...


@overload
def contained(
    *, default: Callable[[], _Result], on_fault: Callable[[Any, Exception], object] | None = None
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]: ...


def contained(
    method: Callable[..., Any] | None = None,
    /,
    *,
    default: Callable[[], Any] = lambda: None,
    on_fault: Callable[[Any, Exception], object] | None = None,
) -> Callable[..., Any]:
    """Decorate a method so that no error leaves it: a default value is returned instead.

    Only `Exception`s are contained; Ctrl-C and the like pass. All that the outermost such method waits for has one
    deadline: a driver that hangs holds training up for a second, and what it was asked for is lost.

    Args:
        method: The method, where the decorator is used without arguments.
        default: Makes the value that is returned after a fault; None if left out.
        on_fault: Called with the object and its error: the feature steps aside, and logs the fault. Must not raise.
            If left out, the first fault of the object is logged, and the feature continues.
    """
    if method is None:
        return functools.partial(contained, default=default, on_fault=on_fault)

    @functools.wraps(method)
    def contained_method(*args: Any, **kwargs: Any) -> Any:
        thread = get_ident()
        is_outermost = thread not in seconds_left
        try:
            seconds_left.setdefault(thread, HOOK_SECONDS)
            return method(*args, **kwargs)
        except Exception as error:
            if on_fault is not None:
                on_fault(args[0], error)
            else:
                log_failure(args[0], method, error)
            return default()
        finally:
            if is_outermost:
                seconds_left.pop(thread, None)

    return contained_method


def log_failure(reporter: Any, method: Callable[..., Any], error: Exception) -> None:
    """Log that a method of an object failed; see `log_fault`."""
    log_fault(reporter, f"{type(reporter).__name__}.{method.__name__} failed", error)


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
