"""The check of the energy counters of CPUs and their memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from zeus_core.cli.doctor.check import Check

if TYPE_CHECKING:
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
    if reason is None:
        return Check("CPU energy", "ok", found)
    if not discovery.cpus:
        return Check("CPU energy", "missing", reason, _command_in(reason))
    return Check("CPU energy", "limited", f"{found}; {reason}", _command_in(reason))


def _command_in(reason: str) -> str | None:
    """Find the command in a reason: it begins with sudo and ends before a character that no such command has."""
    found = re.search(r"sudo [^`(;]+", reason)
    return found[0].strip() if found else None
