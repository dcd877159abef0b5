"""Checks of the GPUs that this process sees: their readings, their limits, and what processes have left changed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from zeus_core._sysfs import SYSFS_VARIABLE
from zeus_core.cli._restore import BY_ROOT
from zeus_core.cli.doctor.machine import Check, Driver
from zeus_core.cli.gpu_state import HeldSettings
from zeus_core.cli.text import readable
from zeus_core.errors import DeviceError, NotSupportedError, UsageError
from zeus_core.kinds import POWER_LIMIT

if TYPE_CHECKING:
    from zeus_core.device import Gpu

_SIMULATIONS = ("ZEUS_SIMULATED_GPUS", SYSFS_VARIABLE)
_CHOICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", *_SIMULATIONS)
_POLL_SECONDS = 0.005
_LOOK_SECONDS = 0.4  # four updates of the slowest known counters


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
    """Check which GPUs are visible, which readings they support, and whether they are as they should be."""
    yield _check_visible(gpus, no_gpus_because, driver, environment)
    if doubt := next(filter(None, (gpu.index_doubt for gpu in gpus)), None):
        yield Check("GPU order", "limited", doubt.because, "export CUDA_DEVICE_ORDER=PCI_BUS_ID")
    if gpus:
        yield from _check_readings(gpus)
        yield check_limits(gpus)
        yield _check_left()


def _check_visible(
    gpus: Sequence[Gpu], no_gpus_because: str | None, driver: Driver, environment: Mapping[str, str]
) -> Check:
    from zeus_core.device.gpu import SilentGpu

    if not gpus and driver.fault is not None and driver.fault in (no_gpus_because or driver.fault):
        return Check("GPUs", "missing", "there are none without the driver")  # its own check holds the fix
    if not gpus:
        variables = " ".join(name for name in _CHOICES if name in environment)
        return Check("GPUs", "missing", no_gpus_because or "none", f"unset {variables}" if variables else None)
    answering = [gpu for gpu in gpus if not isinstance(gpu, SilentGpu)]
    found = f"{len(answering)} visible: {', '.join(dict.fromkeys(gpu.name for gpu in answering))}"
    if any(gpu.is_simulated for gpu in gpus):
        variables = " ".join(name for name in _SIMULATIONS if environment.get(name))
        fix = f"unset {variables}" if driver.has_gpu else None
        return Check("GPUs", "limited", f"{found}; no number comes from hardware", fix)
    if silent := [index for index, uuid in enumerate(driver.uuids) if not uuid]:
        sentence = f"{found}; GPU {silent[0]} of the driver does not answer"
        return Check("GPUs", "limited", sentence, f"sudo nvidia-smi --gpu-reset -i {silent[0]}")
    return Check("GPUs", "ok", found)


def _check_readings(gpus: Sequence[Gpu]) -> Iterator[Check]:
    lacking = [str(index) for index, gpu in enumerate(gpus) if not _has_counter(gpu)]
    if lacking:
        without = "energy is integrated from power" if all(map(_is_measured, gpus)) else "no energy is measured"
        sentence = f"{len(gpus) - len(lacking)} of {len(gpus)} have it, not GPU {', '.join(lacking)}: {without}"
        yield Check("energy counter", "limited" if len(lacking) < len(gpus) else "missing", sentence)
    else:
        yield Check("energy counter", "ok", f"{'all' if len(gpus) > 1 else 'the'} {len(gpus)} visible GPU(s) have it")
    for index, remark in enumerate(gpu_remarks(gpus)):
        if remark is not None:
            yield Check(f"GPU {index}", "limited", remark)
    if off := ",".join(gpu.uuid for gpu in gpus if readable(gpu.read_persistence_mode) is False):
        sentence = "off: the driver starts anew with each program, which takes seconds, and forgets limits meanwhile"
        yield Check("persistence mode", "limited", sentence, f"sudo nvidia-smi -i {off} -pm 1")


def _has_counter(gpu: Gpu) -> bool:
    return readable(gpu.read_energy_counter_joules) is not None


def _is_measured(gpu: Gpu) -> bool:
    return _has_counter(gpu) or readable(gpu.read_power_watts) is not None


def gpu_remarks(gpus: Sequence[Gpu]) -> list[str | None]:
    """Return why the energy of each GPU is not counted, in words; None where it is."""
    # The period of other boards is found by watching their counters, which takes longer than the look itself.
    periods = [gpu.energy_counter_period_seconds for gpu in gpus if gpu.driver is None]
    # Reading a counter also compares it with the power, where they may differ.
    reads = {str(index): gpu.read_energy_counter_joules for index, gpu in enumerate(gpus)}
    still = still_counters(reads, max([_LOOK_SECONDS, *(2 * period for period in periods)]))
    return [_remark(gpu, str(index) in still) for index, gpu in enumerate(gpus)]


def still_counters(reads: Mapping[str, Callable[[], float | None]], seconds: float) -> list[str]:
    """Return the names of the counters that can be read, and do not move for some time: at least two of their updates.

    Args:
        reads: Reads each counter, by its name.
        seconds: How long to look at all of them; less if all move.
    """
    first = {name: value for name, read in reads.items() if (value := readable(read)) is not None}
    still, begin, is_over = list(first), time.monotonic(), False
    while still and not is_over:
        time.sleep(_POLL_SECONDS)
        is_over = time.monotonic() - begin >= seconds  # before the reading: a busy machine reads late
        still = [name for name in still if readable(reads[name]) == first[name]]
    return still


def _remark(gpu: Gpu, stands_still: bool) -> str | None:
    if not _is_measured(gpu):
        return gpu.no_power_because or "neither energy nor power can be read"
    if stands_still:
        has_power = readable(gpu.read_power_watts) is not None
        instead = (
            "energies are estimated from the power" if has_power else "no energy is measured, as no power is shown"
        )
        return f"the energy counter stands still: {instead}"
    try:
        gpu.read_energy_counter_joules()
    except NotSupportedError as error:
        return str(error)
    except DeviceError:
        return None
    return None


def check_limits(gpus: Sequence[Gpu]) -> Check:
    """Check that the power limits in force are the boards' defaults."""
    name, lowered, commands = POWER_LIMIT.words, list[str](), list[str]()
    defaults = [readable(gpu.read_default_power_limit_watts) for gpu in gpus]
    for index, (gpu, default_watts) in enumerate(zip(gpus, defaults, strict=True)):
        requested_watts = readable(gpu.read_power_limit_watts)
        limits_watts = (requested_watts, readable(gpu.read_enforced_power_limit_watts))
        known = [limit_watts for limit_watts in limits_watts if limit_watts is not None]
        if default_watts is None or not known or min(known) >= default_watts - POWER_LIMIT.tolerance:
            continue
        is_requested = requested_watts is not None and requested_watts < default_watts - POWER_LIMIT.tolerance
        reason = "as requested" if is_requested else "held down by firmware or another limiter"
        lowered.append(f"GPU {index}: {min(known):g} W of {default_watts:g} W, {reason}")
        if is_requested:
            commands.append(POWER_LIMIT.command([gpu.uuid], default_watts))
    if lowered:
        return Check(name, "limited", "; ".join(lowered), " && ".join(commands) or None)
    values = sorted({default_watts for default_watts in defaults if default_watts is not None})
    if values:
        return Check(name, "ok", f"the default, {' or '.join(f'{value:g} W' for value in values)}, is in force")
    has_clocks = any(readable(gpu.read_supported_sm_clocks_mhz) for gpu in gpus)
    hint = ', as on GB10 and many laptops: "auto" and `run --save` search clocks there' if has_clocks else ""
    return Check(name, "missing", f"no visible GPU reports one{hint}")


def _check_left() -> Check:
    """Check that no process that has ended has left a GPU changed."""
    settings = HeldSettings.read(None)
    stale = [entry for entry, is_stale in settings.entries if is_stale]
    left = [
        f"{entry.words} is not restored{f' ({entry.failure})' if entry.failure else ''}, left by {entry.holder}"
        for entry in stale
    ]
    left += map(str, settings.unreadable)
    if left:
        # Root's own command does not trust the ledger of another user, nor does it restore what cannot be read.
        own = [entry.keeper is None and entry.uid != 0 and os.geteuid() != 0 for entry in stale]
        commands = [entry.command if is_own else BY_ROOT for entry, is_own in zip(stale, own, strict=True)]
        return Check("restored", "limited", "; ".join(left), " && ".join(dict.fromkeys(commands)) or None)
    held = [
        f"{entry.device_name} ({entry.device_uuid}) is controlled by {entry.holder}" for entry, _ in settings.entries
    ]
    return Check("restored", "ok", "; ".join(dict.fromkeys(held)) or "no process has left a GPU changed")
