"""Checks of the GPUs that this process sees, and of the readings they support."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from zeus_core._sysfs import SYSFS_VARIABLE
from zeus_core.cli.doctor.check import Check, still_counters
from zeus_core.cli.doctor.nvidia import Driver
from zeus_core.cli.text import readable, watts
from zeus_core.errors import DeviceError, NotSupportedError, UsageError

if TYPE_CHECKING:
    from zeus_core.device import Gpu

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
