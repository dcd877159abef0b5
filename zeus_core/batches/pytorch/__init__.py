"""Batches in torch: micro-batches, and batches that differ by rank."""

from zeus_core.batches.pytorch._batch_allocation import BatchAllocation
from zeus_core.batches.pytorch._own_loop import UnevenBatches
from zeus_core.batches.pytorch.micro_batches import MicroBatches

__all__ = ["BatchAllocation", "MicroBatches", "UnevenBatches"]
