"""The outcome of a training run, and the metrics it is logged as."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from zeus_core.adapters.contained import Overhead
from zeus_core.search.comparison import percentage
from zeus_core.training.account import Account
from zeus_core.training.activities.tally import Tally
from zeus_core.training.charges.charged_electricity import electricity_rows, electricity_summary_values
from zeus_core.training.record.run_records import REMARKS
from zeus_core.units import duration_text, energy_text, rows_html, watt_hours_from_joules, watt_hours_text

if TYPE_CHECKING:
    from zeus_core.electricity import Electricity

_MUCH_OVERHEAD = 0.02  # of the time of the run: then people are shown where it went,
_LONG_SECONDS = 10.0  # unless the run is shorter, and mostly of things that are done once


_MAX_REMARKS = 8  # of 512 GPUs that lose their driver together


@dataclass(frozen=True)
class TrainingSummary:
    """The time and energy of a run, all ranks and all its parts together.

    Attributes:
        steps: Optimizer steps of this part.
        account: Time, energy and work, by activity.
        saving_fraction: The part of the energy of a step that the chosen power limit saves; None if none was chosen,
            or the saving is smaller than its uncertainty.
        detected_evaluations: Evaluations of this part and process that nothing announced, but their forward passes.
        saving_uncertainty: How far `saving_fraction` can be off; None if that is.
        electricity: The electricity, as it was given; None if it was not.
        remarks: Remarks on the numbers for people, such as why energy was lost.
        overhead: Time this process has spent in our hooks, and what was waited for in them.
        last_log: `energy_j` and `eval_energy_j` since the latest logs of this part: with them, all logs add up to its
            steps and its evaluations.
        not_measured: Why nothing was measured, and there are no values; None if something was.
    """

    steps: int
    account: Account
    saving_fraction: float | None = None
    detected_evaluations: int = 0
    saving_uncertainty: float | None = None
    electricity: Electricity | None = None
    remarks: tuple[str, ...] = ()
    overhead: Overhead = field(default_factory=Overhead)
    last_log: Mapping[str, float] = field(default_factory=dict)
    not_measured: str | None = None

    @classmethod
    def of_nothing(cls, reason: str) -> TrainingSummary:
        """Return the summary where nothing was measured, for this reason."""
        return cls(0, Account(), not_measured=reason)

    def __add__(self, later: TrainingSummary) -> TrainingSummary:
        """Return the summary of both runs. Saving and electricity are those of the later one."""
        return replace(
            later,
            steps=self.steps + later.steps,
            account=self.account + later.account,
            overhead=self.overhead + later.overhead,
            detected_evaluations=self.detected_evaluations + later.detected_evaluations,
            remarks=tuple(dict.fromkeys(self.remarks + later.remarks)),
        )

    @property
    def overhead_seconds(self) -> float:
        """`overhead` in all."""
        return self.overhead.seconds

    @property
    def co2_grams(self) -> float | None:
        """CO2 equivalent of the whole run; None if some of the energy is not known, or no intensity was given."""
        return self.values().get("train_co2_eq_g")

    @property
    def cost(self) -> float | None:
        """Cost of the whole run, in `electricity.currency`; None if some of it is not known, or no price was given."""
        return self.values().get("train_cost")

    def values(self) -> dict[str, float]:
        """Return the metrics of the end of training (`SUMMARY_METRICS`) by name, without those not measured."""
        if self.not_measured is not None:
            return {}
        total, redone = self.account.total, self._redone
        total_joules = total.energy_joules
        values = {
            "train_energy_j": total_joules,
            "train_energy_wh": None if total_joules is None else watt_hours_from_joules(total_joules),
            "train_energy_uncertainty_j": None if total_joules is None else total.measured.uncertainty_joules,
            **{f"train_energy_{each}_j": _known_joules(tally) for each, tally in self.account.in_order()},
            "train_energy_per_token_j": self._joules_per(self.account.tokens),
            "train_energy_per_generated_token_j": self.account.joules_per_generated_token,
            **{
                f"train_energy_per_{each}_j": joules or None for each, joules in self.account.joules_per_visit().items()
            },
            "train_energy_redone_j": None if redone is None else redone.energy_joules,
            "train_energy_saving_fraction": self.saving_fraction,
            "train_energy_saving_uncertainty": self.saving_uncertainty,
            "train_energy_overhead_s": self.overhead.seconds,
            **electricity_summary_values(self.account, self.electricity),
        }
        return known_values(values)

    def log_values(self) -> dict[str, float]:
        """Return what to log at the end of training: `last_log` and `values`."""
        return {**self.last_log, **self.values()}

    def rows(self) -> dict[str, str]:
        """Return the most important values for people, as labelled lines."""
        if self.not_measured is not None:
            return {"energy": f"not measured: {self.not_measured}"}
        total = self.account.total
        unit, count = ("token", self.account.tokens) if self.account.tokens > 0 else ("sample", self.account.samples)
        rows = {"energy": _total_text(total)}
        if self.steps > 0:
            rows["steps"] = str(self.steps)
        if (joules := self._joules_per(count)) is not None:
            rows[f"per {unit}"] = energy_text(joules)
        if (joules := self.account.joules_per_generated_token) is not None:
            rows["per generated token"] = energy_text(joules)
        each = [(activity, joules) for activity, joules in self.account.joules_per_visit().items() if joules > 0]
        if each:
            rows["each"] = ", ".join(f"{activity.words} {energy_text(joules)}" for activity, joules in each)
        rows |= electricity_rows(self.account, self.electricity)
        measured = [(activity, tally) for activity, tally in self.account.in_order() if tally.measured_joules > 0]
        if measured:
            parts = (f"{activity.words} {_measured_text(tally)}" for activity, tally in measured)
            rows["spent on"] = ", ".join(parts)
        rows |= remark_rows(self.remarks)
        if self._redone is not None:
            rows["done twice"] = _measured_text(self._redone)
        if self.detected_evaluations > 0:
            noun = "evaluation" if self.detected_evaluations == 1 else "evaluations"
            rows["detected"] = f"{self.detected_evaluations} {noun} that nothing announced"
        if self._has_much_overhead:
            rows["in hooks"] = str(self.overhead)
        return rows

    def _repr_html_(self) -> str | None:
        return rows_html(self.rows())

    def __str__(self) -> str:
        """Format a table with one line for each activity, and a sentence."""
        if self.not_measured is not None:
            return self.sentence
        rows = [(activity.words, tally) for activity, tally in self.account.in_order()]
        if self._redone is not None:
            rows.append(("done twice", self._redone))
        rows.append(("total", self.account.total))
        width = max(10, *(len(name) for name, _ in rows))
        lines = [f"{name:>{width}} {_cells(tally)}" for name, tally in rows]
        lines += [f"{label}: {text}" for label, text in electricity_rows(self.account, self.electricity).items()]
        lines += [f"{label}: {text}" for label, text in remark_rows(self.remarks).items()]
        if self.detected_evaluations > 0:
            lines.append(f"evaluations detected by their forward passes: {self.detected_evaluations}")
        if self._has_much_overhead:
            lines.append(f"in hooks of zeus-core: {self.overhead}")
        return "\n".join([*lines, self.sentence])

    @property
    def sentence(self) -> str:
        """The result in a sentence that people can repeat."""
        if self.not_measured is not None:
            return f"The energy of this training was not measured: {self.not_measured}"
        saved = ""
        if self.saving_fraction is not None:
            saving = percentage(self.saving_fraction, self.saving_uncertainty or 0.0)
            saved = f"; the setting that was chosen saves {saving} of the energy of a step"
        return f"This training took {_total_text(self.account.total)}{saved}."

    def _joules_per(self, count: int) -> float | None:
        joules = self.account.training.energy_joules
        return joules / count if joules is not None and count > 0 else None

    @property
    def _has_much_overhead(self) -> bool:
        seconds = self.account.total.seconds
        return seconds > _LONG_SECONDS and self.overhead.seconds > _MUCH_OVERHEAD * seconds

    @property
    def _redone(self) -> Tally | None:
        return self.account.redone if self.account.redone.seconds > 0 else None


def remark_rows(remarks: Sequence[str]) -> dict[str, str]:
    """Return a labelled line of remarks; nothing without any."""
    more = f"; and {len(remarks) - _MAX_REMARKS} more" if len(remarks) > _MAX_REMARKS else ""
    return {REMARKS: "; ".join(remarks[:_MAX_REMARKS]) + more} if remarks else {}


def _total_text(total: Tally) -> str:
    joules, watts = total.energy_joules, total.power_watts
    if joules is None or watts is None:
        if not total.measured_joules:
            return f"not measured in {duration_text(total.seconds)}: it was lost"
        lost = f"of {duration_text(total.lost_seconds)} it was lost"
        return f"at least {energy_text(total.measured_joules)} in {duration_text(total.seconds)}; {lost}"
    energy = f"{energy_text(joules, total.measured.uncertainty_joules)} ({watt_hours_text(joules)})"
    return f"{energy} in {duration_text(total.seconds)}, mean {watts:.0f} W"


def _known_joules(tally: Tally) -> float | None:
    """Return the energy; None of a part that took time and no joules: it was too short to be measured, or lost."""
    return tally.energy_joules or (None if tally.seconds > 0 else 0.0)


def _measured_text(tally: Tally) -> str:
    """Return the energy as far as it was measured, and marked if some was lost."""
    return f"{'at least ' if tally.lost_seconds > 0 else ''}{energy_text(tally.measured_joules)}"


def _cells(tally: Tally) -> str:
    joules, watts = tally.energy_joules, tally.power_watts
    seconds = f"{duration_text(tally.seconds):>12}"
    if joules is None:
        return f"{seconds} {_measured_text(tally):>24}, {duration_text(tally.lost_seconds)} lost"
    energy = energy_text(joules, tally.measured.uncertainty_joules)
    return f"{seconds} {energy:>24} {'' if watts is None else f'{watts:.0f} W':>7}"


def known_values(values: Mapping[str, float | None]) -> dict[str, float]:
    """Leave out the values that are None."""
    return {name: value for name, value in values.items() if value is not None}
