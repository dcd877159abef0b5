"""The samples of each rank where ranks have batches of different sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Protocol

import torch
from torch.utils.data import Sampler

from zeus_core.errors import UsageError
from zeus_core.mixed.allocation.trial_windows import split_in_proportion
from zeus_core.validate import checked_whole_number, shown

_SHUFFLED_AT_ONCE = 1024  # indices that are turned into Python numbers in one piece: 100 M in one take 4 GB


class IndexOrder(Protocol):
    """Any sampler of single samples."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[int]: ...


class EpochOrder:
    """The samples of an epoch in an order that follows from the seed and the epoch: the same on all ranks.

    Args:
        samples: How many there are.
        seed: A whole number.
        is_shuffled: Whether each epoch has an order of its own; by index if not.
    """

    def __init__(self, samples: int, seed: int, is_shuffled: bool) -> None:
        self._samples = samples
        self.seed: int = seed
        self.is_shuffled: bool = is_shuffled
        self.epoch: int = 0

    def set_epoch(self, epoch: int) -> None:
        """Use the order of an epoch from the next iteration on."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self._samples

    def __iter__(self) -> Iterator[int]:
        if not self.is_shuffled:
            yield from range(self._samples)
            return
        generator = torch.Generator()
        generator.manual_seed(self.seed + self.epoch)
        order = torch.randperm(self._samples, generator=generator)
        for begin in range(0, self._samples, _SHUFFLED_AT_ONCE):
            yield from order[begin : begin + _SHUFFLED_AT_ONCE].tolist()


class UnevenBatchSampler(Sampler[list[int]]):
    """Gives this rank its own number of samples of each global batch.

    The samples come in the order of another sampler. Global batch by global batch, rank 0 has the first `batches[0]`
    samples, rank 1 the following `batches[1]`, and so on. So all ranks together have each sample once, and have equally
    many batches. The last, incomplete global batch is split in proportion, or dropped.

    A rank without a sample in a global batch must still take part in its collectives: it gets the first sample of the
    global batch, which is to be weighted by 0 (see `sizes`).

    Args:
        order: A sampler of single samples, such as a `RandomSampler`, with the same order on all ranks.
        batches: The samples of each rank in a global batch, by rank.
        rank: This rank, from 0.
        drop_last: Drop the last global batch if it is incomplete.
    """

    def __init__(self, order: IndexOrder, batches: Sequence[int], rank: int, drop_last: bool = False) -> None:
        self.sampler: IndexOrder = order
        self._rank = rank
        self.drop_last: bool = drop_last
        self.batch_size: int = sum(batches)
        """Samples of a global batch, by the name that accelerate looks for."""
        self.skipped_samples: int = 0
        """Samples at the beginning of the epoch that were trained on before a resume."""
        self.first_batch: int = 0
        """The global batch that iterations begin with; all count from the beginning of the epoch."""
        self.dropped_batches: int = 0
        """Global batches that an iteration begins with and that are not trained on: accelerate resumes so."""
        self.drawn: int = 0
        """Global batches that the current iteration has begun to load, which may be more than were trained on."""
        self.lay_out: Callable[[], Sequence[tuple[int, tuple[int, ...]]]] = tuple
        """Called when an iteration begins; returns other splits, each with the first global batch it applies to."""
        self._splits = [(0, tuple(batches))]  # the first global batch it applies to, and the split
        self._samples = len(order)

    @property
    def batches(self) -> tuple[int, ...]:
        """The samples of each rank in a global batch, from the latest change on."""
        return self._splits[-1][1]

    @property
    def first_trained(self) -> int:
        """The first global batch of an iteration that is trained on."""
        return max(self.first_batch, self.dropped_batches)

    def use(self, batches: Sequence[int], first_batch: int = 0) -> None:
        """Split global batches otherwise, in this epoch from the given one on.

        Args:
            batches: The samples of each rank, as many in all as before.
            first_batch: The first global batch, counted from the beginning of the current iteration; one that no rank
                has begun to load (`drawn`), and the same on all ranks.

        Raises:
            UsageError: The number of ranks or of samples in all is another, or this rank is past `first_batch`.
        """
        splits = checked_batches(batches, ranks=len(self.batches), total=self.batch_size)
        if first_batch < self.drawn:
            raise UsageError(f"first_batch is {first_batch}, but {self.drawn} global batches are being loaded already")
        self._splits = [split for split in self._splits if split[0] < first_batch] + [(first_batch, splits)]

    def sizes(self, batch: int) -> tuple[int, ...]:
        """Return the samples of each rank in a global batch, counted from the beginning of the current iteration."""
        split = next(sizes for first, sizes in reversed(self._splits) if first <= batch or first == 0)
        rest = self._samples - self.skipped_samples - batch * self.batch_size
        return split if rest >= self.batch_size else split_in_proportion(max(0, rest), split)

    def set_epoch(self, epoch: int) -> None:
        """Use the order of an epoch from the next iteration on."""
        set_epoch = getattr(self.sampler, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)

    def __len__(self) -> int:
        samples = len(self.sampler) - self.skipped_samples
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        self._splits = [(0, self.batches), *self.lay_out()]
        self._samples = len(self.sampler)
        self.drawn = self.first_batch
        return self._iterate(islice(self.sampler, self.skipped_samples + self.drawn * self.batch_size, None))

    def _iterate(self, indices: Iterator[int]) -> Iterator[list[int]]:
        while samples := list(islice(indices, self.batch_size)):
            if len(samples) < self.batch_size and self.drop_last:
                return
            sizes = self.sizes(self.drawn)
            self.drawn += 1
            begin = sum(sizes[: self._rank])
            yield samples[begin : begin + sizes[self._rank]] or samples[:1]


def checked_batches(batches: Sequence[int], ranks: int | None = None, total: int | None = None) -> tuple[int, ...]:
    """Return the batch of each rank.

    Args:
        batches: Samples, by rank.
        ranks: How many ranks there are; any number if None.
        total: Samples of all ranks; any number if None.

    Raises:
        UsageError: One is not a whole number, none is above 0, or there are too many or too few.
    """
    sizes = [checked_whole_number(f"batches[{rank}]", size, 0) for rank, size in enumerate(batches)]
    if not any(sizes):
        raise UsageError(f"batches is {shown(batches)}; at least one rank must have samples, as in [24, 8]")
    if ranks is not None and len(sizes) != ranks:
        raise UsageError(f"batches is {shown(batches)}, which is for {len(sizes)} ranks; this job has {ranks}")
    if total is not None and sum(sizes) != total:
        raise UsageError(
            f"batches is {shown(batches)}, which are {sum(sizes)} samples; the global batch has {total} samples"
        )
    return tuple(sizes)
