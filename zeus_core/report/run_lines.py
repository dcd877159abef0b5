"""The numbers and facts of a run as text: the same words in every report. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from zeus_core.events import Activity
from zeus_core.report.run_metrics import Quantity, energy_interval, metrics_of, unit_of
from zeus_core.training.activities.tally import Tally
from zeus_core.training.record.run_records import REMARKS, RunRecord
from zeus_core.units import amount_text, duration_text, energy_text, number_text

Runs = Sequence[tuple[str, RunRecord]]
"""Runs with their names."""


def quantity_text(name: str, quantity: Quantity, run: RunRecord) -> str:
    """Format a number of a run with its uncertainty and unit.

    Args:
        name: The name of the number, as in `RUN_METRICS`.
        quantity: The number.
        run: The run.
    """
    unit, off = unit_of(name, run), quantity.value - quantity.low
    if quantity.high - quantity.value > 1.01 * off:  # what killed parts may have taken is one-sided
        most = energy_text(quantity.high) if quantity.high < math.inf else "nobody knows how much"
        is_energy = unit == "J"
        return f"{energy_text(quantity.low)} to {most}" if is_energy else f"at least {number_text(quantity.low)} {unit}"
    if unit == "J":
        return energy_text(quantity.value, off)
    if unit == "s":
        return duration_text(quantity.value)
    if name == "saving_fraction":
        return f"{quantity.value:.1%} ±{100 * off:.1f}"
    return amount_text(quantity.value, off, unit) if unit else f"{quantity.value:,.0f}"


def energy_line(run: RunRecord) -> str:
    """Return the energy of a run: "1.234 ±0.005 MJ"."""
    interval = energy_interval(run)
    if interval is None:
        return f"at least {energy_text(run.account.total.measured_joules)}"
    return energy_text(interval.value, run.account.total.measured.uncertainty_joules)


def energy_and_power(tally: Tally) -> tuple[str, str]:
    """Return energy and mean power of a part of a run."""
    if tally.energy_joules is None:
        return f"at least {energy_text(tally.measured_joules)}, {duration_text(tally.lost_seconds)} lost", ""
    watts = tally.power_watts
    energy = energy_text(tally.energy_joules, tally.measured.uncertainty_joules)
    return energy, "" if watts is None else f"{watts:.0f} W"


def unrecorded_line(run: RunRecord) -> str:
    """Return what killed parts may have taken beyond the energy that is known; empty if there are none."""
    joules = run.account.unrecorded_joules
    if joules is None:
        return "and an amount nobody knows after the last logs of interrupted parts"
    return f"and at most {energy_text(joules)} after the last logs of interrupted parts" if joules > 0 else ""


def steps_text(run: RunRecord) -> str:
    """Return how many steps a run had: those of a command are not among its parts."""
    return f"{run.latest.step} steps" if run.latest.step else "no steps counted"


def saving_line(run: RunRecord) -> str | None:
    """Return the saving with its confidence; None if there was no search, or nothing was chosen."""
    record = run.latest.search_record()
    comparison = None if record is None or record.result is None else record.result.comparison
    return None if comparison is None else comparison.saving_text


def activities_in_order(run: RunRecord) -> list[tuple[Activity, Tally]]:
    """Return the activities that took time, in order."""
    return [(activity, tally) for activity, tally in run.account.in_order() if tally.seconds > 0]


def remarks(run: RunRecord) -> str:
    """Return the remarks on the numbers of each part of a run, such as why energy was lost."""
    return "; ".join(dict.fromkeys(part.results[REMARKS] for part in run.parts if REMARKS in part.results))


def moment(seconds: float) -> str:
    """Format a time since 1970: "2026-03-02 08:00:00 UTC"."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):  # a clock that is not set
        return f"{seconds:.0f} s since 1970"


def hardware(run: RunRecord) -> str:
    """Return the GPUs of a run: "8 x NVIDIA A100-SXM4-80GB"."""
    counts = Counter[str]()
    for device in run.latest.devices:
        counts[device.name] += device.count
    return ", ".join(f"{count} x {name}" for name, count in sorted(counts.items())) or "no GPU"


def differences(run: RunRecord, baseline: RunRecord) -> list[str]:
    """Return what makes two runs hard to compare: their GPUs, and the facts of their work that both have."""
    own, other = ({"GPUs": hardware(each), **each.latest.work} for each in (run, baseline))
    return [
        f"{name.replace('_', ' ')}: {own[name]} against {other[name]}"
        for name in own
        if name in other and own[name] != other[name]
    ]


def run_line(run: RunRecord) -> str:
    """Return a sentence for a paper."""
    metrics = metrics_of(run)
    texts = {name: quantity_text(name, quantity, run) for name, quantity in metrics.items()}
    what = f"Training for {run.latest.step} steps" if run.latest.step else "The run"
    text = " ".join(filter(None, (what, "took", energy_line(run), unrecorded_line(run), "on", hardware(run))))
    power = f", mean power {texts['power_w']}" if "power_w" in texts else ""
    text += f" ({duration_text(run.account.total.seconds)}{power})"
    unit = next((unit for unit in ("token", "sample") if f"energy_per_{unit}_j" in texts), None)
    text += "" if unit is None else f", {texts[f'energy_per_{unit}_j']} per {unit}"
    text += f"; the chosen setting saved {saving_line(run)}" if "saving_fraction" in texts and saving_line(run) else ""
    text += f"; {texts['co2_eq_g']} CO2 equivalent" if "co2_eq_g" in texts else ""
    how = "simulated by" if any(device.is_simulated for device in run.latest.devices) else "measured by"
    return f"{text}; GPUs only, {how} zeus-core {run.latest.versions.get('zeus-core', '')}".rstrip() + "."
