"""Containment of faults: no error leaves a method that training calls."""

from __future__ import annotations

import functools
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import get_ident
from time import perf_counter
from typing import Any, ParamSpec, TypeVar, overload

from zeus_core.errors import ZeusError
from zeus_core.process.deadline import HOOK_SECONDS, hook_waits, seconds_left
from zeus_core.units import number_text

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_LOGGED = "_has_logged_a_fault"
_LITTLE = 0.05  # of the time in hooks: less is not shown to people


@dataclass(frozen=True)
class Overhead:
    """Time in hooks, in seconds.

    Attributes:
        of_hooks: By hook, the class of an event ("StepEnd") or a method ("log"). They add up to the whole.
        waits: The part of it that was spent waiting, by what was waited for: "device" (answers of drivers), "files",
            "ranks" and "accelerator". The rest was spent computing, or without a turn on a busy machine.
    """

    of_hooks: Mapping[str, float] = field(default_factory=dict)
    waits: Mapping[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """The whole."""
        return math.fsum(self.of_hooks.values())

    def __add__(self, later: Overhead) -> Overhead:
        """Add the time of another training."""
        return Overhead(
            *(dict(Counter(one) + Counter(other)) for one, other in zip(_parts(self), _parts(later), strict=True))
        )

    def __str__(self) -> str:
        """Name the largest parts: "0.61 s (log 0.4, StepEnd 0.21), of which it waited for files 0.2, device 0.1"."""
        hooks, waits = (
            ", ".join(f"{name} {number_text(part[name], 2)}" for name in sorted(part, key=lambda name: -part[name])[:3])
            for part in (
                {name: seconds for name, seconds in part.items() if seconds > _LITTLE * self.seconds}
                for part in _parts(self)
            )
        )
        return f"{number_text(self.seconds, 2)} s ({hooks})" + (f", of which it waited for {waits}" if waits else "")


def _parts(overhead: Overhead) -> tuple[Mapping[str, float], Mapping[str, float]]:
    return overhead.of_hooks, overhead.waits


class Hooked:
    """Base of classes that account for the time of their hooks."""

    _thread_in_hook: int | None = None
    _outside_seconds = 0.0  # time within the hook under way that is none of its own

    @property
    def overhead(self) -> Overhead:
        """Time this process has spent in hooks that have ended, waits for devices and other ranks included."""
        return Overhead(dict(vars(self).get("_of_hooks", {})), dict(vars(self).get("_waits", {})))

    @property
    def overhead_seconds(self) -> float:
        """The same in all."""
        return self.overhead.seconds

    def _outside_of_hooks(self, action: Callable[[], object]) -> None:
        """Do something, within a hook, that may call hooks and is no overhead: a pause with a checkpoint before it."""
        thread, waits, begin = self._thread_in_hook, hook_waits.pop(get_ident(), None), perf_counter()
        self._thread_in_hook = None
        action()
        self._thread_in_hook, self._outside_seconds = thread, perf_counter() - begin
        if waits is not None:
            hook_waits[get_ident()] = waits


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
        is_hook: Whether the time of the method is added to the `overhead` of its object, a `Hooked`. Such a method
            called within another one of that object returns the default value at once, as when a signal handler
            saves a checkpoint.
    """
    if method is None:
        return functools.partial(contained, default=default, on_fault=on_fault, is_hook=is_hook)

    receives = method.__name__ == "receive"  # an event, by which the hook is named

    @functools.wraps(method)
    def contained_method(self: Any, *args: Any, **kwargs: Any) -> Any:
        thread, begin = get_ident(), 0.0
        if is_hook:
            if self._thread_in_hook == thread:
                return default()
            self._thread_in_hook = thread
            hook_waits[thread] = {}
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
                name = type(args[0]).__name__ if receives else method.__name__
                seconds = perf_counter() - begin - self._outside_seconds
                of_hooks = vars(self).setdefault("_of_hooks", {})
                of_hooks[name] = of_hooks.get(name, 0.0) + seconds
                self._thread_in_hook, self._outside_seconds = None, 0.0
                waits = hook_waits.pop(thread, None)
                if waits:
                    so_far = vars(self).setdefault("_waits", {})
                    so_far |= {cause: so_far.get(cause, 0.0) + seconds for cause, seconds in waits.items()}

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
