"""The outcome of a training run, and the metrics it is logged as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zeus_core._units import kilowatt_hours_from_joules
from zeus_core.events import Activity
from zeus_core.training._account import Account
from zeus_core.training._tally import Tally

__all__ = ["TrainingSummary", "known_values"]


@dataclass(frozen=True)
class TrainingSummary:
    """The time and energy of a run, all ranks and all its parts together.

    Attributes:
        steps: Optimizer steps of this part.
        account: Time, energy and work, by activity.
        saving_fraction: The part of the energy of a step that the chosen power limit saves; None if none was chosen.
        overhead_seconds: Time this process has spent in our hooks, waits for the accelerator and other ranks included.
        detected_evaluations: Evaluations of this part and process that nothing announced, but their forward passes.
    """

    steps: int
    account: Account
    saving_fraction: float | None = None
    overhead_seconds: float = 0.0
    detected_evaluations: int = 0

    def values(self) -> dict[str, float]:
        """Return the metrics of the end of training (`SUMMARY_METRICS`) by name, without those not measured."""
        total, redone = self.account.total, self._redone
        total_joules = total.energy_joules
        values = {
            "train_energy_j": total_joules,
            "train_energy_kwh": None if total_joules is None else kilowatt_hours_from_joules(total_joules),
            "train_energy_uncertainty_j": None if total_joules is None else total.measured.uncertainty_joules,
            **{f"train_energy_{activity.value}_j": tally.energy_joules for activity, tally in self._in_order()},
            "train_energy_redone_j": None if redone is None else redone.energy_joules,
            "train_energy_saving_fraction": self.saving_fraction,
            "train_energy_overhead_s": self.overhead_seconds,
        }
        return known_values(values)

    def __str__(self) -> str:
        """Format a table with one line for each activity."""
        rows = [(activity.value, tally) for activity, tally in self._in_order()]
        if self._redone is not None:
            rows.append(("done twice", self._redone))
        lines = [_row(name, tally) for name, tally in [*rows, ("total", self.account.total)]]
        saving = (
            "" if self.saving_fraction is None else f"\nsaved per step by the power limit: {self.saving_fraction:.1%}"
        )
        detected = self.detected_evaluations
        return (
            "\n".join(lines)
            + saving
            + (f"\nevaluations detected by their forward passes: {detected}" if detected else "")
        )

    def _in_order(self) -> list[tuple[Activity, Tally]]:
        activities = self.account.activities
        return [(activity, activities[activity]) for activity in Activity if activity in activities]

    @property
    def _redone(self) -> Tally | None:
        return self.account.redone if self.account.redone.seconds > 0 else None


def _row(name: str, tally: Tally) -> str:
    joules, watts = tally.energy_joules, tally.power_watts
    energy = "lost" if joules is None else f"{joules:.1f} J ±{tally.measured.uncertainty_joules:.1f}"
    return f"{name:>10} {tally.seconds:10.1f} s {energy:>24} {'' if watts is None else f'{watts:.0f} W':>7}"


def known_values(values: Mapping[str, float | None]) -> dict[str, float]:
    """Leave out the values that are None."""
    return {name: value for name, value in values.items() if value is not None}
