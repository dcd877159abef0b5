"""Two ways of training, compared per step."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Comparison", "StepCost"]


@dataclass(frozen=True)
class StepCost:
    """What one training step takes.

    Attributes:
        seconds: Its duration.
        joules: Its energy, of all GPUs together.
        joules_uncertainty: How far `joules` can be off, to either side.
    """

    seconds: float
    joules: float
    joules_uncertainty: float = 0.0


@dataclass(frozen=True)
class Comparison:
    """A step before and after a change."""

    before: StepCost
    after: StepCost

    @property
    def saving_fraction(self) -> float:
        """Energy saved, as a fraction of the energy before; negative where more is used."""
        return 1 - self.after.joules / self.before.joules

    @property
    def slowdown_factor(self) -> float:
        """Duration after over duration before."""
        return self.after.seconds / self.before.seconds

    def __str__(self) -> str:
        """Both steps and the difference, in two lines and a half."""
        return (
            f"before: {_describe(self.before)}\n"
            f"after:  {_describe(self.after)}\n"
            f"saving {self.saving_fraction:.1%} of the energy for {self.slowdown_factor - 1:+.1%} time"
        )


def _describe(cost: StepCost) -> str:
    return f"{cost.seconds:.4f} s and {cost.joules:.2f} J (\u00b1{cost.joules_uncertainty:.2f}) per step"
