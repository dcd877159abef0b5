"""The work of a training step: the facts of its models, which tell it from other work, and the tensors of a batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch


def facts_of_models(models: Iterable[torch.nn.Module]) -> dict[str, int | str]:
    """Return the kind and the size of some models, by name, for `use_work` of an optimizer.

    Parameters that other ranks hold count too where the model knows them, as under DeepSpeed.
    """
    own = [getattr(model, "module", model) for model in models]  # the one inside a wrapper, such as DDP's
    parameters = [parameter for model in own for parameter in model.parameters()]
    sizes = [int(getattr(parameter, "ds_numel", parameter.numel())) for parameter in parameters]
    trained = [size for size, parameter in zip(sizes, parameters, strict=True) if parameter.requires_grad]
    return {
        "model": ", ".join(type(model).__name__ for model in own),
        "parameters": sum(sizes),
        "trained_parameters": sum(trained),
        "dtype": ", ".join(sorted({str(parameter.dtype).removeprefix("torch.") for parameter in parameters})),
    }


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
