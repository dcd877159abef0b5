"""The records of ranks and their devices in the file of a run, made of what each rank knows."""

from __future__ import annotations

import math
import platform
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from zeus_core.device.gpu import Gpu, read_or_none
from zeus_core.monitor import ZeusMonitor
from zeus_core.training.account import Account
from zeus_core.training.activities.tally import Tally
from zeus_core.training.record.power_series import EnergyPoint
from zeus_core.training.record.run_records import DeviceRecord, ElectricityRecord, RankRecord, SignalRecord

if TYPE_CHECKING:
    from zeus_core.electricity import Electricity

# The versions of these are noted if the process has loaded them.
_FRAMEWORKS = ("torch", "transformers", "accelerate", "trl", "peft", "lightning", "deepspeed", "numpy")

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


def rank_record(monitor: ZeusMonitor, gpu_indices: Collection[int], cpu_indices: Collection[int]) -> RankRecord:
    """Return the devices that this rank counts; their energies are not known yet. Never raises.

    Args:
        monitor: Measures them.
        gpu_indices: The GPUs to count.
        cpu_indices: The CPU packages to count.
    """
    unknown: tuple[float | None, str | None] = (None, None)
    read = monitor.ask(_limit_and_driver, unknown)
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


def _limit_and_driver(gpu: Gpu) -> tuple[float | None, str | None]:
    return read_or_none(gpu.read_power_limit_watts), read_or_none(gpu.read_driver_version)
