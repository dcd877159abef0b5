"""Trainings whose ranks differ, in torch: batches that differ by rank, and the own work of a step for levelling."""

from zeus_core.mixed.pytorch._batch_allocation import BatchAllocation
from zeus_core.mixed.pytorch._own_loop import UnevenBatches
from zeus_core.mixed.pytorch.work_end import report_work_end

__all__ = ["BatchAllocation", "UnevenBatches", "report_work_end"]
