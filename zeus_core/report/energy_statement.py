"""The energy statement of one or more runs: for a model card, a regulator's form, the appendix of a paper. Pure.

It has what these ask for: the Hub's `co2_eq_emissions`; the energy consumption by Annex XI, section 1, point 2 (e) of
Regulation (EU) 2024/1689 (AI Act); hardware, time, place, power and emission factor of the usual checklists for papers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from zeus_core.report.emissions import emissions_of
from zeus_core.report.run_lines import Runs, hardware, moment, remarks, run_line
from zeus_core.report.run_metrics import Quantity, energy_interval, sum_of
from zeus_core.report.run_sections import DATA_CENTRE, gaps
from zeus_core.report.run_text import markdown_table
from zeus_core.training.record.run_records import RunRecord
from zeus_core.units import amount_text, duration_text, energy_text, kilowatt_hours_from_joules, number_text

_METHODS = {
    "counted": "differences of the GPUs' own energy counters",
    "integrated": "an integral of power that was sampled",
    "estimated": "counters, and for gaps in them a model of what each activity draws",
    "lost": "not at all",
}


def statement_of(runs: Runs, location: str | None = None, training_type: str | None = None) -> dict[str, Any]:
    """Return the statement of some runs, taken together, in JSON types; what is not known is None.

    Args:
        runs: The runs with their names; at least one.
        location: Where the computers are; the places that the runs name if None.
        training_type: "pre-training" or "fine-tuning".
    """
    records = [run for _, run in runs]
    energies = [energy for run in records if (energy := energy_interval(run)) is not None]
    energy = sum_of(energies) if len(energies) == len(records) else None
    unrecorded = [run.account.unrecorded_joules for run in records]
    emissions = emissions_of(records)
    places = dict.fromkeys(run.electricity.location for run in records if run.electricity is not None)
    stated = {
        "energy_joules": _ends(energy),
        "energy_kwh": None if energy is None else _ends(energy.by(1 / kilowatt_hours_from_joules(1.0))),
        "confidence": 0.95,
        "at_least_joules": sum(run.account.total.measured_joules for run in records),
        "unrecorded_joules": None if None in unrecorded else sum(joules or 0.0 for joules in unrecorded),
        "redone_joules": sum(run.account.redone.measured_joules for run in records),
        "interruptions": sum(run.account.interruptions for run in records),
        "included": _included(records),
        "excluded": _excluded(records, 1.0 if emissions is None else emissions.pue),
        "method": _method(records),
        "hardware": "; ".join(dict.fromkeys(map(hardware, records))),
        "is_simulated": any(device.is_simulated for run in records for device in run.latest.devices),
        "gpu_hours": round(sum(map(_gpu_hours, records)), 4),
        "location": location or "; ".join(filter(None, places)) or None,
        "training_type": training_type,
        "begin": moment(min(run.parts[0].begun_at_seconds for run in records)),
        "end": moment(max(run.latest.until_seconds for run in records)),
        "co2_eq_grams": None if emissions is None else _ends(emissions.grams),
        "emission_factor_g_per_kwh": None if emissions is None else emissions.factor,
        "emission_factor_source": None if emissions is None else emissions.source,
        "pue": None if emissions is None else emissions.pue,
        "runs": [{"name": name, "run": run.run, "energy_joules": _ends(energy_interval(run))} for name, run in runs],
    }
    return {**stated, "co2_eq_emissions": _hub_fields(stated)}


def _ends(quantity: Quantity | None) -> dict[str, float | None] | None:
    if quantity is None:
        return None
    return {"value": quantity.value, "low": quantity.low, "high": quantity.high if quantity.high < math.inf else None}


def _gpu_hours(run: RunRecord) -> float:
    return run.account.total.seconds * sum(device.count for device in run.latest.devices) / 3600


def _included(runs: list[RunRecord]) -> list[str]:
    included = ["all GPUs of the run, from its beginning to its end, with evaluations, checkpoints and waiting"]
    if any(run.account.interruptions or len(run.parts) > 1 for run in runs):
        included.append("the parts before interruptions, and steps done again after them")
    if all(run.account.host.seconds > 0 for run in runs):
        joules = sum(run.account.host.measured_joules for run in runs)
        included.append(f"in the emissions, not in the energy: CPU packages and memory, {energy_text(joules)}")
    return included


def _excluded(runs: list[RunRecord], pue: float) -> list[dict[str, str]]:
    found = dict(gap for run in runs for gap in gaps(run))
    if pue > 1:
        found[DATA_CENTRE] = f"in the emissions by PUE {pue:g}, not in the energy"
    found["idle time before and after"] = "the run does not see it"
    return [{"what": what, "why": why} for what, why in found.items()]


def _method(runs: list[RunRecord]) -> str:
    methods = dict.fromkeys(_METHODS[run.account.total.measured.method] for run in runs)
    remarked = dict.fromkeys(filter(None, map(remarks, runs)))
    versions = dict.fromkeys(run.latest.versions.get("zeus-core", "unknown") for run in runs)
    return "; ".join([*methods, *remarked, f"zeus-core {', '.join(versions)}"])


def _hub_fields(stated: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return `co2_eq_emissions` of the Hub; None if the emissions are not known."""
    if stated["co2_eq_grams"] is None:
        return None
    how = "simulated" if stated["is_simulated"] else "measured"
    fields = {
        "emissions": round(stated["co2_eq_grams"]["value"], 3),
        "source": f"{how} by zeus-core: {_energy_text(stated)} of GPUs, {_factor_text(stated)}",
        "training_type": stated["training_type"],
        "geographical_location": stated["location"],
        "hardware_used": stated["hardware"],
    }
    return {name: value for name, value in fields.items() if value is not None}


def card_of(stated: Mapping[str, Any], runs: Runs) -> str:
    """Return the statement of some runs for people, with the metadata of a model card as the Hub reads them.

    Args:
        stated: Their statement.
        runs: The runs with their names.
    """
    because = "no carbon intensity was given (--intensity 380g/kWh)"
    if stated["energy_joules"] is None:
        because = "some of the energy was lost"
    spent = duration_text(sum(run.account.total.seconds for _, run in runs))
    rows = [
        ("energy", _energy_text(stated)),
        ("of it", _parts_text(stated)),
        ("inside the boundary", "; ".join(stated["included"])),
        ("outside the boundary", "; ".join(f"{gap['what']} ({gap['why']})" for gap in stated["excluded"])),
        ("method", stated["method"]),
        ("hardware", f"{stated['hardware']}; {number_text(sum(_gpu_hours(run) for _, run in runs))} GPU hours"),
        ("place", stated["location"] or "not stated"),
        ("time", f"{stated['begin']} to {stated['end']}; {spent} of computing"),
        ("emissions", f"not known: {because}" if stated["co2_eq_grams"] is None else _emissions_text(stated)),
    ]
    metadata = [f"# co2_eq_emissions: not known: {because}"]
    if (hub := stated["co2_eq_emissions"]) is not None:  # a text in JSON is one in YAML too
        metadata = ["co2_eq_emissions:", *(f"  {name}: {json.dumps(value)}" for name, value in hub.items())]
    texts = [
        "# Energy statement",
        markdown_table(("", ""), [row for row in rows if row[1]]),
        _purpose_text(stated),
        "## For a paper",
        "\n".join(run_line(run) for _, run in runs),
        "## For a model card",
        "\n".join(["```yaml", *metadata, "```"]),
    ]
    return "\n\n".join(texts)


def _purpose_text(stated: Mapping[str, Any]) -> str:
    if stated["is_simulated"]:
        return "**The GPUs are simulated: this is an example, and states the energy of nothing.**"
    if stated["energy_joules"] is None:
        return "**Some of the energy was lost: this states the least that was used, and not the energy.**"
    return (
        "The energy is the one that Annex XI, section 1, point 2 (e) of Regulation (EU) 2024/1689 (AI Act) asks "
        "for: measured, within the boundary above."
    )


def _energy_text(stated: Mapping[str, Any]) -> str:
    if stated["energy_joules"] is None:
        return f"at least {_kwh(stated['at_least_joules'])}"
    value, low, high = (stated["energy_joules"][end] for end in ("value", "low", "high"))
    text = f"{energy_text(value)} ({_kwh(value)})"
    if high is None:
        return f"{text}, at least {_kwh(low)}"
    return f"{text}; with 95 % between {_kwh(low)} and {_kwh(high)}"


def _kwh(joules: float) -> str:
    return f"{number_text(kilowatt_hours_from_joules(joules), 5)} kWh"


def _parts_text(stated: Mapping[str, Any]) -> str:
    texts = [] if len(stated["runs"]) == 1 else [f"{len(stated['runs'])} runs"]
    if stated["interruptions"]:
        joules = stated["unrecorded_joules"]
        most = "an amount nobody knows" if joules is None else f"at most {energy_text(joules)}"
        interruptions = f"{stated['interruptions']} interruptions"
        texts.append(f"{interruptions}, after whose last log {most} was taken, which the interval contains")
    redone = stated["redone_joules"]
    return "; ".join([*texts, *([f"{energy_text(redone)} for steps that were done twice"] if redone else [])])


def _emissions_text(stated: Mapping[str, Any]) -> str:
    value, low, high = (stated["co2_eq_grams"][end] for end in ("value", "low", "high"))
    unit, scale = ("kg", 1000.0) if value >= 1000 else ("g", 1.0)
    if high is None:
        return f"at least {number_text(low / scale)} {unit} CO2 equivalent; {_factor_text(stated)}"
    amount = amount_text(value / scale, max(high - value, value - low) / scale, unit)
    return f"{amount} CO2 equivalent; {_factor_text(stated)}"


def _factor_text(stated: Mapping[str, Any]) -> str:
    """Say by what the emissions follow from the energy."""
    pue = "without PUE" if stated["pue"] == 1 else f"PUE {stated['pue']:g}"
    return f"{pue}, at {number_text(stated['emission_factor_g_per_kwh'])} g/kWh ({stated['emission_factor_source']})"
