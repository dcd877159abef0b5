"""The energy of a training run: by activity, per token or sample, over all ranks and interruptions."""

from zeus_core.events import Activity
from zeus_core.training._summary import TrainingSummary
from zeus_core.training._training_energy import TrainingEnergy

__all__ = [
    "Activity",
    "TrainingEnergy",
    "TrainingSummary",
]
