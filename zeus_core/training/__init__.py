"""Where the energy of a training run goes: by activity, per token or sample, over all ranks and interruptions."""

from zeus_core.events import Activity
from zeus_core.training.account import Account
from zeus_core.training.energy import TrainingEnergy
from zeus_core.training.summary import TrainingSummary
from zeus_core.training.tally import Tally

__all__ = ["Account", "Activity", "Tally", "TrainingEnergy", "TrainingSummary"]
