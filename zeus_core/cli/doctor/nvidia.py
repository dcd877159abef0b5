"""The check of NVIDIA's driver and its library, and the drivers of other vendors."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeus_core._sysfs import has_nvidia_gpu
from zeus_core.cli.doctor.check import Check
from zeus_core.errors import DeviceError

if TYPE_CHECKING:
    from zeus_core.device import Gpu

CONTAINER_MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"))

_PCI_DEVICES = Path("/sys/bus/pci/devices")

_FIXES = {  # by NVML error
    9: "sudo modprobe nvidia",
    18: "sudo reboot",
}
_LOST_DEVICES = 999  # what a container says that has lost its devices; its meaning says so
_SIMULATE = "export ZEUS_SIMULATED_GPUS=A100-SXM4-80GB:1"
_START_CONTAINER = "docker run --gpus all IMAGE"
_INSTALL_DRIVER = {"ubuntu": "sudo ubuntu-drivers install", "debian": "sudo apt-get install -y nvidia-driver"}


@dataclass(frozen=True)
class Driver:
    """The driver, as it describes itself.

    Attributes:
        version: Its version; None if it does not work.
        cuda_version: The highest CUDA version it supports, "12.8"; None if unknown.
        uuids: The UUIDs of all GPUs it shows; empty for one that does not answer.
        fault: The reason why it does not work; None if it works.
    """

    version: str | None = None
    cuda_version: str | None = None
    uuids: tuple[str, ...] = ()
    fault: str | None = None

    @property
    def has_gpu(self) -> bool:
        """Whether it shows any GPU."""
        return bool(self.uuids)


def find_driver() -> Driver:
    """Ask the driver. Never raises, and does not wait for one that hangs."""
    from zeus_core.process.deadline import OPEN_SECONDS
    from zeus_core.process.parallel import ParallelCalls

    try:
        return ParallelCalls().call_one_within(OPEN_SECONDS, 0, _find_driver)
    except ImportError:
        return Driver(fault="nvidia-ml-py is not installed")
    except DeviceError as error:
        return Driver(fault=str(error))


def _find_driver() -> Driver:
    from zeus_core.device.nvml.nvml_session import NvmlSession

    session = NvmlSession()
    uuids = session.read_uuids()
    import pynvml

    version = _ask(session.read_driver_version)
    cuda = _ask(getattr(pynvml, "nvmlSystemGetCudaDriverVersion", lambda: None))
    cuda_version = f"{cuda // 1000}.{cuda % 1000 // 10}" if isinstance(cuda, int) else None
    return Driver(
        str(version or "unknown"), cuda_version, tuple(uuid if isinstance(uuid, str) else "" for uuid in uuids)
    )


def other_drivers(gpus: Sequence[Gpu]) -> list[str]:
    """Return the drivers, in words, of the GPUs that are not NVIDIA's."""
    from zeus_core.device.gpu import driver_of, read_driver_version

    words = [read_driver_version(gpu) for gpu in gpus if driver_of(gpu) != "nvml"]
    return list(dict.fromkeys(filter(None, words)))


def check_driver(
    driver: Driver, pci_devices: Path = _PCI_DEVICES, is_simulated: bool = False, others: Sequence[str] = ()
) -> Check:
    """Check that the library is installed and the driver answers.

    Args:
        driver: The driver, as it describes itself.
        pci_devices: The folder of the PCI devices.
        is_simulated: Whether this process simulates its GPUs.
        others: The versions of the drivers of visible GPUs of other vendors.
    """
    if driver.fault is None:
        cuda = f", CUDA {driver.cuda_version}" if driver.cuda_version else ""
        return Check("NVIDIA driver", "ok", f"NVIDIA driver {driver.version}{cuda}")
    has_gpu = has_nvidia_gpu(str(pci_devices))
    if others and not has_gpu:
        return Check("GPU driver", "ok", ", ".join(others))
    sentence = driver.fault if has_gpu else f"{driver.fault}; there is no NVIDIA GPU on the PCI bus either"
    if is_simulated:
        return Check("NVIDIA driver", "missing", f"{sentence}; simulated GPUs need none")
    return Check("NVIDIA driver", "missing", sentence, _fix(driver.fault, has_gpu))


def is_in_container() -> bool:
    """Tell whether this process runs in a container of docker or podman."""
    return any(mark.exists() for mark in CONTAINER_MARKS)


def _fix(fault: str, has_gpu: bool) -> str | None:
    code = re.search(r"NVML error (\d+)", fault)
    if code and int(code[1]) == _LOST_DEVICES and is_in_container():
        return "docker restart CONTAINER"
    if code and int(code[1]) in _FIXES and not is_in_container():  # which has the kernel of its host
        return _FIXES[int(code[1])]
    if not has_gpu:
        return _SIMULATE
    return _START_CONTAINER if is_in_container() else _INSTALL_DRIVER.get(_distribution())


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("ID", "")
    except OSError:
        return ""


def _ask(call: Any) -> Any:
    import pynvml

    try:
        return call()
    except (pynvml.NVMLError, DeviceError):
        return None
