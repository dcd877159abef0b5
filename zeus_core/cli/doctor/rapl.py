"""The check of the energy counters of CPUs and their memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zeus_core.cli.doctor.check import Check, still_counters

_LOOK_SECONDS = 0.1  # a hundred updates

if TYPE_CHECKING:
    from zeus_core.device import Cpu
    from zeus_core.device.rapl.powercap import ReadText


def check_rapl(root: Path | None = None, read_text: ReadText | None = None) -> Check:
    """Check that RAPL can be read.

    Args:
        root: The powercap tree; /sys/class/powercap if None.
        read_text: Reads a file; the function of the file system if None.
    """
    from zeus_core.device import discover_cpus
    from zeus_core.device.rapl.powercap import POWERCAP_ROOT

    readers = () if read_text is None else (read_text,)
    discovery = discover_cpus(root or POWERCAP_ROOT, *readers)
    with_dram = sum(cpu.has_dram for cpu in discovery.cpus)
    found = f"{len(discovery.cpus)} CPU package(s) can be read, {with_dram} of them with DRAM"
    reason = discovery.unavailable_because
    if still := [f"{name}'s counter stands still, and its energy is lost" for name in still_cpus(discovery.cpus)]:
        return Check("CPU energy", "limited", "; ".join([found, *still, *filter(None, [reason])]))
    if reason is None:
        return Check("CPU energy", "ok", found)
    if not discovery.cpus:
        return Check("CPU energy", "missing", reason, _command_in(reason))
    return Check("CPU energy", "limited", f"{found}; {reason}", _command_in(reason))


def still_cpus(cpus: Sequence[Cpu]) -> list[str]:
    """Return the labels of the packages and memories whose counters stand still, such as "DRAM 0"."""
    reads = {
        f"{kind} {cpu.index}": lambda cpu=cpu, place=place: cpu.read_energy_counters_joules()[place]
        for cpu in cpus
        for place, kind in enumerate(("CPU", "DRAM") if cpu.has_dram else ("CPU",))
    }
    periods = {
        f"{kind} {cpu.index}": getattr(cpu, "energy_counter_period_seconds", 0.0)
        for cpu in cpus
        for kind in ("CPU", "DRAM")
    }
    return still_counters(reads, _LOOK_SECONDS, periods)


def _command_in(reason: str) -> str | None:
    """Find the command in a reason: it begins with sudo and ends before a character that no such command has."""
    found = re.search(r"sudo [^`(;]+", reason)
    return found[0].strip() if found else None
