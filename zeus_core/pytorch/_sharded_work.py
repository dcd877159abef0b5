"""The own work of a rank in a model that FSDP shards, whose parameters are gathered before each part of a pass."""

from __future__ import annotations

from typing import Any

import torch

from zeus_core.optimizer.levelling import LevellingOptimizer

__all__ = ["ShardedWorkReports", "is_sharded"]


class ShardedWorkReports:
    """Reports the forward pass of a model without its waits for the parameters that other ranks hold.

    Each part of the model that is sharded is gathered before its forward pass, and the last rank to come keeps the
    others waiting. The rest is the rank's own work. The backward pass is not timed: which rank is slower, and by
    how much, is taken from the forward pass alone.
    """

    def __init__(self, model: torch.nn.Module, levelling: LevellingOptimizer) -> None:
        self._levelling = levelling
        self._is_in_pass = False
        self._handles: list[Any] = [
            model.register_forward_pre_hook(self._begin_work),  # after that of FSDP, which gathers the model
            model.register_forward_hook(self._end_pass, always_call=True),
        ]
        for module in model.modules():
            is_fsdp1 = _is_fsdp1(module)  # gathers a module within its forward pass, and FSDP2 in a hook before it
            gathered: Any = module._fsdp_wrapped_module if is_fsdp1 else module
            if module is not model and (is_fsdp1 or _is_fsdp2(module)):
                self._handles.append(module.register_forward_pre_hook(self._begin_wait, prepend=True))
            if is_fsdp1 or (module is not model and _is_fsdp2(module)):
                self._handles.append(gathered.register_forward_pre_hook(self._end_wait))

    def remove(self) -> None:
        """Report no more."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _begin_work(self, module: torch.nn.Module, args: object) -> None:
        self._is_in_pass = True
        self._levelling.on_work_begin()

    def _end_pass(self, module: torch.nn.Module, args: object, result: object) -> None:
        self._levelling.on_work_end()
        self._is_in_pass = False

    def _begin_wait(self, module: torch.nn.Module, args: object) -> None:
        if self._is_in_pass:  # not where activations are computed again
            self._levelling.on_work_end()

    def _end_wait(self, module: torch.nn.Module, args: object) -> None:
        if self._is_in_pass:
            self._levelling.on_work_begin()


def is_sharded(model: torch.nn.Module) -> bool:
    """Return whether FSDP shards a model, or parts of it."""
    return any(_is_fsdp2(module) or _is_fsdp1(module) for module in model.modules())


def _is_fsdp2(module: torch.nn.Module) -> bool:
    kind = getattr(torch.distributed.fsdp, "FSDPModule", None) if torch.distributed.is_available() else None
    return kind is not None and isinstance(module, kind)


def _is_fsdp1(module: torch.nn.Module) -> bool:
    return hasattr(module, "_fsdp_wrapped_module")
