"""The same steps of training in other batches: the micro-batch with the fewest joules, and batches that differ by rank."""

from zeus_core.batches.micro_batch_optimizer import MicroBatchOptimizer

__all__ = ["MicroBatchOptimizer"]
