"""Checks of the right to change power limits and clocks, derived from the rights of this process without trying.

The NVIDIA driver asks the kernel for CAP_SYS_ADMIN, and in its first user namespace: root of a container has it only
if the container was started with it. Other drivers show a limit as a file, which this process may write or not.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from zeus_core.cli.doctor.machine import Check, is_in_container
from zeus_core.cli.text import readable
from zeus_core.kinds import POWER_LIMIT, SM_CLOCK, Kind

if TYPE_CHECKING:
    from zeus_core.device import Gpu

_CAP_SYS_ADMIN = 21  # <linux/capability.h>
_ALL_IDS = "4294967295"
_CHOICE_OF_GPUS = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_CONTAINER = "docker run {}--gpus all --cap-add=SYS_ADMIN IMAGE"


@dataclass(frozen=True)
class Rights:
    """The rights of a process.

    Attributes:
        may_control: Whether it may change the hardware.
        because: The reason.
        fix: A command that gives the right; None if it has it.
    """

    may_control: bool
    because: str
    fix: str | None = None


def read_rights(environment: Mapping[str, str], proc: str = "/proc") -> Rights:
    """Read the rights of this process, which has this environment, from a folder as /proc is."""
    status, uid_map = _text(f"{proc}/self/status"), _text(f"{proc}/self/uid_map")
    if "microsoft" in _text(f"{proc}/version").lower():  # WSL2
        because = "under WSL2 the driver of Windows sets limits and clocks, and is not known to take them from here"
        return Rights(False, because, "nvidia-smi.exe -i 0 -pl WATTS  # as an administrator of Windows")
    return rights_of(os.geteuid(), status, uid_map, is_in_container(), environment)


def rights_of(
    effective_uid: int,
    status: str,
    uid_map: str,
    is_contained: bool,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Rights:
    """Derive the rights of a process.

    Args:
        effective_uid: 0 is root.
        status: Text of /proc/PID/status; empty if there is none.
        uid_map: Text of /proc/PID/uid_map; empty if there is none.
        is_contained: Whether it runs in a container.
        environment: Its environment.
    """
    found = re.search(r"^CapEff:\s*([0-9a-fA-F]+)$", status, re.MULTILINE)
    has_capability = bool(int(found[1], 16) >> _CAP_SYS_ADMIN & 1) if found else effective_uid == 0
    is_first_namespace = not uid_map.strip() or uid_map.split() == ["0", "0", _ALL_IDS]
    if has_capability and is_first_namespace:
        return Rights(True, "this process is root" if effective_uid == 0 else "this process has CAP_SYS_ADMIN")
    if has_capability:
        fix = f"sudo {_CONTAINER.format('--userns=host ')}"
        return Rights(False, "this process is root in a user namespace only", fix)
    if effective_uid == 0 or is_contained:  # a capability is of use to root alone
        user = "" if effective_uid == 0 else "--user 0 "
        return Rights(False, "this process lacks CAP_SYS_ADMIN", _CONTAINER.format(user))
    # The whole environment (`sudo -E`) would let a user's variables choose what root imports and loads.
    choice = [f"{name}={shlex.quote(environment[name])}" for name in _CHOICE_OF_GPUS if name in environment]
    fix = " ".join(["sudo", *(["env", *choice] if choice else []), shlex.quote(sys.executable), "train.py"])
    return Rights(False, "this process is neither root nor has CAP_SYS_ADMIN", fix)


def check_limit_rights(rights: Rights, gpus: Sequence[Gpu]) -> Check:
    """Check that power limits can be set."""
    return _check("set power limits", rights, gpus, POWER_LIMIT)


def check_clock_rights(rights: Rights, gpus: Sequence[Gpu]) -> Check:
    """Check that SM clocks can be locked."""
    return _check("lock clocks", rights, gpus, SM_CLOCK)


def _check(name: str, rights: Rights, gpus: Sequence[Gpu], kind: Kind) -> Check:
    from zeus_core.device.gpu import index_doubt_of

    if not gpus:
        return Check(name, "missing", "there is no GPU")
    if all(gpu.driver is None and gpu.is_simulated for gpu in gpus):
        return Check(name, "ok", "simulated GPUs allow it")
    lacking = [str(index) for index, gpu in enumerate(gpus) if not readable(partial(kind.read_accepted, gpu))]
    if len(lacking) == len(gpus):
        return Check(name, "missing", "no visible GPU has this")
    if (doubt := index_doubt_of(gpus)) is not None:
        return Check(name, "missing", doubt, "export CUDA_DEVICE_ORDER=PCI_BUS_ID")
    files = [gpu.limit_path for gpu in gpus]
    if files and all(files):
        rights = _rights_to_write([str(file) for file in files], rights)
    if not rights.may_control:
        return _check_daemon(name, rights, gpus, kind)
    refusals = [refusal for gpu in gpus if (refusal := kind.refusal_by(gpu.name)) is not None]
    if refusals:
        return Check(name, "limited", f"{rights.because}, but {refusals[0]}")
    if lacking:
        return Check(name, "limited", f"{rights.because}, but GPU {', '.join(lacking)} does not have this")
    return Check(name, "ok", rights.because)


def _rights_to_write(files: Sequence[str], rights: Rights) -> Rights:
    """Derive the rights from those to write the files of limits."""
    refused = [file for file in files if not os.access(file, os.W_OK)]
    if not refused:
        return Rights(True, f"this process may write {files[0]}" + (" and the others" if len(files) > 1 else ""))
    mounts = " ".join(f"-v {shlex.quote(file)}:{shlex.quote(file)}" for file in refused)
    user = "" if os.geteuid() == 0 else "--user 0 "  # the files belong to root
    fix = f"docker run {user}{mounts} IMAGE" if not user or is_in_container() else rights.fix
    return Rights(False, f"this process may not write {refused[0]}", fix)


def _check_daemon(name: str, rights: Rights, gpus: Sequence[Gpu], kind: Kind) -> Check:
    """Check what the daemon changes for this process, which may change nothing itself."""
    from zeus_core.device.remote.client import RemoteControl
    from zeus_core.errors import DeviceError

    allowed: list[str] = []
    refusals: list[str] = []
    for index, gpu in enumerate(gpus):
        try:
            (lowest, highest), _ = RemoteControl(gpu.uuid, kind.name).allowed()
        except DeviceError as error:
            refusals.append(str(error))
        else:
            allowed.append(f"GPU {index}: {lowest:g} to {highest:g} {kind.unit}")
    if not allowed:
        return Check(name, "missing", f"{rights.because}, and {refusals[0]}", rights.fix)
    by_daemon = f"by the zeus-core daemon, as {rights.because}: {', '.join(allowed)}"
    return Check(name, "limited" if refusals else "ok", "; ".join([by_daemon, *dict.fromkeys(refusals)]))


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
