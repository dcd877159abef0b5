"""The count of the steps of a training, which all searches within it share."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RunSteps"]


@dataclass
class RunSteps:
    """The steps of a training so far.

    Attributes:
        steps: How many.
        outlier_steps: Those that took far too long, and are in no trial.
        excess_seconds: How much longer these took than others.
    """

    steps: int = 0
    outlier_steps: int = 0
    excess_seconds: float = 0.0
