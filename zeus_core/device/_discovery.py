"""The GPUs of this process: those of the machine, or simulated ones if the user asked for them."""

import logging
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING

from zeus_core.device.gpu import Gpu
from zeus_core.device.nvml.nvml_gpu import NvmlGpu
from zeus_core.device.nvml.nvml_session import NvmlSession
from zeus_core.device.nvml.visible import visible_places
from zeus_core.device.silent import SilentGpu
from zeus_core.errors import DeviceError, NoDeviceError, UsageError
from zeus_core.ports.accelerator import torch_gpu_uuids
from zeus_core.process.deadline import OPEN_SECONDS, outside_of_hooks
from zeus_core.process.parallel import ParallelCalls
from zeus_core.validate import checked_mapping, checked_text

if TYPE_CHECKING:
    from zeus_core.device.simulated.simulated_gpu import SimulatedGpu

SIMULATED_GPUS_VARIABLE = "ZEUS_SIMULATED_GPUS"

_logger = logging.getLogger(__name__)


def discover_gpus(environment: Mapping[str, str] = os.environ) -> list[Gpu]:
    """Find the GPUs of this process, in the order of their indices.

    A passing fault of the driver is tried again, within a quarter of a second. A GPU that still does not answer keeps
    its place in the list, and refuses every call by name: no other GPU gets its index.

    Args:
        environment: `ZEUS_SIMULATED_GPUS`, such as "A100-SXM4-80GB:4" or "A40:1,V100:1", asks for simulated GPUs.
            Otherwise the GPUs of the machine are used, as far as `CUDA_VISIBLE_DEVICES` shows them.

    Raises:
        NoDeviceError: There is no GPU and no simulation was asked for.
        DeviceError: The driver does not work, or has not answered after a minute.
        UsageError: `ZEUS_SIMULATED_GPUS` cannot be read.
    """
    checked_mapping("environment", environment, "os.environ")
    wanted = 'a text, such as "A40:1"'
    simulated_machine = checked_text(
        SIMULATED_GPUS_VARIABLE, environment.get(SIMULATED_GPUS_VARIABLE, ""), wanted
    ).strip()
    if simulated_machine:
        return list(_simulated_gpus(simulated_machine))
    find = partial(_nvidia_gpus, environment, torch_gpu_uuids())
    with outside_of_hooks():
        gpus = ParallelCalls().call_one_within(OPEN_SECONDS, 0, find)
    if not gpus:
        raise NoDeviceError(f"no GPU is visible to this process. {_SIMULATION_HINT}")
    return gpus


_SIMULATION_HINT = f"To try things without a GPU, simulate some: {SIMULATED_GPUS_VARIABLE}=A100-SXM4-80GB:1"


def _nvidia_gpus(environment: Mapping[str, str], order: Sequence[str] | None) -> list[Gpu]:
    """Find the GPUs, in the order of the framework's UUIDs if these are known."""
    session = NvmlSession()
    try:
        found = session.read_uuids()
    except NoDeviceError as error:
        raise NoDeviceError(f"{error}. {_SIMULATION_HINT}") from error
    uuids = [uuid if isinstance(uuid, str) else None for uuid in found]
    variable = environment.get("CUDA_VISIBLE_DEVICES")
    mig_parents: dict[str, str] = {}
    if variable is not None and "MIG-" in variable:
        mig_parents = session.read_mig_parents(filter(None, uuids))
        _logger.warning("CUDA_VISIBLE_DEVICES=%s names a part of a GPU: energies are those of the whole GPU", variable)
    gpus = [_open(session, f"GPU {place}", found[place]) for place in visible_places(uuids, variable, mig_parents)]
    return _in_framework_order(gpus, order, session, environment)


def _open(session: NvmlSession, name: str, uuid: str | DeviceError) -> Gpu:
    """Return a GPU, or one that refuses every call under this name if it does not answer."""
    if isinstance(uuid, DeviceError):
        return SilentGpu(name, uuid)
    try:
        return NvmlGpu(session, uuid)
    except DeviceError as error:
        return SilentGpu(name, error)


def _in_framework_order(
    gpus: list[Gpu], order: Sequence[str] | None, session: NvmlSession, environment: Mapping[str, str]
) -> list[Gpu]:
    """Sort GPUs by the framework's indices, as far as they are known: the driver counts in PCI order."""
    answering = {gpu.uuid: gpu for gpu in gpus if not isinstance(gpu, SilentGpu)}
    # The framework may also show GPUs that do not answer here; no GPU that answers is missing from its list.
    if order is not None and set(answering) <= set(order) and len(order) <= len(gpus):
        return [answering.get(uuid) or _open(session, uuid, uuid) for uuid in order]
    if len({gpu.name for gpu in answering.values()}) > 1 and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        _logger.warning(
            "the GPUs differ (%s), and CUDA may count them in another order than the driver: set "
            "CUDA_DEVICE_ORDER=PCI_BUS_ID, or use the GPU in torch before it is measured",
            ", ".join(gpu.name for gpu in gpus),
        )
    return gpus


@cache  # like real hardware, simulated GPUs outlive the objects that use them
def _simulated_gpus(simulated_machine: str) -> tuple["SimulatedGpu", ...]:
    from zeus_core.device.simulated.presets import find_preset
    from zeus_core.device.simulated.simulated_gpu import SimulatedGpu

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
            gpus.append(SimulatedGpu(preset, index=len(gpus)))
    _logger.log(
        logging.WARNING if os.environ.get("LOCAL_RANK", "0") == "0" else logging.DEBUG,  # once a machine, not a rank
        "%s=%s: these GPUs are simulated; every time and energy comes from a model, not from hardware",
        SIMULATED_GPUS_VARIABLE,
        simulated_machine,
    )
    return tuple(gpus)
