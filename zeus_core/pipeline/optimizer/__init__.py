"""Perseus: a clock for each instruction of a training pipeline, profiled, planned and replayed during training.

Source: Chung et al., "Reducing Energy Bloat in Large Model Training", SOSP'24.
"""

from zeus_core.pipeline.optimizer._frequency_optimizer import PipelineFrequencyOptimizer
from zeus_core.pipeline.optimizer.frequency_settings import PipelineFrequencySettings
from zeus_core.pipeline.profile.pipeline_job import PipelineRank

__all__ = [
    "PipelineFrequencyOptimizer",
    "PipelineFrequencySettings",
    "PipelineRank",
]
