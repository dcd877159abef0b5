"""Checks of the machine: its drivers, Python, and the counters of its CPUs."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from zeus_core import __version__
from zeus_core._sysfs import has_nvidia_gpu
from zeus_core.cli.text import readable
from zeus_core.errors import DeviceError

if TYPE_CHECKING:
    from zeus_core.device import Gpu
    from zeus_core.device.rapl import ReadText

CONTAINER_MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"))

_BINDING = "nvidia-ml-py"

# By NVML error.
_NO_DRIVER, _NO_LIBRARY, _OTHER_VERSION, _LOST_DEVICES = 9, 12, 18, 999
_FIXES = {_NO_DRIVER: "sudo modprobe nvidia", _OTHER_VERSION: "sudo reboot"}
_INSTALL_DRIVER = {"ubuntu": "sudo ubuntu-drivers install", "debian": "sudo apt-get install -y nvidia-driver"}
_SIMULATE = "export ZEUS_SIMULATED_GPUS=A100-SXM4-80GB:1"


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
        name: The subject of the check.
        state: "ok"; "limited" if only a part of it works; "missing".
        sentence: The result in words.
        fix: A shell command that fixes it; None if nothing needs fixing, or no command can.
    """

    name: str
    state: Literal["ok", "limited", "missing"]
    sentence: str
    fix: str | None = None


def is_in_container() -> bool:
    """Tell whether this process runs in a container of docker or podman."""
    return any(mark.exists() for mark in CONTAINER_MARKS)


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver, as it describes itself.

    Attributes:
        version: Its version; None if it does not work.
        uuids: The UUIDs of all GPUs it shows; empty for one that does not answer.
        fault: The reason why it does not work; None if it works.
    """

    version: str | None = None
    uuids: tuple[str, ...] = ()
    fault: str | None = None

    @property
    def has_gpu(self) -> bool:
        """Whether it shows any GPU."""
        return bool(self.uuids)


def find_driver() -> Driver:
    """Ask NVIDIA's driver. Never raises, and does not wait for one that hangs."""
    from zeus_core.process.deadline import OPEN_SECONDS
    from zeus_core.process.parallel import ParallelCalls

    try:
        return ParallelCalls().call_one_within(OPEN_SECONDS, 0, _find_driver)
    except ImportError:
        return Driver(fault=f"{_BINDING} is not installed")
    except DeviceError as error:
        return Driver(fault=str(error))


def _find_driver() -> Driver:
    from zeus_core.device.nvml.nvml_session import NvmlSession

    session = NvmlSession()
    uuids = tuple(uuid if isinstance(uuid, str) else "" for uuid in session.read_uuids())
    return Driver(readable(session.read_driver_version) or "unknown", uuids)


def other_drivers(gpus: Sequence[Gpu]) -> list[str]:
    """Return the drivers, in words, of the GPUs that are not NVIDIA's."""
    words = [readable(gpu.read_driver_version) for gpu in gpus if gpu.driver != "nvml"]
    return list(dict.fromkeys(filter(None, words)))


def check_driver(
    driver: Driver,
    pci_devices: Path = Path("/sys/bus/pci/devices"),
    is_simulated: bool = False,
    others: Sequence[str] = (),
) -> Check:
    """Check that the driver answers.

    Args:
        driver: NVIDIA's driver.
        pci_devices: The folder of the PCI devices.
        is_simulated: Whether this process simulates its GPUs.
        others: The versions of the drivers of visible GPUs of other vendors.
    """
    if driver.fault is None:
        return Check("NVIDIA driver", "ok", f"NVIDIA driver {driver.version}")
    has_gpu = has_nvidia_gpu(str(pci_devices))
    if others and not has_gpu:
        return Check("GPU driver", "ok", ", ".join(others))
    sentence = driver.fault if has_gpu else f"{driver.fault}; there is no NVIDIA GPU on the PCI bus either"
    if is_simulated:
        return Check("NVIDIA driver", "missing", f"{sentence}; simulated GPUs need none")
    return Check("NVIDIA driver", "missing", sentence, _driver_fix(driver.fault, has_gpu))


def _driver_fix(fault: str, has_gpu: bool) -> str | None:
    found = re.search(r"NVML error (\d+)", fault)
    code = int(found[1]) if found else None
    contained = is_in_container()  # which has the kernel of its host
    if contained and code == _LOST_DEVICES:
        return "docker restart CONTAINER"
    if not contained and code in _FIXES:
        return _FIXES[code]
    if not has_gpu:
        return _SIMULATE
    if contained:
        return "docker run --gpus all IMAGE" if code in {_NO_LIBRARY, *_FIXES} else None
    try:
        distribution = platform.freedesktop_os_release().get("ID", "")
    except OSError:
        return None
    return _INSTALL_DRIVER.get(distribution) if code == _NO_LIBRARY else None


def check_python() -> Iterator[Check]:
    """Check Python, this package, and the binding of NVIDIA's driver."""
    yield Check("python", "ok", f"Python {platform.python_version()}, {sys.executable}")
    yield Check("zeus-core", "ok", f"zeus-core {__version__}")
    version = _version_of(_BINDING)
    if version is None:
        yield Check(_BINDING, "missing", "the driver's Python binding is not installed", f"pip install {_BINDING}")
    elif _version_of("pynvml") is not None:
        sentence = f"{_BINDING} {version}, but a package `pynvml` is installed too and may hide it"
        fix = f"pip uninstall -y pynvml && pip install --force-reinstall {_BINDING}"
        yield Check(_BINDING, "limited", sentence, fix)
    else:
        yield Check(_BINDING, "ok", f"{_BINDING} {version}")


def _version_of(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def check_rapl(root: Path | None = None, *read_text: ReadText) -> Check:
    """Check that the energy counters of CPUs and their memory can be read.

    Args:
        root: The powercap tree; /sys/class/powercap if None.
        read_text: Reads a file; the function of the file system if it is not given.
    """
    from zeus_core.device import discover_cpus
    from zeus_core.device.rapl import POWERCAP_ROOT

    discovery = discover_cpus(root or POWERCAP_ROOT, *read_text)
    reason = discovery.unavailable_because
    command = re.search(r"sudo [^`(;]+", reason or "")  # ends before a character that no such command has
    fix = command[0].strip() if command else None
    if not discovery.cpus:
        return Check("CPU energy", "missing", reason or "there are no counters", fix)
    with_dram = sum(cpu.has_dram for cpu in discovery.cpus)
    found = f"{len(discovery.cpus)} CPU package(s) can be read, {with_dram} of them with DRAM"
    return Check("CPU energy", "limited" if reason else "ok", "; ".join(filter(None, [found, reason])), fix)
