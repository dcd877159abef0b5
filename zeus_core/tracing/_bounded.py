"""Containers of bounded size for what happens in a training of any length. Pure."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


class Ring(Generic[_Item]):
    """The last items of a row, which one thread adds to and another one may copy.

    Args:
        size: How many are kept.

    Attributes:
        dropped: How many were dropped.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._items: deque[_Item] = deque(maxlen=size)
        self.dropped: int = 0

    def add(self, item: _Item) -> None:
        """Add an item, and drop the oldest one if there are too many."""
        self.dropped += len(self._items) == self._size
        self._items.append(item)

    def items(self) -> list[_Item]:
        """Return the items, in order."""
        while True:
            try:
                return list(self._items)
            except RuntimeError:  # the other thread has added one meanwhile
                continue


class Thinned:
    """Values over time, at a distance that grows with the time they cover.

    Args:
        size: How many are kept at most; then every other one is dropped.
        period_seconds: The distance to begin with.
    """

    def __init__(self, size: int, period_seconds: float) -> None:
        self._size = size
        self._period_seconds = period_seconds
        self._points: list[tuple[float, float]] = []

    def add(self, at: float, value: float) -> None:
        """Add the value at a moment, unless one was added shortly before."""
        if self._points and at - self._points[-1][0] < self._period_seconds:
            return
        if len(self._points) >= self._size:
            self._points = self._points[::2]  # another list: a thread may be reading this one
            self._period_seconds *= 2
        self._points.append((at, value))

    def before(self, moment: float) -> list[tuple[float, float]]:
        """Return the moments and values before a moment, in order."""
        return [point for point in tuple(self._points) if point[0] < moment]
