"""The world port: the processes (ranks) of one job, and how they tell each other something."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from zeus_core.errors import WorldError

__all__ = ["SoloWorld", "World", "on_all_ranks"]

_Made = TypeVar("_Made")


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


def on_all_ranks(
    world: World, make: Callable[[], _Made], unmake: Callable[[_Made], object] = lambda made: None
) -> _Made:
    """What `make` gives on this rank, once it has given something on each. Every rank must call this.

    Args:
        world: The ranks.
        make: Makes it.
        unmake: Is called with it where another rank has failed.

    Raises:
        Exception: What has failed on this rank.
        WorldError: Another one has failed, whose reason the message tells, or did not answer in time.
    """
    try:
        made = make()
    except Exception as error:
        with contextlib.suppress(WorldError):  # what has failed here says more
            world.gather(str(error) or repr(error))
        raise
    try:
        _check_faults(world.gather(None))
    except WorldError:
        unmake(made)
        raise
    return made


def _check_faults(faults: Sequence[str | None]) -> None:
    by_reason: dict[str, list[str]] = {}
    for rank, fault in enumerate(faults):
        if fault is not None:
            by_reason.setdefault(fault, []).append(str(rank))
    if by_reason:
        raise WorldError("; ".join(f"rank {', '.join(ranks)}: {fault}" for fault, ranks in by_reason.items()))
