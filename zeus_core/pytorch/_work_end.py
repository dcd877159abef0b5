"""The end of the own work of a step, in a loop with `DistributedDataParallel`: the last gradient of its backward."""

from __future__ import annotations

from typing import Any

import torch

from zeus_core._validate import checked_instance
from zeus_core.optimizer.levelling import LevellingOptimizer

__all__ = ["report_work_end"]


class WorkEndReports:
    """Reports the last gradient of each step to a `LevellingOptimizer`.

    As many gradients come in a step as came in the one before; where that changes, as with layers that are left out at
    random, nothing is reported.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, levelling: LevellingOptimizer) -> None:
        self._levelling = levelling
        self._gradients = 0
        self._expected = 0
        parameters: list[Any] = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._handles = [
            *(parameter.register_post_accumulate_grad_hook(self._note_gradient) for parameter in parameters),
            optimizer.register_step_pre_hook(self._note_step),
        ]

    def remove(self) -> None:
        """Report no more."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _note_gradient(self, parameter: torch.Tensor) -> None:
        self._gradients += 1
        if self._gradients == self._expected:
            self._levelling.on_work_end()

    def _note_step(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        self._expected, self._gradients = self._gradients, 0


def report_work_end(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, levelling: LevellingOptimizer
) -> WorkEndReports:
    """Report to a `LevellingOptimizer` when the own work of a step is over: before other ranks are waited for.

    For `torch.nn.parallel.DistributedDataParallel`, whose communication hook stays free. The gradients of a step
    that is accumulated from several batches count together. Not for FSDP and ZeRO, where ranks wait within the
    forward pass.

    Args:
        model: The model, whose gradients are averaged in the backward pass.
        optimizer: The optimizer, whose step ends a training step.
        levelling: The `LevellingOptimizer`.

    Returns:
        An object whose `remove()` ends it.

    Raises:
        UsageError: An argument is something else.
    """
    checked_instance("model", model, torch.nn.Module, "a torch.nn.Module")
    checked_instance("optimizer", optimizer, torch.optim.Optimizer, "a torch optimizer")
    checked_instance("levelling", levelling, LevellingOptimizer, "a LevellingOptimizer")
    return WorkEndReports(model, optimizer, levelling)
