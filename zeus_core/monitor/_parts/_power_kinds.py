"""How parts may differ from others of their class: the kinds of loads between which the counter decides. Pure."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["KINDS", "NOISE", "Habit", "Kind"]

NOISE = 0.04
"""The scatter of the power over 50 ms, as a fraction of it; how much it is, is learnt with the scale of all others."""


class Habit(NamedTuple):
    """How the power of one class of parts changes, in fractions of the mean power.

    A part, or a step in it, draws a fraction of what the one before it drew of its own, and something new.

    Attributes:
        part_kept: The fraction of the own power of the part before it that a part keeps.
        part_new: The standard deviation of what is new.
        step_kept: The same from step to step within a part.
        step_new: The standard deviation of that.
        walk: The standard deviation of how it changes within one second.
    """

    part_kept: float
    part_new: float
    step_kept: float
    step_new: float
    walk: float


_CHANGING = Habit(0.9, 0.1, 1.0, 0.02, 0.02)  # as a trend of the load looks that was not seen before


class Kind(NamedTuple):
    """A kind of load.

    Attributes:
        steps: The habit of the class that consists of steps.
        others: That of all other classes.
    """

    steps: Habit
    others: Habit

    def may_change(self) -> Kind:
        """Return this kind, but where parts are alike, let them change slowly, in a time of which little is known."""
        return Kind(*(_CHANGING if habit.part_new < _CHANGING.part_new else habit for habit in self))


# Only what they are to each other and to the noise counts: the scale of all is learnt, and a load between two kinds is
# told by both. Without those that rise or fall most quickly, steps that do were off by up to 2.3 %, with them by .5 %.
# Without those that wander quickly, samples of a few of many such steps told the others too little: 4.6 % instead of
# 0.02 % off. .02 for the noise instead of .04 makes uncertainties wider by 5 to 10 % (benchmarks/part_energy.py).
_HABITS_OF_STEPS = (
    Habit(0.0, 0.02, 0.0, 0.01, 0.01),  # all alike
    Habit(0.0, 0.3, 1.0, 0.01, 0.02),  # alike from one interruption to the next
    Habit(0.0, 0.3, 0.0, 0.3, 0.02),  # each on its own
    Habit(0.0, 0.3, 0.0, 0.3, 0.4),  # and rising or falling
    Habit(0.0, 0.3, 0.0, 0.3, 1.5),  # and quickly
    Habit(0.8, 0.18, 0.98, 0.024, 0.02),  # wandering
    Habit(0.8, 0.18, 0.95, 0.1, 0.02),  # and quickly
)
_HABITS_OF_OTHERS = (
    Habit(0.0, 0.05, 0.0, 0.0, 0.01),
    Habit(0.0, 0.35, 0.0, 0.0, 0.02),
    Habit(0.0, 0.35, 0.0, 0.0, 0.4),
    Habit(0.0, 0.35, 0.0, 0.0, 1.5),
)
KINDS = tuple(Kind(steps, others) for steps in _HABITS_OF_STEPS for others in _HABITS_OF_OTHERS)
"""All that are tried."""
