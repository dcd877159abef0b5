"""Checks of the machine: Python and its packages, the drivers, the counters of CPUs."""

from __future__ import annotations

import importlib.util
import platform
import re
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from zeus_core import __version__
from zeus_core._sysfs import has_nvidia_gpu
from zeus_core.adapters import install_command
from zeus_core.cli.text import readable
from zeus_core.errors import DeviceError

if TYPE_CHECKING:
    from zeus_core.device import Cpu, Gpu
    from zeus_core.device.rapl.powercap import ReadText

_POLL_SECONDS = 0.005

State = Literal["ok", "limited", "missing"]


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
    state: State
    sentence: str
    fix: str | None = None


def still_counters(
    reads: Mapping[str, Callable[[], float | None]], seconds: float, periods_seconds: Mapping[str, float] | None = None
) -> list[str]:
    """Return the names of the counters that can be read, and do not move.

    Args:
        reads: Reads each counter, by its name.
        seconds: How long to look at all of them.
        periods_seconds: The longest time between two updates, of those that need longer: they have twice that.
    """
    longer = {name: 2 * period for name, period in (periods_seconds or {}).items() if 2 * period > seconds}
    first = {name: readable(read) for name, read in reads.items()}
    watched = [name for name, value in first.items() if value is not None]
    still: list[str] = []
    begin = time.monotonic()
    while watched:
        time.sleep(_POLL_SECONDS)
        passed = time.monotonic() - begin  # before the reading: a busy machine reads late
        watched = [name for name in watched if readable(reads[name]) == first[name]]
        still += [name for name in watched if passed >= longer.get(name, seconds)]
        watched = [name for name in watched if name not in still]
    return [name for name in first if name in still]


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


_BINDING = "nvidia-ml-py"
_FOR_DEVELOPERS = frozenset({"dev", "docs", "all"})
# By the kernel's driver: what torch has to be built for, by its name in `torch.version`, and where such builds are.
_ROCM = ("hip", "ROCm", "AMD", "https://download.pytorch.org/whl/rocm6.4")
_XPU = ("xpu", "XPU", "Intel", "https://download.pytorch.org/whl/xpu")
_BUILDS = {"amdgpu": _ROCM, "i915": _XPU, "xe": _XPU}
_CUDA_INDEX = "https://download.pytorch.org/whl/cu"


def check_python() -> Iterator[Check]:
    """Check Python, this package, and the driver's binding."""
    yield Check("python", "ok", f"Python {platform.python_version()}, {sys.executable}")
    yield Check("zeus-core", "ok", f"zeus-core {__version__}")
    version = _version_of(_BINDING)
    if version is None:
        yield Check(_BINDING, "missing", "the driver's Python binding is not installed", f"pip install {_BINDING}")
    elif _version_of("pynvml") is not None:
        fix = f"pip uninstall -y pynvml && pip install --force-reinstall {_BINDING}"
        yield Check(
            _BINDING, "limited", f"{_BINDING} {version}, but a package `pynvml` is installed too and may hide it", fix
        )
    else:
        yield Check(_BINDING, "ok", f"{_BINDING} {version}")


def check_torch(driver: Driver, gpus: Sequence[Gpu] = ()) -> Check:
    """Check that torch is installed, and is built for the visible GPUs and their driver."""
    from zeus_core.device.gpu import driver_of

    version = _version_of("torch")
    if version is None:
        return Check("torch", "missing", "torch is not installed; it is needed for training only", "pip install torch")
    cuda, drivers = _version_in_torch("cuda"), {driver_of(gpu) or "" for gpu in gpus}
    wanted = [build for name, build in _BUILDS.items() if name in drivers]
    for build in (_ROCM, _XPU):
        kind, words, vendor, _ = build
        number = _version_in_torch(kind)
        if number is not None and build in wanted:
            return Check("torch", "ok", f"torch {version}, built for {words} {number}")
        if number is not None:
            sentence = f"torch {version} is built for {words} {number}, and there is no {vendor} GPU"
            return Check("torch", "limited" if driver.has_gpu else "ok", sentence)
    if wanted and not driver.has_gpu:
        _, words, _, index = wanted[0]
        fix = f"pip install --force-reinstall torch --index-url {index}"
        return Check("torch", "limited", f"torch {version} is built without {words}, and cannot use the GPUs", fix)
    if cuda is None and driver.has_gpu:
        fix = "pip install --force-reinstall torch"
        return Check("torch", "limited", f"torch {version} is built without CUDA, and cannot use the GPUs", fix)
    if cuda is None:
        return Check("torch", "ok", f"torch {version}, built without CUDA")
    if driver.cuda_version is not None and _major(cuda) > _major(driver.cuda_version):
        sentence = f"torch {version} is built for CUDA {cuda}; the driver supports CUDA {driver.cuda_version}"
        fix = f"pip install --force-reinstall torch --index-url {_CUDA_INDEX}{driver.cuda_version.replace('.', '')}"
        return Check("torch", "limited", sentence, fix)
    return Check("torch", "ok", f"torch {version}, built for CUDA {cuda}")


def check_extras(needs: Collection[str] = ()) -> Iterator[Check]:
    """Check which extras of this package are installed, and each that is needed."""
    try:
        requirements = metadata.requires("zeus-core") or []
        extras = metadata.metadata("zeus-core").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        sentence = "zeus-core runs from its source and is not installed, so its extras are unknown"
        yield Check("extras", "limited", sentence, install_command())
        return
    missing_of = {
        extra: [name for name in _names_in(requirements, extra) if _version_of(name) is None]
        for extra in extras
        if extra not in _FOR_DEVELOPERS
    }
    installed = [extra for extra, missing in missing_of.items() if not missing]
    absent = [extra for extra, missing in missing_of.items() if missing]
    sentence = f"installed: {', '.join(installed) or 'none'}; not installed: {', '.join(absent) or 'none'}"
    # Who has a part of one wants it; the rest concerns those who ask for it.
    partly = [extra for extra in absent if len(missing_of[extra]) < len(_names_in(requirements, extra))]
    sentence += f"; only a part of {', '.join(partly)} is" if partly else ""
    fix = install_command(",".join(partly)) if partly else None
    yield Check("extras", "limited" if partly else "ok", sentence, fix)
    for extra in missing_of.keys() & set(needs):
        missing = missing_of[extra]
        if missing:
            yield Check(extra, "missing", f"not installed: {', '.join(missing)}", install_command(extra))
        else:
            yield Check(extra, "ok", "installed")


def check_live_view() -> Check:
    """Check that `power` and `energy` can draw a table in place."""
    version = _version_of("rich")
    if version is None:
        return Check(
            "live view", "missing", "rich is not installed: `power` and `energy` print lines", "pip install rich"
        )
    return Check("live view", "ok", f"rich {version}")


def _version_of(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _names_in(requirements: list[str], extra: str) -> list[str]:
    """List the distributions an extra requires, including those for another Python or system."""
    wanted = re.compile(rf"extra\s*==\s*['\"]{re.escape(extra)}['\"]")
    names = [re.match(r"[A-Za-z0-9._-]+", requirement) for requirement in requirements if wanted.search(requirement)]
    return [name[0] for name in names if name and name[0] != "zeus-core"]


def _version_in_torch(platform: str) -> str | None:
    """Read the version of "cuda", "hip" or "xpu" from the file torch writes when it is built."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    found = re.search(rf"^{platform}\b[^=\n]*=\s*['\"]([0-9.]+)[^'\"]*['\"]", text, re.MULTILINE)
    return found[1] if found else None


def _major(version: str) -> int:
    return int(version.partition(".")[0])


_LOOK_SECONDS = 0.1  # a hundred updates


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
