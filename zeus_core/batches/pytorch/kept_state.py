"""Leaves a training as it was before some of its passes were probed."""

from __future__ import annotations

import copy
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from zeus_core.ports.accelerator import gpu_modules

_PLAIN = (bool, int, float, str, type(None))
_CONTAINERS = (dict, list, set, deque)
# Longer ones are data, and deeper ones belong to something else: the counts and the metrics of trainers are short.
_MAX_LENGTH = 1000
_MAX_DEPTH = 3


def random_state() -> Callable[[], None]:
    """Return a function that restores the state of every source of random numbers."""
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    gpu_states = [(module, module.get_rng_state_all()) for module in gpu_modules().values()]
    mps_state = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    numpy: Any = sys.modules.get("numpy")
    numpy_state = None if numpy is None else numpy.random.get_state()

    def restore() -> None:
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
        for module, states in gpu_states:
            module.set_rng_state_all(states)
        if mps_state is not None:
            torch.mps.set_rng_state(mps_state)
        if numpy_state is not None:
            numpy.random.set_state(numpy_state)

    return restore


@contextmanager
def kept_state(model: torch.nn.Module, *others: object) -> Iterator[None]:
    """Restore what passes change, at the end of a block: all but parameters, which no pass changes.

    These are the state of random numbers; the gradients, buffers and modes of the modules in a model; and the numbers
    and short containers that are attributes of these modules and of other objects, such as the metrics of a trainer.

    Args:
        model: The model.
        others: The other objects.
    """
    modules = list(model.modules())
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    modes = [(module, module.training) for module in modules]
    plain = [_plain_state(one) for one in (*modules, *others)]
    tensors = [_tensors_of(module) for module in modules]
    restore_random_state = random_state()
    try:
        yield
    finally:
        restore_random_state()
        for restore in plain:
            restore()
        for module, was_training in modes:
            module.training = was_training
        with torch.no_grad():
            for buffer, values in buffers:
                buffer.copy_(values)
            for module, name, tensor, values in (one for of_module in tensors for one in of_module):
                tensor.copy_(values)
                vars(module)[name] = tensor
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _tensors_of(module: torch.nn.Module) -> list[tuple[torch.nn.Module, str, torch.Tensor, torch.Tensor]]:
    """Return the tensors that are plain attributes of a module, as torchmetrics keeps its sums, each with a copy."""
    return [
        (module, name, value, value.detach().clone())
        for name, value in vars(module).items()
        if isinstance(value, torch.Tensor) and not value.requires_grad
    ]


def _plain_state(holder: object) -> Callable[[], None]:
    """Return a function that restores the numbers and containers among the attributes of an object."""
    attributes = vars(holder)
    # The parameters, buffers and hooks of a module have names with an underscore, and are no state of this kind.
    hidden = set(vars(torch.nn.Module())) if isinstance(holder, torch.nn.Module) else set()
    values = {name: value for name, value in attributes.items() if isinstance(value, _PLAIN) and name not in hidden}
    containers = [
        kept for name, value in attributes.items() if name not in hidden for kept in _containers_in(value, _MAX_DEPTH)
    ]

    def restore() -> None:
        for container, content in containers:
            _fill(container, content)
        attributes.update(values)

    return restore


def _containers_in(value: Any, depth: int) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, _CONTAINERS) and len(value) <= _MAX_LENGTH and depth:
        yield value, copy.copy(value)
        for child in value.values() if isinstance(value, dict) else value:
            yield from _containers_in(child, depth - 1)


def _fill(container: Any, content: Any) -> None:
    container.clear()
    if isinstance(container, list | deque):
        container.extend(content)
    else:
        container.update(content)
