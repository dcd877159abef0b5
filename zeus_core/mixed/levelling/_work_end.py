"""The end of the own work of a step, in a loop with `DistributedDataParallel` or FSDP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from zeus_core.errors import UsageError

if TYPE_CHECKING:
    import torch


class Levelling(Protocol):
    """Receives the bounds of the own work of a step: a `LevellingOptimizer`."""

    def on_work_begin(self) -> None:
        """Report that the own work of the step goes on."""

    def on_work_end(self) -> None:
        """Report that the own work of the step, or a part, is over."""


class WorkReports:
    """Reports to a `LevellingOptimizer`, by hooks of a model, until `remove` is called."""

    def __init__(self, levelling: Levelling) -> None:
        self._levelling = levelling
        self._handles: list[Any] = []

    def remove(self) -> None:
        """Report no more."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


class _GradientReports(WorkReports):
    """Reports the last gradient of each step to a `LevellingOptimizer`.

    As many gradients come in a step as came in the one before; where that changes, as with layers that are left out at
    random, nothing is reported.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, levelling: Levelling) -> None:
        super().__init__(levelling)
        self._gradients = 0
        self._expected = 0
        parameters: list[Any] = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._handles = [
            *(parameter.register_post_accumulate_grad_hook(self._note_gradient) for parameter in parameters),
            # After the step, not before it: the passes may be within it, as a closure.
            optimizer.register_step_post_hook(self._note_step),
        ]

    def _note_gradient(self, parameter: torch.Tensor) -> None:
        self._gradients += 1
        if self._gradients == self._expected:
            self._levelling.on_work_end()

    def _note_step(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        self._expected, self._gradients = self._gradients, 0


class _ShardedReports(WorkReports):
    """Reports the forward pass of a model without its waits for the parameters that other ranks hold.

    Each part of the model that is sharded is gathered before its forward pass, and the last rank to come keeps the
    others waiting. The rest is the rank's own work. The backward pass is not timed: which rank is slower, and by
    how much, is taken from the forward pass alone.
    """

    def __init__(self, model: torch.nn.Module, levelling: Levelling) -> None:
        super().__init__(levelling)
        self._is_in_pass = False
        self._handles = [
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


def report_work_end(model: torch.nn.Module, optimizer: torch.optim.Optimizer, levelling: Levelling) -> WorkReports:
    """Report to a `LevellingOptimizer` when the own work of a step is over: before other ranks are waited for.

    For `torch.nn.parallel.DistributedDataParallel`, whose communication hook stays free, the work ends at the last
    gradient; those of a step that is accumulated from several batches count together. In a model that FSDP shards, the
    forward pass is timed without its waits for parameters, and stands for the whole step.

    Args:
        model: The model, whose gradients are averaged in the backward pass.
        optimizer: The optimizer, whose step ends a training step.
        levelling: The `LevellingOptimizer`.

    Returns:
        An object whose `remove()` ends it.

    Raises:
        UsageError: An argument is something else; or it is a model of DeepSpeed, or is tensor-parallel: its ranks wait
            for each other where this does not see it.
    """
    _check_waits(model)
    return _ShardedReports(model, levelling) if _is_sharded(model) else _GradientReports(model, optimizer, levelling)


def report_prepared(models: Sequence[torch.nn.Module], optimizers: Sequence[Any], levelling: Levelling) -> WorkReports:
    """Report the end of the own work of a step in all these models together; see `report_work_end`.

    The step of the first optimizer ends a training step. A framework's wrapper holds it as its attribute `optimizer`.
    """
    if len(models) == 1:
        (model,) = models
    else:
        from torch.nn import ModuleList

        model = ModuleList(models)
    first = optimizers[0]
    return report_work_end(model, getattr(first, "optimizer", first), levelling)


def _check_waits(model: torch.nn.Module) -> None:
    """Raise `UsageError` for a model whose ranks wait for each other where nothing sees it."""
    remedy = "call on_work_begin and on_work_end around the own work of a step yourself, or search one clock for all"
    if type(model).__module__.startswith("deepspeed") or any(hasattr(one, "ds_id") for one in model.parameters()):
        raise UsageError(f"the ranks of DeepSpeed wait for each other within the passes, which is not seen: {remedy}")
    for parameter in model.parameters():
        mesh = getattr(parameter, "device_mesh", None)
        if mesh is not None and ("tp" in (mesh.mesh_dim_names or ()) or not _is_sharded(model)):
            raise UsageError(f"tensor-parallel ranks wait for each other in each layer, which is not seen: {remedy}")


def _is_sharded(model: torch.nn.Module) -> bool:
    """Return whether FSDP shards a model, or parts of it."""
    return any(_is_fsdp2(module) or _is_fsdp1(module) for module in model.modules())


def _is_fsdp2(module: torch.nn.Module) -> bool:
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)  # its place differs by release of torch


def _is_fsdp1(module: torch.nn.Module) -> bool:
    return hasattr(module, "_fsdp_wrapped_module")
