"""The rows of a run in a catalogue, in whole numbers, so that sums of a million runs are exact. Pure.

A run has one row for the run, which no device has, and one for each device in each of its parts. With E the energy of
the account of the run and e_i that of its devices, the row of the run holds E - sum(e_i): what earlier parts, of which
the file has no more, and ranks that had not reported yet have taken. So the rows of a run add up to its account.
"""

from __future__ import annotations

import json
import math
import secrets
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from zeus_core._sysfs import is_place
from zeus_core.errors import UsageError
from zeus_core.events import Activity
from zeus_core.ports.run_identity import RunIdentity
from zeus_core.training.activities.tally import Tally
from zeus_core.training.record.power_series import joules_at
from zeus_core.training.record.run_records import FIXED_SETTINGS, KEEP_SECONDS, DeviceRecord, PartRecord, RunRecord
from zeus_core.units import kilowatt_hours_from_joules, number_text

TEXTS = ("run", "user", "job", "project", "cluster", "namespace", "tags", "gpu", "device", "state", "currency")
"""The columns that are text."""

AMOUNTS = (
    *("millijoules", "off_millijoules", "more_millijoules", "unbounded"),
    *("lost_gpu_milliseconds", "gpu_milliseconds", "more_gpu_milliseconds"),
    *("training_millijoules", "token_millijoules", "off_token_millijoules", "tokens", "controlled"),
    *("idle_millijoules", "wasted_millijoules", "saved_millijoules", "off_saved_millijoules"),
    *("redone_millijoules", "seen_gpu_milliseconds", "low_gpu_milliseconds", "low_millijoules"),
    *("milligrams", "off_milligrams", "millionths", "off_millionths", "charged_millijoules", "priced_millijoules"),
)
"""The columns that are added up: energy, how far it can be off, what killed parts may have taken beyond it, and whether
nobody knows that; time of GPUs whose energy was lost, all, and how long killed parts may have gone on; energy of
training steps, and that of runs that count tokens; tokens; runs with a setting searched or fixed; energy idle and
between steps, and with that of steps done twice; energy saved; that of steps done twice; time of GPUs whose power over
time is recorded, and its time and energy at low power (`LOW_POWER_FRACTION`); emissions; money; the energy of which
these two are known."""

LOW_POWER_FRACTION = 0.4
"""Low power is below this share of the limit: `blocking_power_watts` of the seven presets is 21 to 40 % of it."""

MOMENTS = ("record", "until_ms", "begin_ms", "end_ms", "limit_milliwatts", "source")
"""The other whole numbers: one at random for each time a run was added; the milliseconds since 1970; the power limit of
a device, 0 if it is unknown; of a run, the mark of its file, by which it is found to be unchanged."""

POWER = "power"
"""The column of the millijoules that a device had taken until each inner end of `_SLICES` equal parts of its time."""

_NOTHING: dict[str, Any] = dict.fromkeys(TEXTS, "") | dict.fromkeys((*MOMENTS, *AMOUNTS), 0) | {POWER: None}
_SLICES = 16  # an overlap of jobs is cut within one of them, where the power limit bounds how far the energy can be off
_MOST = 2**53  # of an amount of a row, as 2.5 GWh: exact as a float, too
_MOST_WATTS = 10_000.0  # of a GPU; the largest of 2026 draw 1,400 W
_MOST_GRAMS = 20_000.0  # of a kWh; lignite emits 1,200 g
_DAY_MS = 86_400_000  # by which the clocks of two machines may differ


def rows_of(run: RunRecord, now_seconds: float, user: str | None = None) -> list[dict[str, Any]]:
    """Return the rows of a run.

    Args:
        run: The run.
        now_seconds: The clock, in seconds since 1970.
        user: The user whose run it is; as the run says if None. A run without an identity stays without one.

    Raises:
        UsageError: Its times or its numbers cannot be true.
        ValueError: A text is none.
    """
    record, until_ms = secrets.randbits(62), _milliseconds(run.latest.until_seconds)
    for part in run.parts:
        begin_ms, end_ms = _milliseconds(part.begun_at_seconds), _milliseconds(part.until_seconds)
        if not 0 < begin_ms <= end_ms <= _milliseconds(now_seconds) + _DAY_MS:
            raise UsageError(
                f"a part of it lasts from {part.begun_at_seconds:.0f} s to {part.until_seconds:.0f} s after 1970, "
                "which is backwards or in the future: a clock was off"
            )
    _check_numbers(run)
    shared = {"run": run.run, "record": record, "until_ms": until_ms}
    gone_on = [_seconds_gone_on(run, number, now_seconds) for number in range(len(run.parts))]
    rows = [
        {**_NOTHING, **shared, **_names(part.identity, user), **_device_row(run, part, host, device, number)}
        | {"more_gpu_milliseconds": _whole_above(1e3 * device.count * seconds)}
        for part, seconds in zip(run.parts, gone_on, strict=True)
        for number, (host, device) in enumerate(_devices(part))
    ]
    row = {**_NOTHING, **shared, **_names(run.latest.identity, user), **_run_row(run)}
    row["millijoules"] = _whole(1e3 * run.account.total.measured_joules) - sum(each["millijoules"] for each in rows)
    off_millijoules = _whole_above(1e3 * (run.account.total.measured.uncertainty_joules or 0.0))
    row["off_millijoules"] = max(off_millijoules - sum(each["off_millijoules"] for each in rows), 0)
    lost_milliseconds = _whole_above(1e3 * run.account.total.lost_seconds)
    row["lost_gpu_milliseconds"] = max(lost_milliseconds - sum(each["lost_gpu_milliseconds"] for each in rows), 0)
    if run.latest.state == "running":
        more_joules = _most_joules_of(run.latest, gone_on[-1])
        row["more_millijoules"] += _whole_above(1e3 * (more_joules or 0.0))
        row["unbounded"] |= more_joules is None
    for name in TEXTS:
        "".join(each[name] for each in (row, *rows)).encode()  # JSON can hold text that is none, as half a character
    return [row, *rows]


def _check_numbers(run: RunRecord) -> None:
    """Check the signs and the bounds of all numbers that are added up.

    Raises:
        UsageError: A number cannot be true.
    """
    account, gpus = run.account, max(sum(device.count for device in part.devices) for part in run.parts)
    most_joules = _MOST_WATTS * max(gpus, 1) * (account.total.seconds + 1.0)
    most_grams = _MOST_GRAMS * kilowatt_hours_from_joules(account.total.measured_joules + account.host.measured_joules)
    checks = [
        ("seconds", account.total.seconds, 0.0, math.inf),
        ("energy_joules", account.total.measured_joules, 0.0, most_joules),
        ("redone", account.redone.measured_joules, 0.0, most_joules),
        ("samples", account.samples, 0, _MOST),
        ("tokens", account.tokens, 0, _MOST),
        ("interruptions", account.interruptions, 0, _MOST),
        ("unrecorded_joules", account.unrecorded_joules or 0.0, 0.0, _MOST),
    ]
    for tally in (account.total, *account.activities.values()):  # of an activity, a regression may give less than 0
        off_joules = tally.measured.uncertainty_joules or 0.0
        checks.append(("uncertainty_joules", off_joules, 0.0, _MOST))
        checks.append(("energy_joules of an activity", tally.measured_joules, -off_joules - 1.0, most_joules))
        checks.append(("lost_seconds", tally.lost_seconds, 0.0, _MOST))
    for unit, charge in account.charges.items():
        least, most = (0.0, most_grams + 1.0) if unit == "g" else (-_MOST, _MOST)
        checks += [
            (f"the amount in {unit}", charge.amount, least, most),
            ("uncertainty", charge.uncertainty, 0.0, _MOST),
        ]
    for part in run.parts:
        for device in part.devices:
            energy = device.energy or Tally()
            most_joules = _MOST_WATTS * device.count * (part.until_seconds - part.begun_at_seconds + 1.0)
            checks += [
                ("count", device.count, 1, 1e6),
                ("limit_watts", device.limit_watts or 0.0, 0.0, _MOST_WATTS),
                ("energy_joules of a GPU", energy.measured_joules, 0.0, most_joules),
                ("uncertainty_joules of a GPU", energy.measured.uncertainty_joules or 0.0, 0.0, _MOST),
                ("lost_seconds of a GPU", energy.lost_seconds, 0.0, _MOST),
            ]
    for name, value, least, most in checks:
        if not least <= value <= most:
            raise UsageError(f"{name} is {value:g}, which is not between {least:g} and {most:g}")


def _seconds_gone_on(run: RunRecord, number: int, now_seconds: float) -> float:
    """Return how long a part that has not ended may have gone on after its file was written; 0 for one that has.

    It has gone on, or was killed. Its file is written at the first log after `KEEP_SECONDS`, and at checkpoints: from
    one of these to the next, it takes no longer than it has taken until the first.
    """
    part, is_latest = run.parts[number], number == len(run.parts) - 1
    if part.state != "running" and (is_latest or part.state != "interrupted"):
        return 0.0
    until = now_seconds if is_latest else run.parts[number + 1].begun_at_seconds
    most_seconds = part.until_seconds - part.begun_at_seconds + KEEP_SECONDS
    return min(max(until - part.until_seconds, 0.0), most_seconds)


def _most_joules_of(part: PartRecord, seconds: float) -> float | None:
    """Return the most that the GPUs of a part take in some time; None if a limit is not known."""
    limits = [None if each.limit_watts is None else each.count * each.limit_watts for each in part.devices]
    return None if None in limits else seconds * math.fsum(each or 0.0 for each in limits)


def _names(identity: RunIdentity | None, user: str | None) -> dict[str, str]:
    if identity is None:
        return {}
    names = {name: getattr(identity, name) for name in ("user", "job", "project", "cluster", "namespace")}
    names |= {} if user is None else {"user": user}
    return {**names, "tags": json.dumps(dict(identity.tags), sort_keys=True) if identity.tags else ""}


def _devices(part: PartRecord) -> Iterator[tuple[str, DeviceRecord]]:
    return ((rank.host, device) for rank in part.ranks for device in rank.devices)


def _device_row(run: RunRecord, part: PartRecord, host: str, device: DeviceRecord, number: int) -> dict[str, Any]:
    begin_ms, end_ms = _milliseconds(part.begun_at_seconds), _milliseconds(part.until_seconds)
    # Two nodes may have one name; devices have not, but some are alike on all nodes, and several have none.
    name = f"{host}/{device.uuid}" if device.is_simulated or is_place(device.uuid) else device.uuid
    energy = Tally() if device.energy is None else device.energy
    seen, low, low_joules = _at_low_power(part, device)
    return {
        "gpu": device.name,
        "device": name if device.uuid else f"{run.run}/{part.name}/{number}",
        "state": part.state,
        "begin_ms": begin_ms,
        "end_ms": end_ms,
        "gpu_milliseconds": (end_ms - begin_ms) * device.count,
        "lost_gpu_milliseconds": _whole_above(1e3 * energy.lost_seconds),
        "millijoules": _whole(1e3 * energy.measured_joules),
        "off_millijoules": _whole_above(1e3 * (energy.measured.uncertainty_joules or 0.0)),
        "seen_gpu_milliseconds": _whole(1e3 * seen),
        "low_gpu_milliseconds": _whole(1e3 * low),
        "low_millijoules": _whole(1e3 * low_joules),
        "limit_milliwatts": _whole(1e3 * (device.limit_watts or 0.0)),
        POWER: _power(part, device, _whole(1e3 * energy.measured_joules)),
    }


def _power(part: PartRecord, device: DeviceRecord, millijoules: int) -> list[int] | None:
    """Return the column `POWER`: the recorded points, so stretched that they end with the energy; None without any."""
    points, seconds = device.power, part.until_seconds - part.begun_at_seconds
    if device.count != 1 or len(points) < 2 or not points[-1].joules > 0:
        return None
    scale, found = millijoules / points[-1].joules, list[int]()
    for number in range(1, _SLICES):
        until = scale * joules_at(points, number / _SLICES * seconds)
        found.append(min(max(_whole(until), found[-1] if found else 0), millijoules))
    return found


def _at_low_power(part: PartRecord, device: DeviceRecord) -> tuple[float, float, float]:
    """Return the GPU seconds whose power over time is recorded, and of these the seconds and joules at low power.

    Power is the mean between two recorded points, of which a part has 120 to 240. Where a part has those of all its
    GPUs together, each GPU has its share of them.
    """
    points, count = device.power or part.power, device.count
    devices = [device] if device.power else part.devices
    limit_watts = sum(each.count * (each.limit_watts or 0.0) for each in devices)
    if len(points) < 2 or not all(each.limit_watts for each in devices):
        return 0.0, 0.0, 0.0
    pieces = [(b.seconds - a.seconds, b.joules - a.joules) for a, b in pairwise(points)]
    low = [(seconds, joules) for seconds, joules in pieces if joules < LOW_POWER_FRACTION * limit_watts * seconds]
    low_seconds, low_joules = (math.fsum(column) for column in zip(*low, strict=True)) if low else (0.0, 0.0)
    share = count / sum(each.count for each in devices)
    return count * (points[-1].seconds - points[0].seconds), count * low_seconds, share * low_joules


def _run_row(run: RunRecord) -> dict[str, Any]:
    account, training = run.account, run.account.training
    kinds = Counter(device.name for _, device in _devices(run.latest))
    idle = [account.activities[each] for each in (Activity.IDLE, Activity.BETWEEN_STEPS) if each in account.activities]
    idle_joules = sum(tally.measured_joules for tally in idle)
    row: dict[str, Any] = {
        "gpu": kinds.most_common(1)[0][0] if kinds else "",
        "state": run.latest.state,
        "begin_ms": _milliseconds(run.parts[0].begun_at_seconds),
        "end_ms": _milliseconds(run.latest.until_seconds),
        "more_millijoules": _whole_above(1e3 * (account.unrecorded_joules or 0.0)),
        "more_gpu_milliseconds": _unrecorded_milliseconds(run),
        "unbounded": int(account.unrecorded_joules is None),
        "training_millijoules": _whole(1e3 * training.measured_joules),
        "idle_millijoules": _whole(1e3 * idle_joules),
        "wasted_millijoules": _whole(1e3 * (idle_joules + account.redone.measured_joules)),
        "redone_millijoules": _whole(1e3 * account.redone.measured_joules),
        **_saving(run),
    }
    if account.tokens > 0 and training.energy_joules is not None:
        row |= {
            "tokens": _whole(account.tokens),
            "token_millijoules": _whole(1e3 * training.energy_joules),
            "off_token_millijoules": _whole_above(1e3 * (training.measured.uncertainty_joules or 0.0)),
        }
    for signal in () if run.electricity is None else run.electricity.signals:
        unit = signal.unit.partition("/")[0]
        charge = account.known_charge(unit)
        if charge is None:
            continue
        is_carbon = unit == "g"
        name, scale = ("milligrams", 1e3) if is_carbon else ("millionths", 1e6)
        row |= {name: _whole(scale * charge.amount), f"off_{name}": _whole_above(scale * charge.uncertainty)}
        row["charged_millijoules" if is_carbon else "priced_millijoules"] = _whole(1e3 * account.total.measured_joules)
        row |= {} if is_carbon else {"currency": unit}
    return row


def _unrecorded_milliseconds(run: RunRecord) -> int:
    """Return the time of the GPUs of parts that the file has no more, if they had as many as the latest one."""
    seconds = run.account.total.seconds - sum(part.until_seconds - part.begun_at_seconds for part in run.parts)
    gpus = sum(device.count for device in run.latest.devices)
    return _whole_above(1e3 * gpus * max(seconds, 0.0)) if run.account.interruptions else 0


def _saving(run: RunRecord) -> dict[str, int]:
    """Return whether the setting was searched, or fixed for the whole run, and the energy saved.

    With f the saving of a step, its steps n at the chosen setting, and E the energy of a step there, measured in the
    comparison, they would have taken n E / (1 - f) at the original: n E f / (1 - f) is saved.
    """
    records = [record for part in run.parts if (record := part.search_record()) is not None]
    if not records:
        return {"controlled": int(not FIXED_SETTINGS.isdisjoint(run.latest.results))}
    result, fraction = records[-1].result, run.saving_fraction
    if result is None or result.comparison is None or fraction is None or not 0 < fraction < 1:
        return {"controlled": 1}
    off = min(run.saving_uncertainty or 0.0, fraction, (1 - fraction) / 2)
    joules = result.chosen_steps * result.comparison.after.joules_per_step
    joules = min(max(joules, 0.0), run.account.training.measured_joules)
    low, middle, high = (joules * each / (1 - each) for each in (fraction - off, fraction, fraction + off))
    off_joules = max(middle - low, high - middle)
    return {
        "controlled": 1,
        "saved_millijoules": _whole(1e3 * middle),
        "off_saved_millijoules": _whole_above(1e3 * off_joules),
    }


def _whole(amount: float) -> int:
    """Return an amount as a whole number.

    Raises:
        UsageError: No run has so much.
    """
    if not -_MOST < amount < _MOST:
        raise UsageError(f"it has {number_text(amount)} thousandths of a unit, which no run has")
    return round(amount)


def _whole_above(amount: float) -> int:
    return _whole(math.ceil(amount) if math.isfinite(amount) else amount)


def _milliseconds(seconds: float) -> int:
    return math.floor(1e3 * seconds) if abs(seconds) < 1e12 else 0
