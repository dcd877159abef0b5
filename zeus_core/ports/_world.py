"""The world port: the processes (ranks) of one job, and how values get from one to the others."""

from __future__ import annotations

from typing import Any, Protocol

from zeus_core._validate import checked_object

__all__ = ["SoloWorld", "World", "checked_world"]


class World(Protocol):
    """The ranks of a job. Every rank must make the same calls in the same order."""

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""
        ...

    @property
    def size(self) -> int:
        """The number of processes."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank, on every rank.

        Args:
            value: The value of this rank, in JSON types.

        Raises:
            WorldError: A rank did not answer in time. The ranks may disagree from then on, so every later call raises
                this too, at once.
        """
        ...


class SoloWorld:
    """A job of one process."""

    rank = 0
    size = 1

    def gather(self, value: Any) -> list[Any]:
        """Return the one value."""
        return [value]


def checked_world(world: World | None) -> World:
    """Return the world of an argument; the world of this process alone if it is None.

    Raises:
        UsageError: It is something else, such as the class of a world.
    """
    if world is None:
        return SoloWorld()
    return checked_object("world", world, "gather", "a World object, such as zeus_core.pytorch.torch_world()")
