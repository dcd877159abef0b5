"""The world port: the processes (ranks) of one job, and how values get from one to the others."""

from __future__ import annotations

import logging
import sys
from typing import Any, Protocol

from zeus_core.validate import checked_object

_logger = logging.getLogger(__name__)


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


def warn_if_others_train() -> None:
    """Warn if torch has formed a job of several processes, of which only this one is known."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    size = distributed.get_world_size()
    if size > 1:
        _logger.warning(
            "this process is one of %d processes, and counts itself alone: pass world=zeus_core.pytorch.torch_world() "
            "on each of them to get one total that counts every GPU once",
            size,
        )
