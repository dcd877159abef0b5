"""Checks of the GPUs that this process sees: their readings, their limits, and what was left changed."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from zeus_core._sysfs import SYSFS_VARIABLE
from zeus_core.cli._restore import BY_ROOT
from zeus_core.cli.doctor.machine import Check, Driver, still_counters
from zeus_core.cli.text import readable, watts
from zeus_core.errors import DeviceError, NotSupportedError, UsageError
from zeus_core.settings.kinds import POWER_LIMIT

if TYPE_CHECKING:
    from zeus_core.device import Gpu
    from zeus_core.settings.entry import LedgerEntry

_SIMULATIONS = ("ZEUS_SIMULATED_GPUS", SYSFS_VARIABLE)
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_CHOICES = (_VISIBLE, "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", *_SIMULATIONS)
_VIRTUAL_GPU = re.compile(r"^(NVIDIA )?GRID |-\d+[ABCQ]$")  # such as "GRID A100-10C", "NVIDIA A40-48Q"
_LOOK_SECONDS = 0.4  # four updates of the slowest known counters
_STILL = "the energy counter stands still: "
_STILL_WITH_POWER, _STILL_ALONE = "energies are estimated from the power", "no energy is measured, as no power is shown"


def find_gpus(environment: Mapping[str, str]) -> tuple[list[Gpu], str | None]:
    """Find the GPUs of this process, or the reason why there are none."""
    from zeus_core.device import discover_gpus

    try:
        return discover_gpus(environment), None
    except (DeviceError, UsageError, ImportError) as error:
        return [], str(error)


def check_gpus(
    gpus: Sequence[Gpu], no_gpus_because: str | None, driver: Driver, environment: Mapping[str, str]
) -> Iterator[Check]:
    """Check which GPUs are visible, and which readings they support."""
    yield _check_visible(gpus, no_gpus_because, driver, environment)
    if driver.has_gpu and _VISIBLE in environment:
        yield _check_variable(environment[_VISIBLE], gpus, driver)
    if doubt := next(filter(None, (getattr(gpu, "index_doubt", None) for gpu in gpus)), None):
        yield Check("GPU order", "limited", doubt.because, "export CUDA_DEVICE_ORDER=PCI_BUS_ID")
    if gpus:
        yield _check_each(
            "energy counter",
            gpus,
            lambda gpu: readable(gpu.read_energy_counter_joules) is not None,
            "their energy is integrated from their power" if all(map(_is_measured, gpus)) else "no energy is measured",
        )
        for index, remarks in enumerate(gpu_remarks(gpus)):
            if remarks:
                yield Check(f"GPU {index}", "limited", "; ".join(remarks))
        yield _check_each(
            "instant power",
            gpus,
            lambda gpu: gpu.power_average_seconds == 0 and readable(gpu.read_power_watts) is not None,
            "their power is an average" if all(map(_is_measured, gpus)) else "they show an average, or none",
        )
        yield from _check_persistence(gpus)


def _check_persistence(gpus: Sequence[Gpu]) -> Iterator[Check]:
    from zeus_core.device.gpu import read_persistence_mode

    off = ",".join(gpu.uuid for gpu in gpus if read_persistence_mode(gpu) is False)
    if off:
        sentence = "off: the driver starts anew with each program, which takes seconds, and forgets limits meanwhile"
        yield Check("persistence mode", "limited", sentence, f"sudo nvidia-smi -i {off} -pm 1")


def gpu_remarks(gpus: Sequence[Gpu]) -> list[list[str]]:
    """Return what is wrong with the readings of each GPU, in words."""
    reads = {str(index): gpu.read_energy_counter_joules for index, gpu in enumerate(gpus)}
    # That of NVIDIA's boards is watched for, which takes longer than the look itself.
    periods = {str(index): gpu.energy_counter_period_seconds for index, gpu in enumerate(gpus) if _names_period(gpu)}
    # Reading a counter also compares it with the power, where they may differ.
    still = still_counters(reads, _LOOK_SECONDS, periods)
    uuids = [gpu.uuid for gpu in gpus]
    first = [uuids.index(uuid) for uuid in uuids]
    return [
        [f"a part of the same board as GPU {first[index]}, whose energy is that of both"]
        if first[index] != index
        else [*_remarks(gpu), *([_STILL + _still_words(gpu)] if str(index) in still else [])]
        for index, gpu in enumerate(gpus)
    ]


def _still_words(gpu: Gpu) -> str:
    return _STILL_ALONE if readable(gpu.read_power_watts) is None else _STILL_WITH_POWER


def _names_period(gpu: Gpu) -> bool:
    from zeus_core.device.gpu import driver_of

    return driver_of(gpu) is None


def _remarks(gpu: Gpu) -> Iterator[str]:
    from zeus_core.monitor.meter import peak_watts

    power_watts, most_watts = readable(gpu.read_power_watts), peak_watts(gpu)
    if power_watts is not None and power_watts > most_watts:
        excess = (
            f"the power sensor shows {watts(power_watts)}, more than the {watts(most_watts)} that the board can draw"
        )
        yield f"{excess}: such readings are dropped"
    if (reason := _no_counter_because(gpu)) is not None:
        yield reason
    if not _is_measured(gpu):
        yield getattr(gpu, "no_power_because", None) or "neither energy nor power can be read"
    if _VIRTUAL_GPU.search(gpu.name):
        yield "a vGPU: its limits and clocks are set on the host, and it draws a share of the board's power"


def _no_counter_because(gpu: Gpu) -> str | None:
    """Return why the energy of a GPU that is measured is not counted; None if it is."""
    try:
        gpu.read_energy_counter_joules()
    except NotSupportedError as error:
        return str(error) if _is_measured(gpu) else None
    except DeviceError:
        pass
    return None


def _is_measured(gpu: Gpu) -> bool:
    return any(readable(read) is not None for read in (gpu.read_energy_counter_joules, gpu.read_power_watts))


def _check_visible(
    gpus: Sequence[Gpu], no_gpus_because: str | None, driver: Driver, environment: Mapping[str, str]
) -> Check:
    from zeus_core.device.silent import SilentGpu

    answering = [gpu for gpu in gpus if not isinstance(gpu, SilentGpu)]
    names = ", ".join(dict.fromkeys(gpu.name for gpu in answering))
    if not gpus and driver.fault is not None and driver.fault in (no_gpus_because or driver.fault):
        return Check("GPUs", "missing", "there are none without the driver")  # its own check holds the fix
    if not gpus:
        variables = " ".join(name for name in _CHOICES if name in environment)
        return Check("GPUs", "missing", no_gpus_because or "none", f"unset {variables}" if variables else None)
    if any(gpu.is_simulated for gpu in gpus):
        variables = " ".join(name for name in _SIMULATIONS if environment.get(name))
        fix = f"unset {variables}" if driver.has_gpu else None
        return Check("GPUs", "limited", f"{len(gpus)} visible: {names}; no number comes from hardware", fix)
    if silent := [index for index, uuid in enumerate(driver.uuids) if not uuid]:
        sentence = f"{len(answering)} visible: {names}; GPU {silent[0]} of the driver does not answer"
        return Check("GPUs", "limited", sentence, f"sudo nvidia-smi --gpu-reset -i {silent[0]}")
    return Check("GPUs", "ok", f"{len(gpus)} visible: {names}")


def _check_variable(value: str, gpus: Sequence[Gpu], driver: Driver) -> Check:
    shown = sum(gpu.uuid in driver.uuids for gpu in gpus)
    sentence = f"{_VISIBLE}={value} shows {shown} of the driver's {len(driver.uuids)} GPUs"
    entries = [entry for entry in value.split(",") if entry.strip()]
    if shown == len(entries) > 0:
        return Check(_VISIBLE, "ok", sentence)
    return Check(_VISIBLE, "limited" if shown else "missing", sentence, f"unset {_VISIBLE}")


def _check_each(name: str, gpus: Sequence[Gpu], has: Callable[[Gpu], bool], consequence: str) -> Check:
    lacking = [str(index) for index, gpu in enumerate(gpus) if not has(gpu)]
    if not lacking:
        return Check(name, "ok", f"{'all' if len(gpus) > 1 else 'the'} {len(gpus)} visible GPU(s) have it")
    sentence = f"{len(gpus) - len(lacking)} of {len(gpus)} have it, not GPU {', '.join(lacking)}: {consequence}"
    return Check(name, "limited" if len(lacking) < len(gpus) else "missing", sentence)


_NAME = POWER_LIMIT.words
_STAT = Path("/proc/stat")


def check_limits(gpus: Sequence[Gpu], stat: Path = _STAT) -> Check:
    """Check that the limits in force are the boards' defaults.

    Args:
        gpus: The visible GPUs.
        stat: The file in which the kernel writes when the machine was started.
    """
    lowered: list[str] = []
    commands: list[str] = []
    defaults = [readable(gpu.read_default_power_limit_watts) for gpu in gpus]
    for index, (gpu, default_watts) in enumerate(zip(gpus, defaults, strict=True)):
        requested_watts = readable(gpu.read_power_limit_watts)
        enforced_watts = readable(gpu.read_enforced_power_limit_watts)
        known = [limit_watts for limit_watts in (requested_watts, enforced_watts) if limit_watts is not None]
        if default_watts is None or not known or min(known) >= default_watts - POWER_LIMIT.tolerance:
            continue
        is_requested = requested_watts is not None and requested_watts < default_watts - POWER_LIMIT.tolerance
        reason = "as requested" if is_requested else "held down by firmware or another limiter"
        lowered.append(f"GPU {index}: {min(known):g} W of {default_watts:g} W, {reason}")
        if is_requested:
            commands.append(POWER_LIMIT.command([gpu.uuid], default_watts))
    if lowered:
        return Check(_NAME, "limited", f"{'; '.join(lowered)}; {_age(stat)}", " && ".join(commands) or None)
    known_defaults = sorted({default_watts for default_watts in defaults if default_watts is not None})
    if not known_defaults:
        has_clocks = any(readable(gpu.read_supported_sm_clocks_mhz) for gpu in gpus)
        hint = ', as on GB10 and many laptops: "auto" and `run --save` search clocks there' if has_clocks else ""
        return Check(_NAME, "missing", f"no visible GPU reports one{hint}")
    return Check(_NAME, "ok", f"the default, {' or '.join(f'{watts:g} W' for watts in known_defaults)}, is in force")


def _age(stat: Path) -> str:
    """Say what is known of the age of a limit: no driver records it."""
    words = "since when is not known: no driver records it, and a limit lasts until the driver is unloaded"
    try:
        found = re.search(r"^btime (\d+)$", stat.read_text(encoding="ascii", errors="replace"), re.MULTILINE)
    except OSError:
        return words
    if found is None:
        return words
    begin = time.strftime("%Y-%m-%d %H:%M", time.localtime(int(found[1])))
    return f"{words}; the machine was started at {begin}"


_RESTORED = "restored"


def check_residue(gpus: Sequence[Gpu]) -> Check:
    """Check that no process has left a GPU changed.

    Args:
        gpus: The visible GPUs.
    """
    from zeus_core.settings.entry import LedgerEntry
    from zeus_core.settings.ledger import known_ledgers

    found = [(ledger, item) for ledger in known_ledgers() for item in ledger.read()]
    entries = [item for _, item in found if isinstance(item, LedgerEntry)]
    stale = [item for ledger, item in found if isinstance(item, LedgerEntry) and ledger.is_stale(item)]
    left = [_words(entry, gpus) for entry in stale]
    left += [str(item) for _, item in found if not isinstance(item, LedgerEntry)]
    if left:
        return Check(_RESTORED, "limited", "; ".join(left), _remedy(stale))
    if entries:
        held = [f"{entry.device_name} ({entry.device_uuid}) is controlled by {entry.holder}" for entry in entries]
        return Check(_RESTORED, "ok", "; ".join(dict.fromkeys(held)))
    return Check(_RESTORED, "ok", "no process has left a GPU changed")


def _remedy(stale: Sequence[LedgerEntry]) -> str:
    """Return a command that restores. Root's own does not trust the ledger of another user."""
    if stale and os.geteuid() != 0 and all(entry.keeper is None and entry.uid != 0 for entry in stale):
        return " && ".join(entry.command for entry in stale)
    return BY_ROOT


def _words(entry: LedgerEntry, gpus: Sequence[Gpu]) -> str:
    failure = f", and could not be restored: {entry.failure}" if entry.failure else ""
    name = f"{entry.device_name} ({entry.device_uuid})"
    kind = entry.kind
    gpu = next((gpu for gpu in gpus if gpu.uuid == entry.device_uuid), None)
    value = None if gpu is None else readable(partial(kind.read, gpu))
    default = None if gpu is None else readable(partial(kind.read_default, gpu))
    in_force = f"the {kind.words}" if value is None else f"{kind.text(value)} in force"
    beside = "" if default is None else f", board default {kind.text(default)}"
    return f"{name}: {in_force}{beside}, original {kind.text(entry.original)}, left by {entry.holder}{failure}"
