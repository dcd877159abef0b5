"""Something that every rank makes, or none has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from zeus_core.errors import WorldError
from zeus_core.world import World

__all__ = ["on_all_ranks"]

_Made = TypeVar("_Made")


def on_all_ranks(
    world: World, make: Callable[[], _Made], unmake: Callable[[_Made], object] = lambda made: None
) -> _Made:
    """What `make` gives on this rank, once it has given something on each. Every rank must call this.

    Args:
        world: The ranks.
        make: Makes it.
        unmake: Is called with it where another rank has failed.

    Raises:
        WorldError: A rank has failed, whose reason the message tells, or did not answer in time.
    """
    fault: str | None = None
    made: _Made | None = None
    try:
        made = make()
    except Exception as error:
        fault = str(error) or repr(error)
    try:
        _check(world.gather(fault))
    except WorldError:
        if fault is None:
            unmake(cast(_Made, made))
        raise
    return cast(_Made, made)


def _check(faults: Sequence[str | None]) -> None:
    by_reason: dict[str, list[int]] = {}
    for rank, fault in enumerate(faults):
        if fault is not None:
            by_reason.setdefault(fault, []).append(rank)
    if by_reason:
        raise WorldError("; ".join(f"{_named(ranks, len(faults))}{fault}" for fault, ranks in by_reason.items()))


def _named(ranks: Sequence[int], size: int) -> str:
    if len(ranks) == size:
        return ""
    return f"rank {', '.join(map(str, ranks))}: "
