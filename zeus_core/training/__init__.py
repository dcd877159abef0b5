"""The energy of a training run: by activity, per token or sample, over all ranks and interruptions."""

from zeus_core.events import Activity
from zeus_core.training._energy import TrainingEnergy
from zeus_core.training._summary import TrainingSummary

__all__ = [
    "Activity",
    "TrainingEnergy",
    "TrainingSummary",
]
