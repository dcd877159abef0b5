"""The world port: the processes (ranks) of one job, and how values get from one to the others."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, Protocol

from zeus_core.validate import checked_object

_logger = logging.getLogger(__name__)


LEAST_NUMBER: int = -(2**63)
"""The least number that ranks send each other; the number of a rank that has fewer than others."""


class WholeNumbers(NamedTuple):
    """Numbers of 64 bits of one rank, or of all ranks: sums of them are exact in every order and grouping of ranks.

    Attributes:
        sums: Those that are added up over the ranks. The sums must be numbers of 64 bits, too.
        largest: Those of which the largest counts.
    """

    sums: Sequence[int] = ()
    largest: Sequence[int] = ()

    @classmethod
    def of_all(cls, ranks: Iterable[WholeNumbers]) -> WholeNumbers:
        """Combine those of some ranks. Where a rank has fewer than another, it adds nothing to the rest."""
        parts = list(ranks)
        return cls(
            [sum(values) for values in zip_longest(*(part.sums for part in parts), fillvalue=0)],
            [max(values) for values in zip_longest(*(part.largest for part in parts), fillvalue=LEAST_NUMBER)],
        )


class World(Protocol):
    """The ranks of a job. Every rank must make the same calls in the same order.

    A world may offer two methods more, whose cost on a rank does not depend on the number of ranks; those of
    `ReducingWorld`. Without them, every rank gathers.
    """

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


class ReducingWorld(World, Protocol):
    """A world in which ranks do not need to gather all that they decide together."""

    def reduce(self, own: WholeNumbers) -> WholeNumbers:
        """Combine the whole numbers of all ranks, as `WholeNumbers.of_all` does, on every rank.

        Raises:
            WorldError: As in `gather`; or a rank makes another call than `reduce`.
        """
        ...

    def gather_to_first(self, value: Any) -> list[Any] | None:
        """Return the values of all ranks, by rank, on rank 0; None on the others.

        Raises:
            WorldError: As in `gather`; on another rank than 0, the next call raises it at the latest.
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
