"""Batches that a `Trainer` trains with: another micro-batch, and batches that differ by rank."""

from zeus_huggingface.batches.trainer_uneven_batches import UnevenBatches

__all__ = ["UnevenBatches"]
