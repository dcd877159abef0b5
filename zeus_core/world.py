"""The world port: the processes (ranks) of one job, and how they tell each other something."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["SoloWorld", "World"]


class World(Protocol):
    """The ranks of a job. Every rank must make the same calls in the same order."""

    @property
    def rank(self) -> int:
        """This process, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many processes there are."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, by rank; on every rank. `value` is made of JSON's types.

        Raises:
            WorldError: A rank did not answer in time. The ranks may disagree from then on, so a world that has raised
                this is of no more use.
        """
        ...


class SoloWorld:
    """A job of one process."""

    rank = 0
    size = 1

    def gather(self, value: Any) -> list[Any]:
        """The value itself."""
        return [value]
