"""The choice of devices that a monitor measures."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from zeus_core.device import Gpu
from zeus_core.device.cpu import Cpu, CpuDiscovery
from zeus_core.device.gpu import SilentGpu
from zeus_core.errors import NoDeviceError, UsageError
from zeus_core.ports.accelerator import INDEXED_TYPES, torch_gpus
from zeus_core.validate import checked_whole_number, shown

# Set by torchrun and accelerate; by deepspeed; by all. The last counts the ranks of all nodes: better than nothing.
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "WORLD_SIZE")

_Device = TypeVar("_Device")

_logger = logging.getLogger(__name__)


def checked_indices(argument: str, indices: Iterable[int] | None) -> list[int] | None:
    """Return the indices of an argument as whole numbers of Python, also those of numpy or torch; None stays None.

    Raises:
        UsageError: One is not a whole number. Whether there are such devices is checked with the choice.
    """
    if indices is None:
        return None
    return [checked_whole_number(f"{argument}[{place}]", index, 0) for place, index in enumerate(indices)]


def select_gpus(gpus: Sequence[Gpu], indices: Sequence[int] | None, environment: Mapping[str, str]) -> dict[int, Gpu]:
    """Choose the GPUs to measure, by index. Where all are wanted, one that does not answer is left out, with a warning.

    Args:
        gpus: All visible GPUs.
        indices: The requested indices; None for all, or for this rank's own under a launcher of several ranks.
        environment: May hold `LOCAL_RANK` and the number of ranks, as torchrun, deepspeed and similar launchers do.

    Raises:
        NoDeviceError: There is no GPU.
        UsageError: An index is unknown or named twice.
        DeviceError: A GPU that is wanted by its index, this rank's own, or each of all does not answer.
    """
    if not gpus:
        raise NoDeviceError("there is no GPU to measure; to measure none on purpose, pass gpu_indices=[]")
    visible = dict(enumerate(gpus))
    if indices is not None:
        return _once(_answering(_chosen(visible, indices, "gpu_indices", "GPU")))
    local_rank, local_size = local_rank_of(environment)
    if local_size == 1 or len(visible) == 1:
        return _once(_answering(visible, is_choice=False))
    return _answering(_own_gpu(visible, local_rank, local_size))


def select_cpus(
    discovery: CpuDiscovery, indices: Sequence[int] | None, environment: Mapping[str, str]
) -> dict[int, Cpu]:
    """Choose the CPU packages to measure, by index.

    Args:
        discovery: The CPU packages of the machine.
        indices: The requested indices; None for all on the first rank of a node, and for none on the others.
        environment: See `select_gpus`.

    Raises:
        UsageError: An index is unknown, named twice, or cannot be measured.
    """
    packages: dict[int, Cpu] = {cpu.index: cpu for cpu in discovery.cpus}
    if indices is not None:
        if indices and not packages:
            raise UsageError(
                f"cpu_indices is {shown(list(indices))}, but no CPU can be measured: {discovery.unavailable_because}"
            )
        return _chosen(packages, indices, "cpu_indices", "CPU package")
    local_rank, _ = local_rank_of(environment)
    if discovery.unavailable_because is not None and local_rank == 0:  # of a machine, one process says so
        _logger.info("CPU energy is not measured: %s", discovery.unavailable_because)
    return packages if local_rank == 0 else {}


def warn_unless_measured(gpus: Mapping[int, Gpu], device: Any) -> None:
    """Warn if training runs on a GPU that is not measured, or that has another index in the framework.

    Nothing is said where none is measured: that has been warned of.

    Args:
        gpus: The measured GPUs, by index.
        device: The `torch.device` of the training.
    """
    index = getattr(device, "index", None)
    if not gpus or getattr(device, "type", None) not in INDEXED_TYPES or index is None:
        return
    order = torch_gpus() or []
    place = order[index] if index < len(order) else None
    measured = [index for index, gpu in gpus.items() if place and place.is_one_of(gpu.uuid, gpu.pci_addresses)]
    if index not in gpus and not measured:  # else it is another die of a board that is
        _logger.warning(
            "training runs on GPU %d, but the measured GPUs are %s: pass ZeusMonitor(gpu_indices=[%d])",
            index,
            ", ".join(map(str, gpus)),
            index,
        )
    elif index in gpus and place is not None and index not in measured and not gpus[index].is_simulated:
        _logger.warning(
            "training runs on GPU %d, which is %s for CUDA, but %s is measured: set CUDA_DEVICE_ORDER=PCI_BUS_ID, or "
            "make the monitor after the first use of the GPU",
            index,
            place.uuid,
            gpus[index].uuid,
        )


def _own_gpu(visible: dict[int, Gpu], local_rank: int, local_size: int) -> dict[int, Gpu]:
    """Choose this rank's own GPU."""
    index = local_rank % len(visible)
    _logger.info(
        "local rank %d of %d measures GPU %d alone; to measure others, pass gpu_indices=[...]",
        local_rank,
        local_size,
        index,
    )
    return {index: visible[index]}


def _answering(gpus: dict[int, Gpu], is_choice: bool = True) -> dict[int, Gpu]:
    """Leave out GPUs that do not answer. Raises the error of the first if each of them was chosen, or none answers."""
    silent = {index: gpu for index, gpu in gpus.items() if isinstance(gpu, SilentGpu)}
    if silent and (is_choice or len(silent) == len(gpus)):
        raise next(iter(silent.values())).fault
    for index, gpu in silent.items():
        _logger.warning("GPU %d is not measured: %s", index, gpu.fault)
    return {index: gpu for index, gpu in gpus.items() if index not in silent}


def _once(gpus: dict[int, Gpu]) -> dict[int, Gpu]:
    """Leave out the GPUs whose energy is counted already: another die, or another partition, of one board."""
    first: dict[Gpu, int] = {}  # a board is one object
    for index, gpu in gpus.items():
        if first.setdefault(gpu, index) != index:
            _logger.warning(
                "GPU %d is a part of the same board as GPU %d, whose energy is that of both", index, first[gpu]
            )
    return {index: gpus[index] for index in first.values()}


def local_rank_of(environment: Mapping[str, str]) -> tuple[int, int]:
    """Read this rank and the number of ranks on this node; 0 and 1 without a launcher."""
    sizes = [environment[name] for name in _LOCAL_SIZES if name in environment]
    try:
        return int(environment["LOCAL_RANK"]), max(int(sizes[0]), 1)
    except (KeyError, IndexError, ValueError):
        return 0, 1


def _chosen(devices: Mapping[int, _Device], indices: Sequence[int], argument: str, kind: str) -> dict[int, _Device]:
    known = ", ".join(map(str, devices)) or "none"
    for index in indices:
        if isinstance(index, bool) or not isinstance(index, int) or index not in devices:
            raise UsageError(
                f"{argument} is {shown(list(indices))}, but there is no {kind} {shown(index)}; there are: {known}"
            )
    if len(set(indices)) != len(indices):
        raise UsageError(f"{argument} is {shown(list(indices))}, which names a {kind} twice; name each once")
    return {index: devices[index] for index in indices}
