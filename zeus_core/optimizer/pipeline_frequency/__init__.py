"""Perseus: a clock for each instruction of a training pipeline, profiled, planned and replayed during training.

Source: Chung et al., "Reducing Energy Bloat in Large Model Training", SOSP'24.
"""

from zeus_core.optimizer.pipeline_frequency.iterations import Iteration
from zeus_core.optimizer.pipeline_frequency.marks import HostMarks, Mark, MarkMaker
from zeus_core.optimizer.pipeline_frequency.optimizer import PipelineFrequencyOptimizer
from zeus_core.optimizer.pipeline_frequency.phases import PhaseName
from zeus_core.optimizer.pipeline_frequency.place import PipelinePlace
from zeus_core.optimizer.pipeline_frequency.planner import Prediction
from zeus_core.optimizer.pipeline_frequency.settings import PipelineFrequencySettings

__all__ = [
    "HostMarks",
    "Iteration",
    "Mark",
    "MarkMaker",
    "PhaseName",
    "PipelineFrequencyOptimizer",
    "PipelineFrequencySettings",
    "PipelinePlace",
    "Prediction",
]
