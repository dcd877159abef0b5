"""Batches in a Lightning `Trainer`: another micro-batch, and batches that differ by rank."""

from zeus_lightning.batches.lightning_uneven_batches import UnevenBatches

__all__ = ["UnevenBatches"]
