"""Perseus: a clock for each instruction of a training pipeline, profiled, planned and replayed during training.

Source: Chung et al., "Reducing Energy Bloat in Large Model Training", SOSP'24.
"""

from zeus_core.optimizer.pipeline_frequency._optimizer import PipelineFrequencyOptimizer
from zeus_core.optimizer.pipeline_frequency._phases import Phase
from zeus_core.optimizer.pipeline_frequency._rank_information import PipelineRank
from zeus_core.optimizer.pipeline_frequency._settings import PipelineFrequencySettings

__all__ = [
    "Phase",
    "PipelineFrequencyOptimizer",
    "PipelineFrequencySettings",
    "PipelineRank",
]
