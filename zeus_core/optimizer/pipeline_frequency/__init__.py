"""Perseus: a clock for each instruction of a training pipeline, profiled, planned and replayed during training.

Source: Chung et al., "Reducing Energy Bloat in Large Model Training", SOSP'24.
"""

from zeus_core.optimizer.pipeline_frequency._iterations import Iteration
from zeus_core.optimizer.pipeline_frequency._optimizer import PipelineFrequencyOptimizer
from zeus_core.optimizer.pipeline_frequency._phases import PhaseName
from zeus_core.optimizer.pipeline_frequency._pipeline_rank import PipelineRank
from zeus_core.optimizer.pipeline_frequency._planner import Prediction
from zeus_core.optimizer.pipeline_frequency._settings import PipelineFrequencySettings
from zeus_core.ports import DeviceEvent, DeviceEvents, HostEvents

__all__ = [
    "DeviceEvent",
    "DeviceEvents",
    "HostEvents",
    "Iteration",
    "PhaseName",
    "PipelineFrequencyOptimizer",
    "PipelineFrequencySettings",
    "PipelineRank",
    "Prediction",
]
