"""Helpers that inspect an `Accelerator`."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator

from zeus_core.errors import UsageError
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor.no_monitor import monitor_of_gpus, training_monitor
from zeus_core.ports.accelerator import INDEXED_TYPES
from zeus_core.validate import wrong_argument


def checked_accelerator(accelerator: Accelerator) -> Accelerator:
    """Return an accelerator whose optimizer steps can be seen; raise `UsageError` for anything else."""
    if not isinstance(accelerator, Accelerator):
        raise wrong_argument("accelerator", accelerator, "an Accelerator, such as accelerate.Accelerator()")
    if not accelerator._optimizers:
        raise UsageError("accelerator has no optimizer yet; call accelerator.prepare(model, optimizer, ...) first")
    optimizer = accelerator._optimizers[0].optimizer
    if not hasattr(optimizer, "register_step_post_hook"):
        raise UsageError(f"accelerator has a {type(optimizer).__name__}, whose steps cannot be seen from outside")
    return accelerator


def samples_of_batch(accelerator: Accelerator) -> int:
    """Return this process's share of the batch that all processes work on; 0 without a prepared dataloader.

    As in accelerate's own `gather_for_metrics`, samples that are repeated to fill up the last batch do not count.
    """
    state = accelerator.gradient_state
    total = _total_batch_size(state.active_dataloader)
    if state.end_of_dataloader and state.remainder > 0:
        total = state.remainder
    share, rest = divmod(total, accelerator.num_processes)
    return int(share + (accelerator.process_index < rest))


def _total_batch_size(dataloader: Any) -> int:
    """Return the samples in a batch, over all processes."""
    total = getattr(dataloader, "total_batch_size", None)
    if total is None:  # made by `skip_first_batches`, around the sampler of the dataloader it was given
        sampler = getattr(getattr(dataloader, "batch_sampler", None), "batch_sampler", None)
        processes = 1 if getattr(sampler, "split_batches", False) else getattr(sampler, "num_processes", 1)
        total = (getattr(sampler, "batch_size", None) or 0) * processes
    return int(total)


def is_compiling(accelerator: Accelerator) -> bool:
    """Return whether the accelerator compiles the models that it prepares."""
    return bool(getattr(accelerator.state.dynamo_plugin.backend, "value", "NO") != "NO")


def trained_models(accelerator: Accelerator) -> list[torch.nn.Module]:
    """Return the prepared models that have a parameter of a prepared optimizer: reference models have none.

    These are the models as they were before accelerate wrapped them. If none has one, as the optimizer's were replaced
    when a model was sharded, return all that have a parameter to train.
    """
    optimized = {
        id(parameter)
        for optimizer in accelerator._optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    models = list(accelerator._models)
    return [model for model in models if any(id(parameter) in optimized for parameter in model.parameters())] or [
        model for model in models if any(parameter.requires_grad for parameter in model.parameters())
    ]


def monitor_for(accelerator: Accelerator, monitor: ZeusMonitor | None, strict: bool) -> ZeusMonitor:
    """Return the monitor, or make one of the GPU this process trains on; without an index, as `ZeusMonitor` chooses.

    Raises:
        UsageError: An argument is wrong; the message names it.
        DeviceError: No GPU can be measured, and `strict` is true.
    """
    device = checked_accelerator(accelerator).device

    def make() -> ZeusMonitor:
        if device.type not in INDEXED_TYPES:
            return monitor_of_gpus()
        present = getattr(torch, device.type).current_device
        return ZeusMonitor(gpu_indices=[present() if device.index is None else device.index])

    return training_monitor(monitor, strict, make)
