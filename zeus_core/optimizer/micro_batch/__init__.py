"""The micro-batch for a given global batch: the same mathematics, fewer joules."""

from zeus_core.optimizer.micro_batch.micro_batch_optimizer import MicroBatchOptimizer

__all__ = ["MicroBatchOptimizer"]
