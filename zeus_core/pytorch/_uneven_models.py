"""Which models can be trained on batches that differ by rank."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm
from torch.nn.parallel import DataParallel, DistributedDataParallel

from zeus_core._validate import checked_instance
from zeus_core.errors import UsageError

__all__ = ["check_averaging", "check_gradients", "warn_of_batch_norms"]

_SHOWN_LAYERS = 5
_WRAP = "model = torch.nn.parallel.DistributedDataParallel(model)"
# Hooks of torch that do not average the gradients of all ranks in each step.
_NOT_AVERAGING = {"noop_hook", "post_localSGD_hook"}

_logger = logging.getLogger(__name__)


def check_averaging(model: torch.nn.Module, ranks: int) -> None:
    """Check that the gradients of a model are averaged over all ranks, so that each rank's loss can be weighted.

    Raises:
        UsageError: They are not, or nobody can tell.
    """
    checked_instance("model", model, torch.nn.Module, _WRAP)
    model = getattr(model, "_orig_mod", model)  # the one inside a compiled model
    kinds = {kind.__name__ for kind in type(model).__mro__}
    if isinstance(model, DataParallel):
        raise UsageError(f"model is a DataParallel, which splits batches itself; use {_WRAP}")
    if "PipelineEngine" in kinds:
        raise UsageError("model is a PipelineEngine, which computes its losses itself: they cannot be weighted by rank")
    if ranks == 1:
        return
    if isinstance(model, DistributedDataParallel):
        _check_ddp(model, ranks)
    elif not (kinds & {"FullyShardedDataParallel", "DeepSpeedEngine"} or _fsdp_modules(model)):
        raise UsageError(
            f"model is a {type(model).__name__}, whose gradients nothing averages over the {ranks} ranks; "
            f"wrap it first: {_WRAP}"
        )
    for module in _fsdp_modules(model):
        _check_fsdp(module)


def check_gradients(model: torch.nn.Module, ranks: int) -> None:
    """Check that a rank can tell when it has computed its gradients, before it waits for the others.

    Raises:
        UsageError: It cannot.
    """
    model = getattr(model, "_orig_mod", model)
    if ranks > 1 and not isinstance(model, DistributedDataParallel):
        raise UsageError(
            f"model is a {type(model).__name__}, of which nobody can tell when a rank has computed its gradients; "
            "use DistributedDataParallel, or give the batches"
        )


def _check_ddp(model: DistributedDataParallel, ranks: int) -> None:
    averaged = torch.distributed.get_world_size(model.process_group)
    if averaged != ranks:
        raise UsageError(f"model averages gradients over {averaged} ranks, and this job has {ranks}; use one group")
    for hook, _ in getattr(model, "_comm_hooks", ()):
        name = getattr(hook, "__name__", "")
        if name in _NOT_AVERAGING:
            raise UsageError(f"model has the communication hook {name}, which does not average gradients in each step")


def _fsdp_modules(model: torch.nn.Module) -> list[Any]:
    """Return the modules that `fully_shard` has sharded."""
    return [
        module
        for module in model.modules()
        if any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)  # its place differs by release of torch
    ]


def _check_fsdp(module: Any) -> None:
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
    if any(getattr(group, "gradient_divide_factor", None) is not None for group in groups):
        raise UsageError(
            "model has a gradient divide factor of its own (set_gradient_divide_factor); "
            "remove it: the gradients must be averages over the ranks"
        )


def warn_of_batch_norms(model: torch.nn.Module, batches: Sequence[int]) -> None:
    """Warn of layers that make a difference of how a global batch is split."""
    local = [name for name, layer in _batch_norms(model) if not isinstance(layer, SyncBatchNorm)]
    if local:
        _logger.warning(
            "%s normalise each rank's own batch, so the result depends on how batches are split; convert them before "
            "the model is wrapped: torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)",
            _listed(local),
        )
    synced = [name for name, layer in _batch_norms(model) if isinstance(layer, SyncBatchNorm)]
    if synced and 0 in batches:
        _logger.warning(
            "%s count one sample of each rank without samples too, twice in all; give each rank at least one sample",
            _listed(synced),
        )


def _batch_norms(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    for name, layer in model.named_modules():
        if isinstance(layer, _BatchNorm):
            yield name.removeprefix("module.") or type(layer).__name__, layer


def _listed(names: list[str]) -> str:
    rest = len(names) - _SHOWN_LAYERS
    return ", ".join(names[:_SHOWN_LAYERS]) + (f" and {rest} more layers" if rest > 0 else "")
