"""Sums of a catalogue for people: the table of `runs sum`, and that of the page."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any

from zeus_core._identity import printable
from zeus_core.errors import UsageError
from zeus_core.exporter.jobs import MOST_JOBS
from zeus_core.exporter.prometheus import check_prometheus_client
from zeus_core.runs._counting import Counted, Gain, by_currency, sums
from zeus_core.units import number_text

if TYPE_CHECKING:
    import pyarrow

    from zeus_core.electricity import Electricity

COLUMNS = ("runs", "GPU hours", "kWh", "Wh/Mtoken", "kgCO2e", "cost", "saved kWh", "controlled", "idle kWh", "low use")
"""The headings of `cells`."""

RUN_METRICS = {
    "zeus_runs_energy_joules": ("Energy of the runs in a catalogue.", "millijoules"),
    "zeus_runs_saved_joules": ("Energy that the settings chosen in these runs have saved.", "saved_millijoules"),
    "zeus_runs_saved_uncertainty_joules": ("How far the saving can be off.", "off_saved_millijoules"),
}
"""The metrics of sums, each with a sentence and its amount: gauges, as later files of runs correct earlier ones."""

_MILLIJOULES_OF_A_KWH = 3_600_000_000
_ALIKE = 1.01  # an interval is as wide in both directions up to this ratio
_MOST_DIGITS = 4  # sensors are known to a few percent
_DIME = 0.1  # money is shown in cents
NO_NAME = "(none)"
"""The name of a group that has none, as of runs without a user."""

GAIN_COLUMNS = ("run", "kWh", "of its", "user", "job", "began", "GPU", "why")
"""The headings of `gain_cells`."""

_SHOWN_CHARACTERS = 12  # of the name of a run, by which `runs show` finds it


def grouped_sums(rows: pyarrow.Table, known: Counted, by: str | None, kept: Any) -> dict[str, dict[str, Any]]:
    """Add up what counts, by group; money by currency, as "cost".

    Args:
        rows: The rows.
        known: Which of them count.
        by: One of `GROUPS`, or "tag:NAME"; one group of all if None.
        kept: The rows to add up; all if None.

    Raises:
        UsageError: A sum is too large.
    """
    groups: dict[str, dict[str, Any]] = {**sums(rows, known, by, kept)}
    names = ("millionths", "off_millionths", "priced_millijoules")
    costs = {unit: sums(rows, known, by, mask, names) for unit, mask in by_currency(rows, kept).items()}
    for name, amounts in groups.items():
        amounts["cost"] = {
            unit: [found[name]["millionths"], found[name]["off_millionths"]]
            for unit, found in costs.items()
            if name in found and found[name]["priced_millijoules"]
        }
        del amounts["millionths"], amounts["off_millionths"]  # of all currencies
    return groups


def cells(name: str, amounts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a name, or that there is none, and the cells of `COLUMNS`; what is not known is empty, not 0."""
    per_token = ""
    if amounts["tokens"]:
        scale = 3.6 * amounts["tokens"]  # in Wh per million tokens
        per_token = number(amounts["token_millijoules"] / scale, amounts["off_token_millijoules"] / scale)
    return (
        name or NO_NAME,
        f"{amounts['runs']:,}",
        hours(amounts, "gpu"),
        kwh_text(amounts),
        per_token,
        number(amounts["milligrams"] / 1e6, amounts["off_milligrams"] / 1e6) if amounts["charged_millijoules"] else "",
        ", ".join(f"{number(each / 1e6, off / 1e6, _DIME)} {unit}" for unit, (each, off) in amounts["cost"].items()),
        number(kwh(amounts["saved_millijoules"]), kwh(amounts["off_saved_millijoules"]))
        if amounts["saved_millijoules"]
        else "",
        f"{amounts['controlled'] / amounts['runs']:.0%}" if amounts["runs"] else "",
        number(kwh(amounts["idle_millijoules"])),
        f"{amounts['low_gpu_milliseconds'] / amounts['seen_gpu_milliseconds']:.0%}"
        if amounts["seen_gpu_milliseconds"]
        else "",
    )


def prometheus_text(by: str | None, groups: Mapping[str, Mapping[str, Any]]) -> str:
    """Return sums as Prometheus reads them, of which each group is a series of each metric.

    Raises:
        UsageError: There are more groups than an exporter has jobs, or the library is missing.
    """
    check_prometheus_client()
    import prometheus_client

    if len(groups) > MOST_JOBS:
        raise UsageError(
            f"--by {by} makes {len(groups):,} series of each metric; Prometheus gets {MOST_JOBS:,} at most"
        )
    registry = prometheus_client.CollectorRegistry()
    label = re.sub(r"\W", "_", "job_id" if by == "job" else by or "", flags=re.ASCII)  # "tag:team" is tag_team
    for metric, (sentence, amount) in RUN_METRICS.items():
        gauge = prometheus_client.Gauge(metric, sentence, [label] if by else [], registry=registry)
        for name, amounts in groups.items():
            (gauge.labels(printable(name)) if by else gauge).set(amounts[amount] / 1e3)
    return prometheus_client.generate_latest(registry).decode()


def kwh_text(amounts: Mapping[str, Any]) -> str:
    """Return the kWh of a sum, and how far they can be off: upwards also by what was not recorded, if that is known."""
    value, low = kwh(amounts["millijoules"]), kwh(amounts["off_millijoules"])
    more = low + kwh(amounts["more_millijoules"])
    if amounts["unbounded"] or amounts["lost_gpu_milliseconds"]:
        return f"{number(value)} (at least {number(value - low)})"
    return _with_ends(value, low, more)


def _with_ends(value: float, low: float, more: float) -> str:
    """Format a number that can be off by `low` downwards, and by `more` upwards."""
    if more <= _ALIKE * low or more < 10.0**-_MOST_DIGITS * abs(value):
        return number(value, low)
    decimals = max(1 - math.floor(math.log10(more)), 0)
    return f"{value:,.{decimals}f} ({value - low:,.{decimals}f} to {value + more:,.{decimals}f})"


def hours(amounts: Mapping[str, Any], kind: str) -> str:
    """Return the GPU hours of a sum of a kind: "gpu" for all, with their interval; "seen", "low", "lost", "shared"."""
    if kind != "gpu":
        return number(amounts[f"{kind}_gpu_milliseconds"] / 3.6e6)
    return _with_ends(amounts["gpu_milliseconds"] / 3.6e6, 0.0, amounts.get("more_gpu_milliseconds", 0) / 3.6e6)


def notes(name: str, amounts: Mapping[str, Any]) -> list[str]:
    """Return what a sum lacks, in sentences."""
    where = printable(name or NO_NAME)
    found = []
    if amounts["shared_gpu_milliseconds"]:
        shared = f"{hours(amounts, 'shared')} GPU hours and {number(kwh(amounts['shared_millijoules']))} kWh"
        runs = amounts["overlapping_runs"]
        many = f"{runs:,} run{'s overlap' if runs > 1 else ' overlaps'} with others on a GPU"
        found.append(f"{where}: {many}; {shared} of them count in the others")
    if amounts["lost_gpu_milliseconds"]:
        found.append(f"{where}: the energy of {hours(amounts, 'lost')} GPU hours was not measured")
    if amounts["milligrams"] and amounts["charged_millijoules"] < amounts["millijoules"]:
        found.append(f"{where}: the emissions are of {number(kwh(amounts['charged_millijoules']))} kWh only")
    if amounts["cost"] and amounts["priced_millijoules"] < amounts["millijoules"]:
        found.append(f"{where}: the cost is of {number(kwh(amounts['priced_millijoules']))} kWh only")
    return found


def gain_cells(gain: Gain, zone: tzinfo) -> tuple[str, ...]:
    """Return the cells of `GAIN_COLUMNS`."""
    name, began = gain.run[:_SHOWN_CHARACTERS], moment_text(gain.begin_ms, zone)[:10]
    energy, share = number(kwh(gain.millijoules)), f"{gain.share:.0%}"
    return name, energy, share, gain.user or NO_NAME, gain.job, began, gain.gpu, gain.why


def moment_text(milliseconds: int, zone: tzinfo) -> str:
    """Return a moment, in milliseconds since 1970, by ISO 8601."""
    return datetime.fromtimestamp(milliseconds / 1e3, zone).isoformat(timespec="seconds")


def charged_at(electricity: Electricity) -> str:
    """Return a sentence on what energy is charged at, in place of what runs have recorded."""
    signals = [
        f"{number_text(each.facts.average)} {each.facts.unit} ({each.facts.source})" for each in electricity.signals
    ]
    pue = f", PUE {number_text(electricity.pue)}"
    return f"All energy is charged at {' and '.join(signals)}{pue}, in place of what runs have recorded"


def kwh(millijoules: int) -> float:
    """Convert whole millijoules to kWh."""
    return millijoules / _MILLIJOULES_OF_A_KWH


def number(value: float, off: float = 0.0, finest: float = 0.0) -> str:
    """Format a number for people, with thousands apart, as sites have many of them.

    Args:
        value: The number.
        off: How far it can be off, which is shown unless rounding hides it: sums of counters have seven digits.
        finest: The least uncertainty by which digits are shown.
    """
    if max(off, finest) <= 0:
        return f"{value:,.0f}" if abs(value) >= 1000 else number_text(value)
    decimals = max(1 - math.floor(math.log10(max(off, finest))), 0)
    if value:
        size = math.floor(math.log10(abs(value)))
        decimals = min(decimals, max(_MOST_DIGITS - 1 - size, 0))
        if off < abs(value):
            decimals = max(decimals, -size)  # a known number is never 0
    return f"{value:,.{decimals}f}" + (f" ±{off:,.{decimals}f}" if round(off, decimals) else "")
