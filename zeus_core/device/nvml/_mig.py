"""The processes that compute on the instances of a board in MIG mode (NVML API reference, multi-instance GPUs)."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from zeus_core.device.nvml.nvml_session import NvmlSession
from zeus_core.device.retry import retried
from zeus_core.errors import DeviceError


class MigProcess(NamedTuple):
    """A process that computes on an instance of a board.

    Attributes:
        process_id: Its id as the driver reports it, which in a container may be that of the host.
        gpu_instance: The id of the GPU instance.
        compute_instance: The id of the compute instance within it.
    """

    process_id: int
    gpu_instance: int
    compute_instance: int

    def __str__(self) -> str:
        return f"process {self.process_id} on instance {self.gpu_instance}/{self.compute_instance}"


def read_other_processes(session: NvmlSession, uuid: str, process_id: int) -> list[MigProcess] | None:
    """Read the processes that compute on other instances of a board than a process does.

    Processes of the same training on other instances count as others: the driver does not distinguish them.

    Args:
        session: The connection to the driver.
        uuid: The UUID of the board.
        process_id: The process. As long as this process does not compute yet, its instance is the one that
            `CUDA_VISIBLE_DEVICES` names; another process that does not compute has none.

    Returns:
        None if the board is not in MIG mode, or does not say whether it is.

    Raises:
        DeviceError: The processes cannot be read. `PermissionDeniedError` if this process may not read them.
    """
    try:
        is_partitioned, _ = retried(partial(session.call, uuid, "reading the MIG mode", "nvmlDeviceGetMigMode"))
    except DeviceError:  # an older board or driver
        return None
    if not is_partitioned:
        return None
    # By its full name: of the short one, the binding reports an older driver by an error of another class.
    function = "nvmlDeviceGetComputeRunningProcesses_v3"
    found = retried(partial(session.call, uuid, "reading the processes", function))
    processes = [MigProcess(one.pid, one.gpuInstanceId, one.computeInstanceId) for one in found]
    own = {one[1:] for one in processes if one.process_id == process_id}
    if not own and process_id == os.getpid():
        own = _visible_instances(session, uuid, os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    return [one for one in processes if one[1:] not in own]


def _visible_instances(session: NvmlSession, uuid: str, variable: str) -> set[tuple[int, int]]:
    """Read the ids of the MIG device that CUDA shows, the first in its variable; none if it is not of this board."""
    name, action = variable.split(",")[0].strip(), "reading the ids of a MIG device"
    with suppress(DeviceError):
        for mig_uuid in session.read_mig_parents([uuid]) if name.startswith("MIG-") else ():
            if mig_uuid.startswith(name):
                read = partial(session.call, mig_uuid, action)
                return {(read("nvmlDeviceGetGpuInstanceId"), read("nvmlDeviceGetComputeInstanceId"))}
    return set()
