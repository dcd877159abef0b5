"""The same steps in other batches: micro-batches that take the fewest joules, and batches that differ by rank."""

from zeus_core.batches.micro_batch_optimizer import MicroBatchOptimizer

__all__ = ["MicroBatchOptimizer"]
