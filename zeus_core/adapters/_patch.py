"""Patches methods of an object, undoably."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class Patches:
    """Wraps methods of one object, until `undo`.

    The wraps are set as attributes of that object alone: for an instance, its class and all other instances stay as
    they are; for a class, they apply to all its instances, and to those of subclasses that inherit the method.

    Args:
        target: The object: an instance or a class.
    """

    def __init__(self, target: Any) -> None:
        self._target = target
        self._is_on = True
        self._wraps: list[tuple[str, Callable[..., Any], Callable[..., Any] | None]] = []

    def wrap(self, name: str, around: Callable[..., Any]) -> None:
        """Replace calls of the method by calls of `around`, with the original method as the first argument."""
        method, earlier_wrap = getattr(self._target, name), vars(self._target).get(name)

        @functools.wraps(method)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return around(method, *args, **kwargs) if self._is_on else method(*args, **kwargs)

        setattr(self._target, name, wrapped)
        self._wraps.append((name, wrapped, earlier_wrap))

    def undo(self) -> None:
        """Leave the object as it was. A wrap that was wrapped again since stays, but only calls the original method."""
        self._is_on = False
        for name, wrapped, earlier_wrap in reversed(self._wraps):
            if vars(self._target).get(name) is not wrapped:
                continue
            if earlier_wrap is None:
                delattr(self._target, name)
            else:
                setattr(self._target, name, earlier_wrap)
        self._wraps.clear()
