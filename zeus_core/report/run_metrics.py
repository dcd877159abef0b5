"""The numbers of a run by name, each with the interval that holds the truth. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from zeus_core.errors import UsageError
from zeus_core.events import Activity
from zeus_core.training.activities.tally import Tally
from zeus_core.training.record.run_records import RunRecord
from zeus_core.units import kilowatt_hours_from_joules

RUN_METRICS: Mapping[str, tuple[str, str]] = {
    "energy_j": ("J", "all GPUs, the whole run, with interrupted parts"),
    "energy_kwh": ("kWh", "the same"),
    "energy_per_token_j": ("J", "energy of the training steps by token, where tokens are counted"),
    "energy_per_sample_j": ("J", "energy of the training steps by sample, where samples are counted"),
    "energy_per_step_j": ("J", "energy of the training steps by optimizer step"),
    **{f"energy_{activity.value}_j": ("J", f"energy of the activity {activity.words}") for activity in Activity},
    "energy_per_generated_token_j": ("J", "energy of the text generated for training by token, where that is known"),
    "energy_per_reward_j": ("J", "energy of a pass of reward models on one rank"),
    "energy_redone_j": ("J", "energy of steps that were done again after an interruption"),
    "host_energy_j": ("J", "CPU packages and their memory, where they are measured and charged"),
    "power_w": ("W", "mean power of all GPUs"),
    "seconds": ("s", "time of the run, without the time between its parts"),
    "seconds_per_step": ("s", "time of the training steps by optimizer step"),
    "steps": ("", "optimizer steps"),
    "samples": ("", "samples trained on"),
    "tokens": ("", "tokens trained on"),
    "generated_tokens": ("", "tokens generated for training"),
    "interruptions": ("", "parts that were killed, or ended before all ranks had reported their last energy"),
    "overhead_s": ("s", "time in hooks of this package, in the latest part and process"),
    "saving_fraction": ("", "energy per step that the chosen setting saves"),
    "co2_eq_g": ("g", "CO2 equivalent, if an intensity was given"),
    "cost": ("money", "cost in the currency of the price, if one was given"),
}
"""The names, with unit and meaning."""


def unit_of(name: str, run: RunRecord) -> str:
    """Return the unit of a number of a run: activities of a user's own, which are in no table, are in joules."""
    if name == "cost" and run.electricity is not None:
        return next(signal.unit.partition("/")[0] for signal in run.electricity.signals if signal.basis is None)
    return RUN_METRICS[name][0] if name in RUN_METRICS else "J"


class Quantity(NamedTuple):
    """A number, and the interval that holds the truth."""

    value: float
    low: float
    high: float

    @classmethod
    def around(cls, value: float, uncertainty: float = 0.0) -> Quantity:
        """Return a number with an uncertainty."""
        return cls(value, value - uncertainty, value + uncertainty)

    def by(self, count: float) -> Quantity:
        """Divide by an exact positive number."""
        return Quantity(self.value / count, self.low / count, self.high / count)


def energy_interval(run: RunRecord) -> Quantity | None:
    """Return the energy of all GPUs: measured, with what killed parts may have taken beyond; None if some was lost."""
    account = run.account
    joules, off = account.total.energy_joules, account.total.measured.uncertainty_joules or 0.0
    if joules is None:
        return None
    more = math.inf if account.unrecorded_joules is None else account.unrecorded_joules
    return Quantity(joules, max(joules - off, 0.0), joules + off + more)


def charge_interval(run: RunRecord, unit: str) -> Quantity | None:
    """Return the emissions or the cost of a run, with what killed parts may have added; None if they are not known."""
    charge, unrecorded = run.account.known_charge(unit), run.account.unrecorded_joules
    if charge is None or (charge.joules <= 0 and unrecorded != 0):
        return None
    more = math.inf if unrecorded is None else unrecorded and unrecorded * charge.amount / charge.joules
    low, high = charge.amount - charge.uncertainty, charge.amount + charge.uncertainty
    return Quantity(charge.amount, low + min(more, 0.0), high + max(more, 0.0))  # a price may be negative


def sum_of(quantities: Sequence[Quantity]) -> Quantity:
    """Add up quantities."""
    return Quantity(*(math.fsum(ends) for ends in zip(*quantities, strict=True)))


def metrics_of(run: RunRecord) -> dict[str, Quantity]:
    """Return the numbers of a run that are known, in the order of `RUN_METRICS`."""
    account, training = run.account, run.account.training
    total, work = energy_interval(run), _energy_of(training)
    steps = run.latest.step - run.parts[0].begin_step if len(run.parts) == 1 else run.latest.step
    found: dict[str, Quantity | None] = {
        "energy_j": total,
        "energy_kwh": None if total is None else total.by(1 / kilowatt_hours_from_joules(1.0)),
        "energy_redone_j": _energy_of(account.redone) if account.redone.seconds > 0 else None,
        "host_energy_j": _energy_of(account.host) if account.host.seconds > 0 else None,
        "power_w": _power(account.total),
        "seconds": Quantity.around(account.total.seconds),
        "overhead_s": Quantity.around(run.latest.overhead_seconds),
        "interruptions": Quantity.around(account.interruptions),
    }
    for activity, tally in account.in_order():
        found[f"energy_{activity}_j"] = energy = _energy_of(tally)
        if activity in account.joules_per_visit() and energy is not None:
            found[f"energy_per_{activity}_j"] = energy.by(account.visits[activity])
        if activity is Activity.GENERATION and account.generated_tokens > 0:
            found["generated_tokens"] = Quantity.around(account.generated_tokens)
            found["energy_per_generated_token_j"] = None if energy is None else energy.by(account.generated_tokens)
    for unit, count in (("token", account.tokens), ("sample", account.samples), ("step", steps)):
        if count > 0:
            found[f"{unit}s"] = Quantity.around(count)
            found[f"energy_per_{unit}_j"] = None if work is None else work.by(count)
    if steps > 0:
        found["seconds_per_step"] = Quantity.around(training.seconds / steps)
    if run.saving_fraction is not None:
        found["saving_fraction"] = Quantity.around(run.saving_fraction, run.saving_uncertainty or 0.0)
    for signal in () if run.electricity is None else run.electricity.signals:
        found["co2_eq_g" if signal.basis is not None else "cost"] = charge_interval(run, signal.unit.partition("/")[0])
    return {name: known for name in dict.fromkeys([*RUN_METRICS, *found]) if (known := found.get(name)) is not None}


def _energy_of(tally: Tally) -> Quantity | None:
    joules = tally.energy_joules
    return None if joules is None else Quantity.around(joules, tally.measured.uncertainty_joules or 0.0)


def _power(tally: Tally) -> Quantity | None:
    """Return the mean power of what was recorded."""
    energy = _energy_of(tally)
    return None if energy is None or tally.seconds <= 0 else energy.by(tally.seconds)


def named(metrics: Mapping[str, Quantity], name: str) -> Quantity:
    """Return a number of a run.

    Raises:
        UsageError: There is no such name, or the number is not known of this run; the message lists those that are.
    """
    if name in metrics:
        return metrics[name]
    reason = "is not known of this run" if name in RUN_METRICS else "is not a number of a run"
    raise UsageError(f"{name} {reason}; these are: {', '.join(metrics)}")
