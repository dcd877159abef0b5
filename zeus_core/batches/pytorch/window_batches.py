"""Batches of another size that leave every optimizer step as it was, for loaders whose loops average over batches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized
from itertools import islice
from typing import Any, NamedTuple, cast

from torch.utils.data import BatchSampler


class TailBatch(NamedTuple):
    """A batch of the last, incomplete step of an epoch."""

    samples: int
    weight: float
    """The weight of its mean, where that of a whole batch is 1."""


class WindowBatches(BatchSampler):
    """Cuts the samples of each step, which were `accumulation` batches of a sampler, into batches of another size.

    A loop divides the mean of each batch by the number of batches in a step, also in the last step of an epoch, which
    may have fewer, and a last batch with fewer samples. There the samples keep the weights that they had: whole batches
    are joined up to the new size, and an incomplete one stays a batch.

    Args:
        batches: The batch sampler of the loader; its sampler is used on.
        accumulation: Its batches in a step.
        size: The new size, which divides the samples of a step.
    """

    def __init__(self, batches: BatchSampler, accumulation: int, size: int) -> None:
        super().__init__(batches.sampler, size, batches.drop_last)
        self._original = batches.batch_size
        self._window = self._original * accumulation
        self._accumulation = accumulation

    @property
    def accumulation(self) -> int:
        """The batches of a step."""
        return self._window // self.batch_size

    @property
    def whole_batches(self) -> int:
        """The batches of an epoch before its last, incomplete step."""
        return self._samples // self._window * self.accumulation

    @property
    def tail(self) -> list[TailBatch]:
        """The batches of the last step of an epoch, if it is incomplete."""
        whole, rest = divmod(self._samples % self._window, self._original)
        joined = whole * self._original
        sizes = [min(self.batch_size, joined - begin) for begin in range(0, joined, self.batch_size)]
        tail = [TailBatch(size, size / self.batch_size) for size in sizes]
        if rest and not self.drop_last:
            tail.append(TailBatch(rest, self.accumulation / self._accumulation))
        return tail

    def weight_of(self, place: int) -> float:
        """Return what the mean of a batch counts, by its place in the epoch."""
        place -= self.whole_batches
        return self.tail[place].weight if 0 <= place < len(self.tail) else 1.0

    def samples_of(self, place: int) -> int:
        """Return the samples in a batch, by its place in the epoch."""
        place -= self.whole_batches
        return self.tail[place].samples if 0 <= place < len(self.tail) else self.batch_size

    def __len__(self) -> int:
        return self.whole_batches + len(self.tail)

    def __iter__(self) -> Iterator[list[Any]]:
        indices = iter(self.sampler)
        for size in [self.batch_size] * self.whole_batches:
            yield list(islice(indices, size))
        tail = self.tail
        reads_to_end = bool(self._samples % self._original) and not self.drop_last  # where some samplers draw
        for number, batch in enumerate(tail, 1):
            last = list(islice(indices, batch.samples))
            if reads_to_end and number == len(tail):  # as the original one does before it yields an incomplete batch
                next(indices, None)
            yield last
        next(indices, None)

    @property
    def _samples(self) -> int:
        return len(cast(Sized, self.sampler))


class JoinedBatches:
    """Joins batches of a rank, so that each rank keeps its samples, in their steps.

    Args:
        batches: The batch sampler of the rank; other attributes are its own.
        count: How many are joined; it divides those of a step.
    """

    def __init__(self, batches: Any, count: int) -> None:
        self._batches = batches
        self._count = count
        self.batch_size: int = batches.batch_size * count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    def __len__(self) -> int:
        return math.ceil(len(self._batches) / self._count)

    def __iter__(self) -> Iterator[list[Any]]:
        batches = iter(self._batches)
        while joined := list(islice(batches, self._count)):
            yield [index for batch in joined for index in batch]
