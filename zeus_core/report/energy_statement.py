"""The energy statement of one or more runs: for a model card, a regulator's form, the appendix of a paper. Pure.

It has what these ask for: the Hub's `co2_eq_emissions`; the energy consumption by Annex XI, section 1, point 2 (e) of
Regulation (EU) 2024/1689 (AI Act); hardware, time, place, power and emission factor of the usual checklists for papers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zeus_core.report.emissions import Emissions, emissions_of, factor_text
from zeus_core.report.run_lines import hardware, moment, remarks, run_line
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


@dataclass(frozen=True)
class Statement:
    """The energy of some runs, taken together.

    Attributes:
        runs: The runs, with their names.
        energy: The energy of all GPUs, with the interval that holds the truth; None if some was lost.
        emissions: The emissions; None if they are not known.
        training_type: "pre-training" or "fine-tuning"; None if that was not said.
        location: Where the computers are; None if that was not said.
    """

    runs: Sequence[tuple[str, RunRecord]]
    energy: Quantity | None
    emissions: Emissions | None
    training_type: str | None = None
    location: str | None = None

    def fields(self) -> dict[str, Any]:
        """Return the statement for programs, in JSON types."""
        energy, emissions = self.energy, self.emissions
        return {
            "energy_joules": _ends(energy),
            "energy_kwh": None if energy is None else _ends(energy.by(1 / kilowatt_hours_from_joules(1.0))),
            "confidence": 0.95,
            "at_least_joules": sum(run.account.total.measured_joules for _, run in self.runs),
            "unrecorded_joules": _unrecorded(self.runs),
            "interruptions": sum(run.account.interruptions for _, run in self.runs),
            "included": self._included(),
            "excluded": [{"what": what, "why": why} for what, why in self._excluded()],
            "method": self._method(),
            "hardware": self._hardware(),
            "gpu_hours": round(sum(map(_gpu_hours, (run for _, run in self.runs))), 4),
            "location": self.location,
            "training_type": self.training_type,
            "begin": moment(min(run.parts[0].begun_at_seconds for _, run in self.runs)),
            "end": moment(max(run.latest.until_seconds for _, run in self.runs)),
            "co2_eq_grams": None if emissions is None else _ends(emissions.grams),
            "emission_factor_g_per_kwh": None if emissions is None else emissions.factor,
            "emission_factor_source": None if emissions is None else emissions.source,
            "pue": None if emissions is None else emissions.pue,
            "co2_eq_emissions": self.hub_fields(),
            "runs": [
                {"name": name, "run": run.run, "energy_joules": _ends(energy_interval(run))} for name, run in self.runs
            ],
        }

    def hub_fields(self) -> dict[str, Any] | None:
        """Return `co2_eq_emissions` of the Hub; None if the emissions are not known."""
        if self.emissions is None:
            return None
        emissions, how = self.emissions, "simulated" if self._is_simulated else "measured"
        fields = {
            "emissions": round(emissions.grams.value, 3),
            "source": f"{how} by zeus-core: {self._energy_text()} of GPUs, {factor_text(emissions)}",
            "training_type": self.training_type,
            "geographical_location": self.location,
            "hardware_used": self._hardware(),
        }
        return {name: value for name, value in fields.items() if value is not None}

    def to_markdown(self) -> str:
        """Return the statement for people, with the metadata of a model card as the Hub reads them."""
        hub = self.hub_fields()
        # A text in JSON is one in YAML too.
        lines = [f"  {name}: {json.dumps(value)}" for name, value in ({} if hub is None else hub).items()]
        metadata = ["co2_eq_emissions:", *lines] if hub else [f"# co2_eq_emissions: not known: {self._unknown_because}"]
        rows = [
            ("energy of the training", self._energy_text()),
            ("of it", self._parts_text()),
            ("inside the boundary", "; ".join(self._included())),
            ("outside the boundary", "; ".join(f"{what} ({why})" for what, why in self._excluded())),
            ("method", self._method()),
            ("hardware", f"{self._hardware()}; {number_text(sum(_gpu_hours(run) for _, run in self.runs))} GPU hours"),
            ("place", self.location or "not stated"),
            ("time", self._time_text()),
            ("emissions", f"not known: {self._unknown_because}" if self.emissions is None else self._emitted()),
        ]
        texts = [
            "# Energy statement",
            markdown_table(("", ""), [row for row in rows if row[1]]),
            self._purpose_text(),
            "## For a paper",
            "\n".join(run_line(run) for _, run in self.runs),
            "## For a model card",
            "\n".join(["```yaml", *metadata, "```"]),
        ]
        return "\n\n".join(texts)

    def _purpose_text(self) -> str:
        if self._is_simulated:
            return "**The GPUs are simulated: this is an example, and states the energy of nothing.**"
        if self.energy is None:
            return "**Some of the energy was lost: this states the least that was used, and not the energy.**"
        return (
            "The energy is the one that Annex XI, section 1, point 2 (e) of Regulation (EU) 2024/1689 (AI Act) asks "
            "for: measured, within the boundary above."
        )

    @property
    def _unknown_because(self) -> str:
        """Why the emissions are not known."""
        if self.energy is None:
            return "some of the energy was lost"
        return "no carbon intensity was given (--intensity 380g/kWh)"

    @property
    def _is_simulated(self) -> bool:
        return any(device.is_simulated for _, run in self.runs for device in run.latest.devices)

    def _energy_text(self) -> str:
        if self.energy is None:
            return f"at least {_kwh(sum(run.account.total.measured_joules for _, run in self.runs))}"
        value, low, high = self.energy
        text = f"{energy_text(value)} ({_kwh(value)})"
        if high == math.inf:
            return f"{text}, at least {_kwh(low)}"
        return f"{text}; with 95 % between {_kwh(low)} and {_kwh(high)}"

    def _parts_text(self) -> str:
        texts = [] if len(self.runs) == 1 else [f"{len(self.runs)} runs"]
        killed = sum(run.account.interruptions for _, run in self.runs)
        if killed:
            joules = _unrecorded(self.runs)
            most = "an amount nobody knows" if joules is None else f"at most {energy_text(joules)}"
            texts.append(f"{killed} interruptions, after whose last log {most} was taken, which the interval contains")
        redone = sum(run.account.redone.measured_joules for _, run in self.runs)
        return "; ".join([*texts, *([f"{energy_text(redone)} for steps that were done twice"] if redone else [])])

    def _included(self) -> list[str]:
        included = ["all GPUs of the training, from its begin to its end, with evaluations, checkpoints and waiting"]
        if any(run.account.interruptions or len(run.parts) > 1 for _, run in self.runs):
            included.append("the parts before interruptions, and steps done again after them")
        if all(run.account.host.seconds > 0 for _, run in self.runs):
            joules = sum(run.account.host.measured_joules for _, run in self.runs)
            included.append(f"in the emissions, not in the energy: CPU packages and memory, {energy_text(joules)}")
        return included

    def _excluded(self) -> list[tuple[str, str]]:
        found = dict.fromkeys(gap for _, run in self.runs for gap in gaps(run))
        if self.emissions is not None and self.emissions.pue > 1:
            in_emissions = f"in the emissions by PUE {self.emissions.pue:g}, not in the energy"
            found = {(what, in_emissions if what == DATA_CENTRE else why): None for what, why in found}
            found.setdefault((DATA_CENTRE, in_emissions))
        return [*found, ("idle time before and after", "the training does not see it")]

    def _method(self) -> str:
        methods = dict.fromkeys(run.account.total.measured.method for _, run in self.runs)
        versions = dict.fromkeys(run.latest.versions.get("zeus-core", "unknown") for _, run in self.runs)
        remarked = dict.fromkeys(text for _, run in self.runs if (text := remarks(run)))
        return "; ".join([*(_METHODS[method] for method in methods), *remarked, f"zeus-core {', '.join(versions)}"])

    def _hardware(self) -> str:
        return "; ".join(dict.fromkeys(hardware(run) for _, run in self.runs))

    def _time_text(self) -> str:
        first = min(run.parts[0].begun_at_seconds for _, run in self.runs)
        last = max(run.latest.until_seconds for _, run in self.runs)
        spent = duration_text(sum(run.account.total.seconds for _, run in self.runs))
        return f"{moment(first)} to {moment(last)}; {spent} of training"

    def _emitted(self) -> str:
        assert self.emissions is not None
        grams = self.emissions.grams
        unit, scale = ("kg", 1000.0) if grams.value >= 1000 else ("g", 1.0)
        off = max(grams.high - grams.value, grams.value - grams.low)
        amount = amount_text(grams.value / scale, off / scale if math.isfinite(off) else 0.0, unit)
        return f"{amount} CO2 equivalent; {factor_text(self.emissions)}"


def statement_of(
    runs: Sequence[tuple[str, RunRecord]], location: str | None = None, training_type: str | None = None
) -> Statement:
    """Make the statement of some runs.

    Args:
        runs: The runs with their names; at least one.
        location: Where the computers are; the places that the runs name if None.
        training_type: "pre-training" or "fine-tuning".
    """
    records = [run for _, run in runs]
    energies = [energy for run in records if (energy := energy_interval(run)) is not None]
    energy = sum_of(energies) if len(energies) == len(records) else None
    places = dict.fromkeys(run.electricity.location for run in records if run.electricity is not None)
    place = location or "; ".join(filter(None, places)) or None
    return Statement(runs, energy, emissions_of(records), training_type, place)


def _unrecorded(runs: Sequence[tuple[str, RunRecord]]) -> float | None:
    amounts = [run.account.unrecorded_joules for _, run in runs]
    return None if None in amounts else sum(amount for amount in amounts if amount is not None)


def _gpu_hours(run: RunRecord) -> float:
    return run.account.total.seconds * sum(device.count for device in run.latest.devices) / 3600


def _ends(quantity: Quantity | None) -> dict[str, float | None] | None:
    if quantity is None:
        return None
    return {"value": quantity.value, "low": quantity.low, "high": quantity.high if quantity.high < math.inf else None}


def _kwh(joules: float) -> str:
    return f"{number_text(kilowatt_hours_from_joules(joules), 5)} kWh"
