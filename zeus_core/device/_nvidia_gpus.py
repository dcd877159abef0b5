"""NVIDIA's GPUs: those that CUDA shows to this process."""

import logging
from collections.abc import Mapping, Sequence

from zeus_core.device.gpu import Gpu
from zeus_core.device.nvml.nvml_gpu import NvmlGpu
from zeus_core.device.nvml.nvml_session import NvmlSession
from zeus_core.device.nvml.visible import visible_places
from zeus_core.device.silent import SilentGpu
from zeus_core.errors import DeviceError
from zeus_core.ports.accelerator import FrameworkGpu

_logger = logging.getLogger(__name__)


def find_nvidia_gpus(environment: Mapping[str, str], order: Sequence[FrameworkGpu] | None) -> list[Gpu]:
    """Find the GPUs that CUDA shows to this process, in the order of the framework's GPUs if these are known.

    Raises:
        DeviceError: There is no driver, or it does not work.
    """
    session = NvmlSession()
    found = session.read_uuids()
    uuids = [uuid if isinstance(uuid, str) else None for uuid in found]
    variable = environment.get("CUDA_VISIBLE_DEVICES")
    mig_parents: dict[str, str] = {}
    if variable is not None and "MIG-" in variable:
        mig_parents = session.read_mig_parents(filter(None, uuids))
        _logger.warning("CUDA_VISIBLE_DEVICES=%s names a part of a GPU: energies are those of the whole GPU", variable)
    gpus = [_open(session, f"GPU {place}", found[place]) for place in visible_places(uuids, variable, mig_parents)]
    return _in_framework_order(gpus, None if order is None else [gpu.uuid for gpu in order], session, environment)


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
