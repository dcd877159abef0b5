"""What a training loop reports, in words no framework owns.

Adapters translate the hooks of their framework into these events; optimizers turn events into settings. The order is

    TRAIN_BEGIN, { EPOCH_BEGIN, { STEP_BEGIN, STEP_END, [PAUSE] }*, EPOCH_END }*, TRAIN_END

where a step is one optimizer step. Loops that report less (no TRAIN_BEGIN, no STEP_END) are understood too.
"""

from enum import Enum

__all__ = ["Event"]


class Event(Enum):
    """One thing that happened in a training loop."""

    TRAIN_BEGIN = "train begin"
    EPOCH_BEGIN = "epoch begin"
    STEP_BEGIN = "step begin"
    STEP_END = "step end"
    PAUSE = "pause"
    """Work that is not training (evaluation, saving) is about to start; training is back at the next STEP_BEGIN."""
    INTRUSION = "intrusion"
    """Work that is not training has already started without a PAUSE: what is being measured holds some of it."""
    EPOCH_END = "epoch end"
    TRAIN_END = "train end"
