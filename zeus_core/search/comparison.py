"""Training steps at two settings compared: the saving and the slowdown, each with its uncertainty."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from zeus_core.search.trial import Trial
from zeus_core.units import duration_text, energy_text, rows_html

# Two normal standard errors hold the truth in 95 % of cases.
STANDARD_ERRORS = 1.96
"""Half of a 95 % interval, in standard errors."""

# Student's quantiles for 1 and 2 degrees of freedom, where the series is off by more than 3 %; from a table.
_FEW_DEGREES = (12.706, 4.303)

# Scatter of the power of one step to the next, which cannot be measured within a trial: the highest coefficient of
# variation in public measurements of training on one GPU (0.4 to 1.6 %).
POWER_CV = 0.016
"""Coefficient of variation of the power of one step."""

# A trial whose energy may be off by more than half of it is shorter than the counter resolves.
_MAX_UNCERTAINTY_FRACTION = 0.5


@dataclass(frozen=True)
class Comparison:
    """A training step before and after a change.

    The uncertainties are half-widths of intervals that hold the truth in 95 % of cases. They contain the uncertainty of
    both measured energies, the scatter of the steps, and the difference between two trials at the chosen setting. A
    drift of the work between the two trials is in them if `saving` and `slowdown` are given.

    Attributes:
        before: Steps at the original setting.
        after: Steps at the chosen setting.
        repeated: Other steps at the chosen setting; None without any.
        saving: The fraction of the energy that is saved, and how far it can be off, as estimated from visits of the
            settings in turn; None for that of the two trials.
        slowdown: The same of the duration after over that before.
        has_drifted: Whether the work or the machine has changed between the visits.
        doubt: The reason that the two cannot be compared, so that nothing is claimed; None if they can.
    """

    before: Trial
    after: Trial
    repeated: Trial | None = None
    saving: tuple[float, float] | None = None
    slowdown: tuple[float, float] | None = None
    has_drifted: bool = False
    doubt: str | None = None

    @property
    def saving_fraction(self) -> float:
        """Energy saved, as a fraction of the energy before; negative if more is used. Compare `is_certain`."""
        if self.saving is not None:
            return self.saving[0]
        return 1 - _quotient(self.after.joules_per_step, self.before.joules_per_step)

    @property
    def saving_uncertainty(self) -> float:
        """How far `saving_fraction` can be off; infinite if the trials are too short, or too different, to tell."""
        if self.saving is not None:
            return self.saving[1]
        errors = energy_error_fraction(self.before), energy_error_fraction(self.after)
        if self.doubt is not None or not math.isfinite(sum(errors)):
            return math.inf
        error = abs(1 - self.saving_fraction) * math.hypot(*errors)
        return error if self.repeated is None else math.hypot(error, self._difference("joules_per_step"))

    @property
    def slowdown_factor(self) -> float:
        """Duration after over duration before."""
        if self.slowdown is not None:
            return self.slowdown[0]
        return self.after.seconds_per_step / self.before.seconds_per_step

    @property
    def slowdown_uncertainty(self) -> float:
        """How far `slowdown_factor` can be off; infinite if a trial has a single step, or they are too different."""
        if self.slowdown is not None:
            return self.slowdown[1]
        if self.doubt is not None:
            return math.inf
        error = self.slowdown_factor * math.hypot(time_error_fraction(self.before), time_error_fraction(self.after))
        return error if self.repeated is None else math.hypot(error, self._difference("seconds_per_step"))

    def _difference(self, cost: str) -> float:
        """Return how far the two trials at the chosen setting are apart, over the cost at the original one."""
        before, after, repeated = (float(getattr(trial, cost)) for trial in (self.before, self.after, self.repeated))
        return _quotient(abs(after - repeated), before)

    @property
    def is_of_the_trials(self) -> bool:
        """Whether the two trials, divided, give the saving and the slowdown too, within their uncertainties.

        On a busy machine they need not: the trials are of other minutes than the visits in turn.
        """
        saving = 1 - _quotient(self.after.joules_per_step, self.before.joules_per_step)
        slowdown = self.after.seconds_per_step / self.before.seconds_per_step
        return (
            abs(saving - self.saving_fraction) <= self.saving_uncertainty
            and abs(slowdown - self.slowdown_factor) <= self.slowdown_uncertainty
        )

    @property
    def is_certain(self) -> bool:
        """Whether the settings differ, and the change of energy is larger than its uncertainty, without a doubt."""
        if self.doubt is not None:
            return False
        return self.before.setting != self.after.setting and abs(self.saving_fraction) > self.saving_uncertainty

    @property
    def saving_text(self) -> str:
        """The saving for people, or the reason that there is none to report."""
        if self.doubt is not None or math.isinf(self.saving_uncertainty):
            return self._bare_saving_text
        saving = f"{self._bare_saving_text}{self._correction_text}"
        if not self.is_certain:
            return f"too small, or too briefly measured, to be certain: {saving}{self.changed_text}"
        return f"{saving}{self.changed_text}"

    @property
    def _bare_saving_text(self) -> str:
        """The saving and its uncertainty without any remark; or the reason that it is not known."""
        if self.doubt is not None:
            return f"not known: {self.doubt}"
        if math.isinf(self.saving_uncertainty):
            return "not known: too few steps were measured, or too little of their energy"
        return f"{percentage(self.saving_fraction, self.saving_uncertainty)} of the energy of a step"

    @property
    def _correction_text(self) -> str:
        """The saving by the two means, where these are shown and a reader who divides them finds another one."""
        plain = 1 - _quotient(self.after.joules_per_step, self.before.joules_per_step)
        if not self.is_of_the_trials or f"{plain:.1%}" == f"{self.saving_fraction:.1%}":
            return ""
        return f", corrected for drift ({plain:.1%} by the means of all steps)"

    @property
    def changed_text(self) -> str:
        """A remark that the work or the machine has changed, to continue a sentence; empty if it has not."""
        return "; the work or the machine changed meanwhile, which ± allows for" if self.has_drifted else ""

    def _repr_html_(self) -> str | None:
        return rows_html(
            {"before": _described(self.before), "after": _described(self.after), "saving": self.saving_text}
        )

    def __str__(self) -> str:
        """Format both costs and the relative change."""
        doubt = "" if self.doubt is None else f"\n{self.doubt}"
        if self.doubt is None and not self.is_of_the_trials:
            doubt = (
                " (of steps at both in turn: these two means are of times at which the machine was not equally fast)"
            )
        return (
            f"before: {_described(self.before)}\n"
            f"after:  {_described(self.after)}\n"
            f"saving {percentage(self.saving_fraction, self.saving_uncertainty)} of the energy for "
            f"{percentage(self.slowdown_factor - 1, self.slowdown_uncertainty, sign='+')} time{doubt}"
        )


def percentage(fraction: float, uncertainty: float, sign: str = "") -> str:
    """Format a fraction and its uncertainty as percentages."""
    known = f"±{100 * uncertainty:.1f}" if math.isfinite(uncertainty) else "±?"
    return f"{fraction:{sign}.1%} {known}"


def mean_uncertainty(values: Sequence[float]) -> float:
    """Return how far the mean of some values can be off by their scatter; infinite for fewer than two."""
    if len(values) < 2:
        return math.inf
    return student_quantile(len(values) - 1) * standard_deviation(values) / math.sqrt(len(values))


def standard_deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of a sample of at least two values; `statistics` takes 3 ms to import."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def quotient_uncertainty(before: tuple[float, float], after: tuple[float, float]) -> float:
    """Return how far `after / before` can be off; each is a positive value with its own uncertainty."""
    errors = (uncertainty / value if value > 0 else math.inf for value, uncertainty in (before, after))
    return after[0] / before[0] * math.hypot(*errors) if before[0] > 0 else math.inf


def _described(trial: Trial) -> str:
    joules, error = trial.joules_per_step, energy_error_fraction(trial)
    energy = energy_text(joules, joules * error) if math.isfinite(error) else f"{energy_text(joules)}, too few steps,"
    return f"{duration_text(trial.seconds_per_step)} and {energy} per step"


def energy_error_fraction(trial: Trial) -> float:
    """Return how far the energy of a step can be off, as a fraction of it; infinite if it is not known."""
    measured = _quotient(trial.measurement.total_uncertainty_joules or 0.0, trial.measurement.total_energy or 0.0)
    if not measured <= _MAX_UNCERTAINTY_FRACTION:
        return math.inf
    scatter = STANDARD_ERRORS * POWER_CV / math.sqrt(trial.steps)
    return math.hypot(measured, scatter, time_error_fraction(trial))


def time_error_fraction(trial: Trial) -> float:
    """Return how far the mean duration of a step can be off, as a fraction of it; infinite for a single step."""
    if trial.steps == 1:
        return math.inf
    return student_quantile(trial.steps - 1) * trial.seconds_per_step_stderr / trial.seconds_per_step


def student_quantile(degrees: int) -> float:
    """Return the half-width of the 95 % interval of Student's distribution (Cornish and Fisher; within 1 %)."""
    if degrees <= len(_FEW_DEGREES):
        return _FEW_DEGREES[degrees - 1]
    z = STANDARD_ERRORS
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3


def _quotient(dividend: float, divisor: float) -> float:
    return dividend / divisor if divisor > 0 else math.inf
