"""Parts of a batch: of a tensor, or of any collection that holds tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from zeus_core.errors import UsageError


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a batch, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for element in value:
            yield from tensors_in(element)
    elif dataclasses.is_dataclass(value):
        yield from tensors_in([getattr(value, field.name) for field in dataclasses.fields(value)])


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
