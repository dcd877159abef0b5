"""Keeps the file of a run up to date while it trains, on its first rank."""

from __future__ import annotations

import json
import logging
import math
import platform
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from zeus_core._documents import JsonStore
from zeus_core.adapters.contained import Overhead
from zeus_core.codec import encode
from zeus_core.device.gpu import read_driver_version, read_limit_watts
from zeus_core.errors import UsageError
from zeus_core.files import folder_lock, is_special
from zeus_core.monitor import ZeusMonitor
from zeus_core.ports.site_defaults import for_catalogue
from zeus_core.process.deadline import waiting_for
from zeus_core.training.account import Account
from zeus_core.training.activities.tally import Tally
from zeus_core.training.record.power_series import EnergyPoint
from zeus_core.training.record.run_file import RUN_FILE, RUN_FORMAT, record_from_fields, write_run
from zeus_core.training.record.run_identity import RunIdentity, identity_here
from zeus_core.training.record.run_records import (
    DeviceRecord,
    ElectricityRecord,
    PartRecord,
    RankRecord,
    RunRecord,
    SignalRecord,
)

if TYPE_CHECKING:
    from zeus_core.electricity import Electricity

_logger = logging.getLogger(__name__)

# The versions of these are noted if the process has loaded them.
_FRAMEWORKS = ("torch", "transformers", "accelerate", "trl", "peft", "lightning", "deepspeed", "numpy")

# A run that is interrupted more often keeps its latest parts; the account still holds all of them.
_MAX_PARTS = 50


LISTED_RANKS: int = 64
"""The ranks that the file of a run lists one by one; in a job of more, it lists their machines."""

_MAX_MACHINES = 256  # listed one by one, in 130 kB

Energies: TypeAlias = dict[str, tuple[Tally, tuple[EnergyPoint, ...]]]
"""Time and energy of each device, and its energy over time, by UUID."""


class RankReport(NamedTuple):
    """The report of a rank at the end of a part.

    Attributes:
        devices: The energies of its devices, without those over time where ranks are not listed.
        remarks: Remarks on the numbers for people.
        account: Its account; None where ranks are not listed.
    """

    devices: Energies
    remarks: tuple[str, ...]
    account: Account | None


class Outcome(NamedTuple):
    """All that is known of a part beside the account; see `PartRecord` and `RunRecord`."""

    results: Mapping[str, str]
    search: Mapping[str, Any] | None
    saving_fraction: float | None
    saving_uncertainty: float | None
    overhead: Overhead
    detected_evaluations: int


class RunKeeper:
    """The file of one run after another, in one folder, which other processes may use as well.

    A part takes the name `run.json` when it is first written. The file that is there, of a run that may still train, is
    moved to `run-PART.json`, named by its latest part. If that part goes on, it is written there, which is logged once.

    Args:
        folder: The folder of the journals.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / RUN_FILE
        self._own_path: Path | None = None  # not chosen before there is something to write
        self._earlier: tuple[PartRecord, ...] = ()
        self._identity: RunIdentity | None = None
        self._has_failed = False

    def begin(self, run: str, is_new: bool) -> None:
        """Begin a part of a run, and read the earlier ones from the files in the folder."""
        self._own_path, self._earlier, self._identity = None, (), identity_here()
        if is_new:
            return
        named = JsonStore(self._path, RUN_FORMAT, "run file").load(record_from_fields)
        records = [named, *map(_read, sorted(self._path.parent.glob("run-*.json")))]
        latest: dict[str, PartRecord] = {}  # of each part; it may be in several files
        for part in (part for record in records if record is not None and record.run == run for part in record.parts):
            latest[part.name] = max(latest.get(part.name, part), part, key=lambda each: each.until_seconds)
        self._earlier = tuple(map(_closed, latest.values()))[-_MAX_PARTS:]

    def keep(self, record: RunRecord, in_folder: bool = True) -> None:
        """Replace the file, and that in the catalogue; on errors, training goes on without it, with one warning.

        Args:
            record: The run, with its latest part alone.
            in_folder: Whether the folder may be written to.
        """
        others = tuple(part for part in self._earlier if part.name != record.latest.name)
        has_ended = record.latest.state != "running"  # else training would wait for the disk at each checkpoint
        whole = replace(record, parts=(*others, replace(record.latest, identity=self._identity)))
        for_catalogue(record.run, lambda: json.dumps(RUN_FORMAT.document(encode(whole))), has_ended)
        if not in_folder:
            return
        try:
            with waiting_for("files"), folder_lock(self._path.parent):
                self._own_path = self._place(record.latest.name)
                write_run(whole, self._own_path, is_lasting=has_ended)
        except (OSError, ValueError) as error:
            if not self._has_failed:
                self._has_failed = True
                _logger.warning("the run file %s cannot be written; reports of this run need it: %s", self._path, error)

    def _place(self, part: str) -> Path:
        """Return the path to write the file of a part to."""
        if self._own_path not in (None, self._path):
            return self._own_path
        written_by = _latest_part_name(self._path)
        if written_by is None or written_by == part:
            return self._path
        if self._own_path is None:
            if all(written_by != earlier.name for earlier in self._earlier):
                self._path.replace(self._beside(written_by))
            return self._path
        beside = self._beside(part)
        _logger.warning("another process trains in this folder too: the run file of this one is now %s", beside)
        return beside

    def _beside(self, part: str) -> Path:
        return self._path.with_name(f"run-{part[:8]}.json")


def _read(path: Path) -> RunRecord | None:
    try:
        return None if is_special(path) else record_from_fields(RUN_FORMAT.read(path))
    except (OSError, UsageError):
        return None


def _latest_part_name(path: Path) -> str | None:
    """Return the name of the latest part in a run file; None if there is no such file. Reads the name alone."""
    try:
        name = None if is_special(path) else RUN_FORMAT.read(path)["parts"][-1]["name"]
    except (OSError, UsageError, LookupError, TypeError):
        return None
    return name if isinstance(name, str) and name.isalnum() else None  # it becomes part of the name of a file


def _closed(part: PartRecord) -> PartRecord:
    return replace(part, state="interrupted") if part.state == "running" else part


def rank_record(monitor: ZeusMonitor, gpu_indices: Collection[int], cpu_indices: Collection[int]) -> RankRecord:
    """Return the devices that this rank counts; their energies are not known yet. Never raises.

    Args:
        monitor: Measures them.
        gpu_indices: The GPUs to count.
        cpu_indices: The CPU packages to count.
    """
    unknown: tuple[float | None, str | None] = (None, None)
    read = monitor.ask(lambda gpu: (read_limit_watts(gpu), read_driver_version(gpu)), unknown)
    known = dict(zip(monitor.gpus, read, strict=True))
    devices = [
        DeviceRecord(gpu.uuid, index, gpu.name, gpu.is_simulated, known[index][1], known[index][0])
        for index, gpu in monitor.gpus.items()
        if index in gpu_indices
    ]
    cpus = tuple(device.label for device in monitor.devices if device.kind == "cpu" and device.index in cpu_indices)
    return RankRecord(platform.node(), tuple(devices), cpus)


def versions() -> dict[str, str]:
    """Return the versions of the programs of this process."""
    loaded = {name: getattr(sys.modules.get(name), "__version__", None) for name in _FRAMEWORKS}
    return {
        "zeus-core": sys.modules["zeus_core"].__version__,  # an import would make a circle of those of its names
        "Python": platform.python_version(),
        "system": platform.platform(),
        **{name: str(version) for name, version in loaded.items() if version is not None},
    }


def electricity_record(electricity: Electricity | None) -> ElectricityRecord | None:
    """Return the electricity as it was given; None without any."""
    if electricity is None:
        return None
    facts = [signal.facts for signal in electricity.signals]
    signals = tuple(SignalRecord(each.unit, each.source, each.basis, each.average) for each in facts)
    return ElectricityRecord(signals, float(electricity.pue), electricity.location)


def part_ranks(ranks: Sequence[RankRecord], reports: Mapping[int, RankReport]) -> tuple[RankRecord, ...]:
    """Return the ranks with what is known of their energy; those of each machine together, if there are many.

    Args:
        ranks: The ranks.
        reports: The reports of some of them, by rank.
    """
    known = [_with_energy(rank, reports.get(number)) for number, rank in enumerate(ranks)]
    if len(ranks) <= LISTED_RANKS:
        return tuple(known)
    machines: dict[str, list[RankRecord]] = {}
    for rank in known:
        machines.setdefault(rank.host, []).append(rank)
    together = math.ceil(len(machines) / _MAX_MACHINES)
    hosts = list(machines)
    groups = [hosts[first : first + together] for first in range(0, len(hosts), together)]
    return tuple(_together(group, [rank for host in group for rank in machines[host]]) for group in groups)


def _with_energy(rank: RankRecord, report: RankReport | None) -> RankRecord:
    if report is None:
        return rank
    devices = [
        replace(device, energy=report.devices[device.uuid][0], power=report.devices[device.uuid][1])
        if device.uuid in report.devices
        else device
        for device in rank.devices
    ]
    return replace(rank, account=report.account, devices=tuple(devices))


def _together(hosts: Sequence[str], ranks: Sequence[RankRecord]) -> RankRecord:
    """Return the record of all ranks of some machines."""
    alike: dict[tuple[str, bool, str | None], list[DeviceRecord]] = {}
    for device in (device for rank in ranks for device in rank.devices):
        alike.setdefault((device.name, device.is_simulated, device.driver), []).append(device)
    host = hosts[0] if len(hosts) == 1 else f"{hosts[0]} and {len(hosts) - 1} more"
    cpus = dict.fromkeys(cpu for rank in ranks for cpu in rank.cpus)
    return RankRecord(host, tuple(map(_sum, alike.values())), tuple(cpus), count=len(ranks))


def _sum(devices: Sequence[DeviceRecord]) -> DeviceRecord:
    first, energies = devices[0], [device.energy for device in devices if device.energy is not None]
    energy = Account.from_ranks(map(Account, energies)).total if len(energies) == len(devices) else None
    limit_watts = first.limit_watts if all(each.limit_watts == first.limit_watts for each in devices) else None
    uuid = first.uuid if len(devices) == 1 else ""
    return replace(first, uuid=uuid, limit_watts=limit_watts, energy=energy, power=(), count=len(devices))
