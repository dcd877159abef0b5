"""The file of `zeus-core run`: the command as a run of one part, and its own fields.

Imported only where a file is written, as the package of training takes some 0.1 s to load.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeus_core.files import follow_own_links, is_special, write_atomically
from zeus_core.measurement import Device, DeviceEnergy
from zeus_core.ports.run_identity import identity_here
from zeus_core.training.account import Account
from zeus_core.training.activities.tally import Tally
from zeus_core.training.record.power_series import EnergyPoint, PowerSeries
from zeus_core.training.record.rank_records import electricity_record, versions
from zeus_core.training.record.run_file import RUN_DOCUMENT
from zeus_core.training.record.run_records import (
    REMARKS,
    DeviceRecord,
    PartRecord,
    PartState,
    RankRecord,
    RunRecord,
)

if TYPE_CHECKING:
    from zeus_core.cli.run._run_record import CommandRecord
    from zeus_core.cli.run._window_samples import WindowSamples

_CRASHES = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS")  # other signals come from outside
_STOPPED_CODES = (130, 137, 143)  # of a shell or a program that SIGINT, SIGKILL or SIGTERM has ended: 128 + its number


def document_of(command: CommandRecord) -> dict[str, Any]:
    """Return the document of the file: that of any run, with the fields of `CommandRecord.to_json` beside it."""
    document = RUN_DOCUMENT.to_json(run_of_command(command))
    if command.charges is not None:
        document["electricity"]["amounts"] = command.charges.to_json()
    return {**document, **command.to_json()}


def write_record(command: CommandRecord, path: Path) -> None:
    """Write the file, completely or not at all. A pipe or a terminal cannot be replaced, and is written to."""
    text = json.dumps(document_of(command), indent=2) + "\n"
    target = follow_own_links(path)  # a link stays one
    if is_special(target):
        target.write_text(text, encoding="utf-8")
    else:
        write_atomically(target, text)


def run_of_command(command: CommandRecord) -> RunRecord:
    """Return a command as a run.

    Its time is not divided by activity. A device whose energy was lost leaves the time of the run lost.
    """
    host, seconds, energies = platform.node(), command.measurement.time, command.measurement.devices
    charges = command.charges
    account = Account(
        _sum((energy for device, energy in energies.items() if device.kind == "gpu"), seconds)
        or Tally(seconds, lost_seconds=seconds),
        host=_sum((energy for device, energy in energies.items() if device.kind != "gpu"), seconds) or Tally(),
        charges={} if charges is None else charges.of_account(seconds),
    )
    gpus = tuple(_device(device, energy, command) for device, energy in energies.items() if device.kind == "gpu")
    others = tuple(device.label for device in energies if device.kind != "gpu")
    same = json.dumps([command.command, command.start_time, [device.uuid for device in energies], host])
    name = hashlib.sha256(same.encode()).hexdigest()[:32]  # the same of one that runs, and at its end
    notes = ". ".join(note.rstrip(".") for note in command.notes)
    part = PartRecord(
        name=name,
        state=_state(command),
        begin_step=0,
        step=0,
        begun_at_seconds=command.start_time,
        until_seconds=command.start_time + seconds,
        ranks=(RankRecord(host, gpus, others, account),),
        versions=versions(),
        results={
            **({} if command.exit_code is None else {"command": command.end}),
            **command.settings,
            **({REMARKS: notes} if notes else {}),
        },
        identity=identity_here(),
    )
    electricity = None if charges is None else electricity_record(charges.electricity)
    return RunRecord(name, account, (part,), electricity=electricity)


def _sum(energies: Iterable[DeviceEnergy], seconds: float) -> Tally | None:
    """Return the energy of devices over the same time; None without any device."""
    tallies = [_tally(energy, seconds) for energy in energies]
    if not tallies:
        return None
    measured = sum((tally.measured for tally in tallies), DeviceEnergy())
    return Tally(seconds, measured, sum(tally.lost_seconds for tally in tallies))


def _tally(energy: DeviceEnergy, seconds: float) -> Tally:
    return Tally(seconds, lost_seconds=seconds) if energy.energy_joules is None else Tally(seconds, energy)


def _device(gpu: Device, energy: DeviceEnergy, command: CommandRecord) -> DeviceRecord:
    samples = command.samples
    return DeviceRecord(
        gpu.uuid,
        gpu.index,
        command.names[gpu],
        command.is_simulated,
        driver=None,
        limit_watts=None if samples is None else samples.limits_watts[gpu.index],
        energy=_tally(energy, command.measurement.time),
        power=() if samples is None else _power(samples, gpu),
    )


def _power(samples: WindowSamples, gpu: Device) -> tuple[EnergyPoint, ...]:
    """Return the energy of a GPU over time."""
    series = PowerSeries()
    for _, measurement in samples.in_time():
        if (joules := measurement.devices[gpu].energy_joules) is not None:
            series.add(measurement.time, joules)
    return series.points


def _state(command: CommandRecord) -> PartState:
    code, signal = command.exit_code, command.signal
    if code is None:
        return "running"
    if signal in _CRASHES or (code and not signal and code not in _STOPPED_CODES):
        return "failed"
    return "stopped" if code or signal else "ended"
