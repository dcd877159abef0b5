"""A run that one window measured as a whole, as `zeus-core run` records it: its fields as a `RunRecord`. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from zeus_core.codec import decode, encode
from zeus_core.errors import UsageError
from zeus_core.measurement import DeviceEnergy
from zeus_core.ports.run_identity import RunIdentity
from zeus_core.training.account import Account
from zeus_core.training.activities.tally import Tally
from zeus_core.training.charges.charging import Charge
from zeus_core.training.record.run_records import (
    REMARKS,
    DeviceRecord,
    ElectricityRecord,
    PartRecord,
    PartState,
    RankRecord,
    RunRecord,
    SignalRecord,
)
from zeus_core.units import kilowatt_hours_from_joules

_CRASHES = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS")  # other signals come from outside
_STOPPED_CODES = (130, 137, 143)  # of a shell or a program that SIGINT, SIGKILL or SIGTERM has ended: 128 + its number

WINDOW_FIELDS = frozenset(
    {
        *("command", "exit_code", "signal", "start_time", "seconds", "is_simulated", "devices", "totals"),
        *("notes", "settings"),
    }
)
"""The fields beside those of a `RunRecord`."""

FIXED = frozenset({"power limit", "SM clock"})
"""The labels of results that are settings for the whole run."""


def run_of_window(
    fields: Mapping[str, Any],
    host: str = "",
    identity: RunIdentity | None = None,
    versions: Mapping[str, str] | None = None,
) -> RunRecord:
    """Return the run whose window has these fields.

    Its time is not divided by activity, and a device whose energy was lost leaves the time of the run lost.

    Args:
        fields: Those of `WINDOW_FIELDS`.
        host: The machine; empty where it is not known.
        identity: The user, the job and the tags.
        versions: The versions of programs.

    Raises:
        UsageError: A field is missing, or is something else.
    """
    try:
        return decode(RunRecord, encode(_run(fields, host, identity, versions or {})), "run")  # strictly
    except (KeyError, TypeError, AttributeError, ArithmeticError) as error:
        raise UsageError(
            f"it lacks a field of what `zeus-core run` writes, or has another in its place: {error}"
        ) from None


def _run(fields: Mapping[str, Any], host: str, identity: RunIdentity | None, versions: Mapping[str, str]) -> RunRecord:
    seconds, start = decode(float, fields["seconds"], "seconds"), decode(float, fields["start_time"], "start_time")
    devices = [(each, _tally(each, seconds)) for each in fields["devices"]]
    gpus = [
        DeviceRecord(
            decode(str, each["uuid"], "uuid"),
            decode(int, each["index"], "index"),
            decode(str, each["name"], "name"),
            fields["is_simulated"] is True,
            None,
            None,
            tally,
        )
        for each, tally in devices
        if each["kind"] == "gpu"
    ]
    host_parts = [(each, tally) for each, tally in devices if each["kind"] != "gpu"]
    of_gpus = [tally for each, tally in devices if each["kind"] == "gpu"]
    account = Account(
        _sum(of_gpus, seconds) if of_gpus else Tally(seconds, lost_seconds=seconds),
        host=_sum([tally for _, tally in host_parts], seconds) if host_parts else Tally(),
        charges=_charges(fields, seconds),
    )
    cpus = tuple(f"{each['kind'].upper()} {each['index']}" for each, _ in host_parts)
    same = json.dumps([fields["command"], start, [each["uuid"] for each, _ in devices], host])
    name = hashlib.sha256(same.encode()).hexdigest()[:32]  # the same whenever the file is read
    code, signal = fields["exit_code"], fields["signal"]
    settings = decode(dict[str, str], fields.get("settings", {}), "settings")
    end = f"killed by {signal}" if signal else f"exit code {code}"
    results = settings if code is None else {"command": end, **settings}
    notes = ". ".join(note.rstrip(".") for note in decode(tuple[str, ...], fields["notes"], "notes"))
    part = PartRecord(
        name=name,
        state=_state(code, signal),
        begin_step=0,
        step=0,
        begun_at_seconds=start,
        until_seconds=start + seconds,
        ranks=(RankRecord(host, tuple(gpus), cpus, account),),
        versions=versions,
        results=results | ({REMARKS: notes} if notes else {}),
        identity=identity,
    )
    return RunRecord(name, account, (part,), electricity=_electricity(fields))


def _state(code: int | None, signal: str | None) -> PartState:
    if code is None:
        return "running"
    if signal in _CRASHES or (code and not signal and code not in _STOPPED_CODES):
        return "failed"
    return "stopped" if code or signal else "ended"


def _tally(device: Mapping[str, Any], seconds: float) -> Tally:
    names = ("energy_joules", "uncertainty_joules", "method", "lost_because")
    energy = decode(DeviceEnergy, {name: device[name] for name in names}, "device")
    return Tally(seconds, lost_seconds=seconds) if energy.energy_joules is None else Tally(seconds, energy)


def _sum(tallies: Sequence[Tally], seconds: float) -> Tally:
    """Return the energy of devices over the same time: the sum that the file states, to the last bit."""
    measured = sum((tally.measured for tally in tallies), DeviceEnergy())
    return Tally(seconds, measured, sum(tally.lost_seconds for tally in tallies))


def _charges(fields: Mapping[str, Any], seconds: float) -> dict[str, Charge]:
    joules = fields["totals"]["energy_joules"] or 0.0
    return {
        unit: Charge(missed_seconds=seconds)
        if one["amount"] is None
        else Charge(
            one["amount"],
            one["uncertainty"],
            joules,
            one["stale_fraction"] * joules,
            0.0 if one["is_complete"] else seconds,
        )
        for unit, one in ((fields["electricity"] or {}).get("amounts") or {}).items()
    }


def _electricity(fields: Mapping[str, Any]) -> ElectricityRecord | None:
    """Return the signals; of each, the mean that the amount follows from, in place of the one of its source."""
    given = fields["electricity"]
    if given is None:
        return None
    kilowatt_hours = given["pue"] * kilowatt_hours_from_joules(fields["totals"]["energy_joules"] or 0.0)
    signals = [
        SignalRecord(
            one["unit"],
            one["source"],
            one["basis"],
            one["amount"] / kilowatt_hours if one["amount"] is not None and kilowatt_hours > 0 else 0.0,
        )
        for one in given["amounts"].values()
    ]
    return ElectricityRecord(tuple(signals), float(given["pue"]), given.get("location"))
