"""Counts the samples and tokens of a batch."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from zeus_core._validate import checked_whole_number

__all__ = ["counter", "samples_in"]


def counter(argument: str, count: int | Callable[[Any], int] | None) -> Callable[[Any], int] | None:
    """Return a function that counts something in a batch, from a function or a number that all batches share.

    Raises:
        UsageError: `count` is neither; the message names the argument.
    """
    if count is None or callable(count):
        return count
    return functools.partial(
        _constant, checked_whole_number(argument, count, 0, "a whole number or a function of a batch")
    )


def _constant(count: int, batch: Any) -> int:
    return count


def samples_in(batch: Any) -> int:
    """Return the length of the first tensor in a batch, as Lightning itself does; 0 without one."""
    return next(_lengths(batch), 0)


def _lengths(part: Any) -> Iterator[int]:
    if isinstance(part, torch.Tensor):
        yield part.shape[0] if part.ndim > 0 else 1
    elif isinstance(part, Mapping):
        yield from _lengths(list(part.values()))
    elif isinstance(part, list | tuple):
        for element in part:
            yield from _lengths(element)
    elif dataclasses.is_dataclass(part):
        yield from _lengths([getattr(part, field.name) for field in dataclasses.fields(part)])
