"""The micro-batch for a given global batch: the same mathematics, fewer joules."""

from zeus_core.batches.micro_batch_optimizer import MicroBatchOptimizer

__all__ = ["MicroBatchOptimizer"]
