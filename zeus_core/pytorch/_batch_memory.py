"""How many samples the memory of a GPU holds, foreseen from steps with fewer: no step has to fail for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from zeus_core.device import SimulatedGpu
from zeus_core.monitor import ZeusMonitor

__all__ = ["BatchMemory", "MemoryReading", "memory_of"]

_USED_FRACTION = 0.95  # of the memory; the rest is lost between blocks, and in workspaces of kernels


class MemoryReading(NamedTuple):
    """How a process uses the memory of its GPU, in any unit.

    Attributes:
        allocated: Held now.
        peak: The most that was held.
        available: The most that could be held.
    """

    allocated: float
    peak: float
    available: float


class BatchMemory:
    """Foresees which batches fit into memory.

    Between two steps, weights and states of the optimizer are held; the rest of the peak is taken to grow with the
    batch. That is more than it can grow, as gradients and workspaces do not.

    Args:
        read: Reads the memory; None where nobody can.
    """

    def __init__(self, read: Callable[[], MemoryReading] | None) -> None:
        self._read = read
        self._held = math.inf

    def begin_step(self) -> None:
        """Note what is held between two steps: from the second one on, the states of the optimizer too."""
        if self._read is not None:
            self._held = self._read().allocated

    def largest_batch(self, batch: int) -> int | None:
        """Return the largest batch that fits, after steps with one that does, and not below it; None for any."""
        if self._read is None or math.isinf(self._held):
            return None
        reading = self._read()
        growing = reading.peak - self._held
        if growing <= 0 or batch == 0:
            return None
        return max(batch, int(batch * (_USED_FRACTION * reading.available - self._held) / growing))


def memory_of(model: torch.nn.Module, monitor: ZeusMonitor) -> BatchMemory:
    """Return the memory that a model is trained in: that of a simulated GPU, if it computes."""
    (gpu,) = monitor.gpus.values()
    if isinstance(gpu, SimulatedGpu):
        simulated = gpu
        return BatchMemory(lambda: MemoryReading(*simulated._held_gib, simulated.preset.memory_gib))
    device = next(model.parameters()).device
    if device.type != "cuda":
        return BatchMemory(None)

    def read() -> MemoryReading:
        free, _ = torch.cuda.mem_get_info(device)
        available = free + torch.cuda.memory_reserved(device)
        return MemoryReading(torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device), available)

    return BatchMemory(read)
