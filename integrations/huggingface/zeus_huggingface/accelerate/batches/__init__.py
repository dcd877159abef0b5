"""Batches in loops written with accelerate: another micro-batch, and batches that differ by rank."""

from zeus_huggingface.accelerate.batches.accelerate_uneven_batches import UnevenBatches

__all__ = ["UnevenBatches"]
