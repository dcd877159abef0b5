"""The samples of a training step, as batches of any size."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch

from zeus_core.errors import UsageError
from zeus_core.pytorch.work_facts import tensors_in

# Among so many samples the largest are looked for: the first pass of a probe has them, as some batch of training may.
_POOL = 256


class StepSamples(Protocol):
    """The samples of one step, as batches of any size."""

    def batches(self, size: int) -> Sequence[Any]:
        """Return the samples as batches."""

    def largest(self, size: int) -> Any:
        """Return a batch of the samples that need the most memory."""


class LoaderSamples:
    """The samples of a step from a dataloader, the same for every probe.

    Args:
        loader: The dataloader; its dataset has a length, and samples by index.
        count: The samples of a step.
        rank: This rank, which probes with samples of its own.
    """

    def __init__(self, loader: Any, count: int, rank: int) -> None:
        length = len(loader.dataset)
        pool = random.Random(rank).sample(range(length), min(max(count, _POOL), length))
        samples = [loader.dataset[index] for index in pool]
        self._collate: Callable[[list[Any]], Any] = loader.collate_fn
        self._samples = [samples[place % len(samples)] for place in range(count)]
        self._largest = sorted(samples, key=_elements, reverse=True)

    def largest(self, size: int) -> Any:
        """Return a batch of the samples with the most elements."""
        return self._collate([self._largest[place % len(self._largest)] for place in range(size)])

    def batches(self, size: int) -> list[Any]:
        """Return the samples as batches."""
        return [self._collate(self._samples[begin : begin + size]) for begin in range(0, len(self._samples), size)]


class BatchSamples:
    """The samples of a step that are in one batch.

    Args:
        batch: The batch.
        count: Its samples.
    """

    def __init__(self, batch: Any, count: int) -> None:
        self._batch, self._count = batch, count

    def batches(self, size: int) -> list[Any]:
        """Return the batch in parts."""
        count = self._count
        return [part_of(self._batch, begin, min(begin + size, count), count) for begin in range(0, count, size)]

    def largest(self, size: int) -> Any:
        """Return the first part."""
        return part_of(self._batch, 0, size, self._count)


def samples_in(batch: Any) -> int:
    """Return the length of the first tensor in a batch.

    Raises:
        UsageError: There is none, or no sample in it.
    """
    first = next((tensor for tensor in tensors_in(batch) if tensor.ndim), None)
    if first is None or not len(first):
        raise UsageError("the batch has no tensor with samples, which is cut along its first dimension")
    return len(first)


def part_of(value: Any, begin: int, end: int, samples: int) -> Any:
    """Return some samples of a batch: of its tensors, and of its lists of as many elements."""
    if isinstance(value, torch.Tensor):
        return value[begin:end] if value.ndim and len(value) == samples else value
    if isinstance(value, Mapping):
        return {name: part_of(member, begin, end, samples) for name, member in value.items()}
    if isinstance(value, list | tuple):
        if len(value) == samples and not any(True for _ in tensors_in(value)):
            return value[begin:end]
        members = [part_of(member, begin, end, samples) for member in value]
        if hasattr(value, "_fields"):
            return type(value)(*members)
        return type(value)(members)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value)]
        return dataclasses.replace(
            value, **{name: part_of(getattr(value, name), begin, end, samples) for name in fields}
        )
    return value


def _elements(sample: Any) -> int:
    """Return how much is in a sample: the elements of its tensors, or numbers of its lists."""
    if isinstance(sample, torch.Tensor):
        return sample.numel()
    if hasattr(sample, "shape"):
        return math.prod(sample.shape)
    if isinstance(sample, dict):
        return sum(_elements(value) for value in sample.values())
    if isinstance(sample, list | tuple):
        return sum(_elements(value) if isinstance(value, Iterable) else 1 for value in sample)
    return 1
