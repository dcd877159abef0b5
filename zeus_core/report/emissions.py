"""The emissions and the cost of runs: charged afterwards, and added up for their energy statement. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from zeus_core.electricity import Electricity
from zeus_core.electricity.electricity_amount import ElectricityAccount
from zeus_core.report.run_metrics import Quantity, charge_interval, sum_of
from zeus_core.training.charges.charging import Charge
from zeus_core.training.record.rank_records import electricity_record
from zeus_core.training.record.run_records import ElectricityRecord, RunRecord
from zeus_core.units import kilowatt_hours_from_joules

_GRAMS = "g"


class Emissions(NamedTuple):
    """The emissions of some energy.

    Attributes:
        grams: CO2 equivalent, with the interval that holds the truth if the factor is right.
        factor: The mean factor, in g/kWh.
        source: Where it comes from, the power plants it counts, and the share of the energy for which only its mean
            was known.
        pue: The share of the data centre that is in it.
    """

    grams: Quantity
    factor: float
    source: str
    pue: float


def charged(run: RunRecord, electricity: Electricity | None) -> RunRecord:
    """Return a run charged at an electricity, in each unit in which it was not charged while it went on.

    Its energy counts as spread evenly over its time, and the uncertainty covers every other way to spread it. A run
    that had an electricity of its own keeps that, with its PUE.
    """
    if electricity is None:
        return run
    signals = [signal for signal in electricity.signals if signal.facts.amount_unit not in run.account.charges]
    given = electricity_record(electricity)
    assert given is not None
    own = run.electricity or replace(given, signals=())
    account, measured = ElectricityAccount(signals, own.pue), (run.account.total + run.account.host).measured
    account.add(run.parts[0].begun_at_seconds, run.latest.until_seconds, measured)
    joules = measured.energy_joules or 0.0
    charges = {
        unit: Charge(one.amount or 0.0, one.uncertainty or 0.0, joules, one.stale_fraction * joules)
        for unit, one in account.amounts.items()
    }
    added = [signal for signal in given.signals if signal.unit.partition("/")[0] in charges]
    return replace(
        run,
        account=replace(run.account, charges={**run.account.charges, **charges}),
        electricity=ElectricityRecord((*own.signals, *added), own.pue, own.location),
    )


def emissions_of(runs: Sequence[RunRecord]) -> Emissions | None:
    """Return the emissions of runs taken together; None if those of a run are not known."""
    amounts, sources, pues, kilowatt_hours, average = [], dict[str, None](), [], 0.0, 0.0
    for run in runs:
        grams, electricity = charge_interval(run, _GRAMS), run.electricity
        signal = next((one for one in electricity.signals if one.basis), None) if electricity is not None else None
        if grams is None or electricity is None or signal is None:
            return None
        charge, pue = run.account.charges[_GRAMS], electricity.pue
        amounts.append(grams)
        kilowatt_hours += pue * kilowatt_hours_from_joules(charge.joules)
        stale = f"; {charge.stale_fraction:.0%} of it at the mean factor" if charge.stale_fraction > 0 else ""
        sources[f"{signal.source}; {signal.basis}{stale}"] = None
        pues.append(pue)
        average = signal.average
    total = sum_of(amounts)
    factor = total.value / kilowatt_hours if kilowatt_hours > 0 else average
    return Emissions(total, factor, "; ".join(sources), max(pues))
