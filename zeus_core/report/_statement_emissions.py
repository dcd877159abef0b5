"""The emissions of runs, for their energy statement. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from zeus_core.electricity import Electricity
from zeus_core.electricity.electricity_amount import slice_of
from zeus_core.report.run_metrics import Quantity, energy_interval
from zeus_core.training.record.run_records import RunRecord
from zeus_core.units import kilowatt_hours_from_joules, number_text


@dataclass(frozen=True)
class Emissions:
    """The emissions of some energy.

    Attributes:
        grams: CO2 equivalent, with the interval that holds the truth if the factor is right.
        factor: The mean factor, in g/kWh.
        source: Where it comes from, and the power plants it counts.
        pue: The share of the data centre that is in it.
        location: Where the computers are; None if that was not said.
        stale_fraction: The share of the energy for which only the mean of the factor was known.
    """

    grams: Quantity
    factor: float
    source: str
    pue: float
    location: str | None
    stale_fraction: float = 0.0


def emissions_of(run: RunRecord, electricity: Electricity | None) -> Emissions | None:
    """Return the emissions of a run: as it was charged, or else by some electricity; None if they are not known."""
    energy = energy_interval(run)
    if energy is None:
        return None
    charge = run.account.known_charge("g")
    if charge is not None and run.electricity is not None:
        signal = next((one for one in run.electricity.signals if one.basis is not None), None)
        if signal is not None and charge.joules > 0:
            pue = run.electricity.pue
            factor = charge.amount / (pue * kilowatt_hours_from_joules(charge.joules))
            more = factor * pue * kilowatt_hours_from_joules(run.account.unrecorded_joules or 0.0)
            grams = Quantity(
                charge.amount, charge.amount - charge.uncertainty, charge.amount + charge.uncertainty + more
            )
            source = f"{signal.source}; {signal.basis}"
            return Emissions(grams, factor, source, pue, run.electricity.location, charge.stale_fraction)
    if electricity is None or electricity.intensity is None:
        return None
    begin, end = run.parts[0].begun_at_seconds, run.latest.until_seconds
    facts = electricity.intensity.facts
    charged = slice_of(electricity.intensity, begin, max(begin, end), energy.value, electricity.pue)
    kilowatt_hours = electricity.pue * kilowatt_hours_from_joules(1.0)
    low, high = (charged.mean * kilowatt_hours * (joules - energy.value) for joules in (energy.low, energy.high))
    grams = Quantity(charged.amount, charged.amount - charged.spread + low, charged.amount + charged.spread + high)
    stale = charged.stale_joules / energy.value if energy.value > 0 else 0.0
    return Emissions(grams, charged.mean, f"{facts.source}; {facts.basis}", electricity.pue, None, stale)


def sum_of(quantities: Sequence[Quantity | None]) -> Quantity | None:
    """Add up quantities; None if one of them is not known."""
    known = [quantity for quantity in quantities if quantity is not None]
    if len(known) < len(quantities):
        return None
    return Quantity(*(math.fsum(ends) for ends in zip(*known, strict=True)))


def sum_of_emissions(emissions: Sequence[Emissions | None]) -> Emissions | None:
    """Add up emissions; None if some of them are not known."""
    grams = sum_of([None if one is None else one.grams for one in emissions])
    known = [one for one in emissions if one is not None]
    if grams is None:
        return None
    weights = [one.grams.value / one.factor if one.factor else 0.0 for one in known]
    factor = grams.value / sum(weights) if sum(weights) > 0 else known[0].factor
    sources, pues = dict.fromkeys(one.source for one in known), [one.pue for one in known]
    stale = max(one.stale_fraction for one in known)
    return Emissions(grams, factor, "; ".join(sources), max(pues), known[0].location, stale)


def factor_text(emissions: Emissions) -> str:
    """Say by what the emissions follow from the energy."""
    pue = "without PUE" if emissions.pue == 1 else f"PUE {emissions.pue:g}"
    stale = f"; {emissions.stale_fraction:.0%} of it at the mean factor" if emissions.stale_fraction > 0 else ""
    return f"{pue}, at {number_text(emissions.factor)} g/kWh ({emissions.source}){stale}"
