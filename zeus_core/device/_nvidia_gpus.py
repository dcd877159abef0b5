"""NVIDIA's GPUs: those that CUDA shows to this process."""

import logging
from collections.abc import Mapping, Sequence

from zeus_core.device.gpu import Gpu, IndexDoubt, SilentGpu
from zeus_core.device.nvml.nvml_gpu import NvmlGpu
from zeus_core.device.nvml.nvml_session import NvmlSession
from zeus_core.device.visible import visible_places
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
    ordered = None if order is None else _in_framework_order(gpus, [gpu.uuid for gpu in order], session)
    if ordered is not None:
        return ordered
    _note_doubt(gpus, session, [uuid for uuid in uuids if uuid], environment)
    return gpus


def _open(session: NvmlSession, name: str, uuid: str | DeviceError) -> Gpu:
    """Return a GPU, or one that refuses every call under this name if it does not answer."""
    if isinstance(uuid, DeviceError):
        return SilentGpu(name, uuid)
    try:
        return NvmlGpu(session, uuid)
    except DeviceError as error:
        return SilentGpu(name, error)


def _in_framework_order(gpus: list[Gpu], order: Sequence[str], session: NvmlSession) -> list[Gpu] | None:
    """Sort GPUs by the framework's indices; None where these are of other GPUs. The driver counts in PCI order."""
    answering = {gpu.uuid: gpu for gpu in gpus if not isinstance(gpu, SilentGpu)}
    # The framework may also show GPUs that do not answer here; no GPU that answers is missing from its list.
    if set(answering) <= set(order) and len(order) <= len(gpus):
        return [answering.get(uuid) or _open(session, uuid, uuid) for uuid in order]
    return None


def _note_doubt(gpus: list[Gpu], session: NvmlSession, uuids: Sequence[str], environment: Mapping[str, str]) -> None:
    """Note on each GPU that an index may mean another one: CUDA counts boards that differ with the fastest first.

    All boards that the driver shows are compared, as CUDA counts them before the variable chooses among them.
    """
    variable = environment.get("CUDA_VISIBLE_DEVICES")
    is_by_index = variable is None or any(entry.strip().isdecimal() for entry in variable.split(","))
    if environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or not is_by_index:
        return
    names = session.read_names(uuids)
    if len(set(names)) < 2:
        return
    doubt = IndexDoubt(
        frozenset(uuids),
        f"the GPUs of this machine differ ({', '.join(names)}), and CUDA may count them in another order than the "
        "driver: set CUDA_DEVICE_ORDER=PCI_BUS_ID",
    )
    for gpu in gpus:
        if isinstance(gpu, NvmlGpu):
            gpu.index_doubt = doubt
    _logger.warning("%s, or use the GPU in torch before it is measured", doubt.because)
