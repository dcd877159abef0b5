"""The GPUs and CPUs of this process: the machine's, or simulated GPUs if the user asked for them."""

import logging
import os
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path

from zeus_core._sysfs import SYSFS_VARIABLE, find_cards, has_nvidia_gpu, sysfs_root
from zeus_core.device.cpu import CpuDiscovery
from zeus_core.device.gpu import OF_DAEMON, SIMULATED_GPUS_VARIABLE, Gpu
from zeus_core.device.rapl import POWERCAP_ROOT, ReadText, direct_or_daemon, find_rapl_cpus
from zeus_core.device.simulated.presets import find_preset
from zeus_core.device.simulated.simulated_gpu import SimulatedGpu
from zeus_core.device.simulated.step_load import SimulatedSteps
from zeus_core.errors import DeviceError, NoDeviceError, UsageError
from zeus_core.ports.accelerator import torch_gpus, torch_platform
from zeus_core.process.deadline import OPEN_SECONDS, outside_of_hooks
from zeus_core.process.parallel import ParallelCalls
from zeus_core.validate import checked_path

_logger = logging.getLogger(__name__)


def discover_gpus(environment: Mapping[str, str] = os.environ) -> list[Gpu]:
    """Find the GPUs of this process, in the order of their indices.

    A passing fault of the driver is tried again, within a quarter of a second. A GPU that still does not answer keeps
    its place in the list, and refuses every call by name: no other GPU gets its index.

    Args:
        environment: `ZEUS_SIMULATED_GPUS`, such as "A100-SXM4-80GB:4" or "A40:1,V100:1", asks for simulated GPUs, and
            "daemon" for those of `zeus-core daemon --simulate`. Otherwise the GPUs of the machine are used, as far as
            `CUDA_VISIBLE_DEVICES` shows them, for AMD's `ROCR_VISIBLE_DEVICES` and `HIP_VISIBLE_DEVICES`, and for
            Intel's `ZE_AFFINITY_MASK`. `ZEUS_SYSFS` names a folder in the place of /sys.

    Raises:
        NoDeviceError: There is no GPU and no simulation was asked for.
        DeviceError: The driver does not work, or has not answered after a minute.
        UsageError: `ZEUS_SIMULATED_GPUS` cannot be read.
    """
    simulated_machine = environment.get(SIMULATED_GPUS_VARIABLE, "").strip()
    if simulated_machine:
        return list(_simulated_gpus(simulated_machine))
    with outside_of_hooks():
        gpus = ParallelCalls().call_one_within(OPEN_SECONDS, 0, partial(_find, environment))
    if not gpus:
        raise NoDeviceError(f"no GPU is visible to this process. {_SIMULATION_HINT}")
    return gpus


_SIMULATION_HINT = f"To try things without a GPU, simulate some: {SIMULATED_GPUS_VARIABLE}=A100-SXM4-80GB:1"


def _find(environment: Mapping[str, str]) -> list[Gpu]:
    """Find the GPUs of all vendors. One vendor's fault hides none of another's.

    Where torch computes by ROCm, NVML is not opened: in one process with ROCm it has hidden its GPUs (pytorch#175077).
    """
    platform, order = torch_platform(), torch_gpus()
    # Imported on use: the modules of all vendors take 45 ms (2026-11-28).
    from zeus_core.device.sysfs.amd import find_amd_gpus
    from zeus_core.device.sysfs.intel import find_intel_gpus

    finders: dict[str, Callable[[], list[Gpu]]] = {}
    if platform != "hip":
        from zeus_core.device._nvidia_gpus import find_nvidia_gpus

        finders["cuda"] = partial(find_nvidia_gpus, environment, None if platform == "xpu" else order)
    finders["hip"] = partial(find_amd_gpus, environment, order if platform == "hip" else None, platform == "hip")
    finders["xpu"] = partial(find_intel_gpus, environment, order if platform == "xpu" else None)
    if sys.platform == "darwin":
        from zeus_core.device.apple import find_apple_gpus

        finders["mps"] = find_apple_gpus
    gpus: list[Gpu] = []
    faults: dict[str, DeviceError] = {}
    for find in sorted(finders, key=lambda name: name != platform):
        try:
            gpus += finders[find]()
        except DeviceError as error:
            faults[find] = error
        if gpus and platform is not None:  # the indices are torch's
            break
    if len(faults) == len(finders):
        fault = _first_fault(faults, platform)
        raise NoDeviceError(f"{fault}. {_SIMULATION_HINT}") if isinstance(fault, NoDeviceError) else fault
    for fault in faults.values():
        if not isinstance(fault, NoDeviceError):
            _logger.warning("some GPUs are left out: %s", fault)
    if any(gpu.is_simulated for gpu in gpus):
        _warn_of_folder(sysfs_root())
    return gpus


def _first_fault(faults: Mapping[str, DeviceError], platform: str | None) -> DeviceError:
    """Return the fault that says most: of what does not work, of torch's vendor, of one that has a GPU here."""
    root = sysfs_root()
    drivers = {card.driver for card in find_cards(root)}
    here = {
        "cuda": has_nvidia_gpu(f"{root}/bus/pci/devices"),
        "hip": "amdgpu" in drivers,
        "xpu": bool(drivers & {"i915", "xe"}),
    }
    if root != "/sys" and not any(here.values()):  # the folder is what was asked for
        here["hip"] = True

    def rank(name: str) -> tuple[bool, bool, bool]:
        return isinstance(faults[name], NoDeviceError), name != platform, not here.get(name, False)

    return faults[min(faults, key=rank)]


def discover_cpus(root: Path = POWERCAP_ROOT, read_text: ReadText = direct_or_daemon) -> CpuDiscovery:
    """Find the CPU packages whose energy this process can read: by RAPL, or of Apple silicon. No fault of it raises.

    Args:
        root: The powercap tree; elsewhere if a container has it mounted elsewhere.
        read_text: Reads a file. By default the zeus-core daemon reads what this process may not read, if there is one.

    Raises:
        UsageError: An argument is of another type.
    """
    if sys.platform == "darwin":
        from zeus_core.device.apple import find_apple_cpus

        return CpuDiscovery(*find_apple_cpus())
    return find_rapl_cpus(Path(checked_path("root", root, str(POWERCAP_ROOT), "folder")), read_text)


@cache
def _warn_of_folder(root: str) -> None:
    _logger.warning(
        "%s=%s: these GPUs are simulated, by the files of that folder; no number comes from hardware",
        SYSFS_VARIABLE,
        root,
    )


@cache  # like real hardware, simulated GPUs outlive the objects that use them
def _simulated_gpus(simulated_machine: str) -> tuple[SimulatedGpu, ...]:
    kind: Callable[..., SimulatedGpu] = SimulatedGpu
    if simulated_machine == OF_DAEMON:
        from zeus_core.device.remote.rehearsed_gpu import RehearsedGpu, simulated_machine_of_daemon

        kind, simulated_machine = RehearsedGpu, simulated_machine_of_daemon()
    gpus: list[SimulatedGpu] = []
    for entry in simulated_machine.split(","):
        match = re.fullmatch(r"\s*(?P<model>[^:]+?)\s*(?::\s*(?P<count>[1-9]\d{0,3})\s*)?", entry)
        if match is None:
            raise UsageError(
                f"{SIMULATED_GPUS_VARIABLE} is {simulated_machine!r}, where {entry!r} is not MODEL:COUNT; "
                "write for example A100-SXM4-80GB:4"
            )
        preset = find_preset(match["model"])
        for _ in range(int(match["count"] or 1)):
            gpus.append(kind(preset, index=len(gpus)))
            gpus[-1].step_load = SimulatedSteps(gpus[-1])
    is_first = os.environ.get("LOCAL_RANK", "0") == "0"
    _logger.log(
        logging.WARNING if is_first else logging.DEBUG,  # once a machine, not a rank
        "%s=%s: these GPUs are simulated; every time and energy comes from a model, not from hardware",
        SIMULATED_GPUS_VARIABLE,
        simulated_machine,
    )
    return tuple(gpus)
