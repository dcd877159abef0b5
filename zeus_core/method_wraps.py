"""Methods of one object, wrapped for a while."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

__all__ = ["MethodWraps"]


class MethodWraps:
    """Wraps methods on an instance; its class and all other instances stay as they are.

    Args:
        target: The object.
    """

    def __init__(self, target: Any) -> None:
        self._target = target
        self._is_on = True
        self._wraps: list[tuple[str, Callable[..., Any], Callable[..., Any] | None]] = []

    def wrap(self, name: str, around: Callable[..., Any]) -> None:
        """From now on a call of the method is one of `around`, with the method itself as its first argument."""
        method, earlier_wrap = getattr(self._target, name), vars(self._target).get(name)

        @functools.wraps(method)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return around(method, *args, **kwargs) if self._is_on else method(*args, **kwargs)

        setattr(self._target, name, wrapped)
        self._wraps.append((name, wrapped, earlier_wrap))

    def undo(self) -> None:
        """Leave the object as it was. A method that others have wrapped since stays, and does nothing of its own."""
        self._is_on = False
        for name, wrapped, earlier_wrap in reversed(self._wraps):
            if vars(self._target).get(name) is not wrapped:
                continue
            if earlier_wrap is None:
                delattr(self._target, name)
            else:
                setattr(self._target, name, earlier_wrap)
        self._wraps.clear()
