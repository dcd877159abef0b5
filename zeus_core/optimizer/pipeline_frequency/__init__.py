"""Perseus: clocks for every instruction of a training pipeline, profiled, planned and replayed while it trains."""

from zeus_core.optimizer.pipeline_frequency.place import PipelinePlace
from zeus_core.optimizer.pipeline_frequency.settings import PipelineFrequencySettings

__all__ = ["PipelineFrequencySettings", "PipelinePlace"]
