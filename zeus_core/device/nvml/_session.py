"""The connection of a process to NVML, the NVIDIA driver's library, through its official binding nvidia-ml-py.

Nothing is loaded before the first call. Every call that fails raises one of the package's errors.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from zeus_core.device.nvml._errors import UNINITIALIZED, device_error
from zeus_core.errors import NotSupportedError

__all__ = ["NvmlSession"]

_RESTORING_FUNCTIONS = (
    "nvmlDeviceGetPowerManagementLimit",
    "nvmlDeviceGetPowerManagementLimitConstraints",
    "nvmlDeviceSetPowerManagementLimit",
    "nvmlDeviceSetGpuLockedClocks",
    "nvmlDeviceResetGpuLockedClocks",
)


class NvmlSession:
    """An initialised NVML and the handles of its devices.

    Each process that uses it opens NVML anew: neither handles nor NVML survive a fork.
    """

    def __init__(self) -> None:
        self._process_id: int | None = None
        self._handles: dict[str, Any] = {}

    def read_uuids(self) -> list[str]:
        """Read the UUIDs of the GPUs the driver shows this process, in PCI order; empty for one that does not answer.

        Raises:
            DeviceError: There is no driver, or it does not work.
        """
        count = self._call("counting the GPUs", "nvmlDeviceGetCount")
        return [self._open_device(index) for index in range(count)]

    def read_mig_parents(self) -> dict[str, str]:
        """Return the UUID of the GPU of each MIG device, by the UUID of the MIG device."""
        parents: dict[str, str] = {}
        for uuid in filter(None, self.read_uuids()):
            parents.update(dict.fromkeys(_read_mig_uuids(self.handle(uuid)), uuid))
        return parents

    def handle(self, uuid: str) -> Any:
        """Return the handle of a GPU in this process. Raises what the binding raises."""
        if self._process_id != os.getpid():
            self._open()
        handle = self._handles.get(uuid)
        return self._find_handle(uuid) if handle is None else handle

    def call(self, uuid: str, action: str, function: str, *arguments: object) -> Any:
        """Call an NVML function on one GPU, and once more if the driver has lost the session.

        Args:
            uuid: The UUID of the GPU.
            action: Words for the message of an error, such as "reading the power".
            function: The function's name in the binding.
            *arguments: The arguments after the handle.

        Raises:
            DeviceError: The call failed; see `_errors.py`.
        """
        import pynvml

        call = getattr(pynvml, function, None)
        if call is None:
            raise NotSupportedError(f"{action} needs a newer nvidia-ml-py: pip install -U nvidia-ml-py")
        for is_last_try in (False, True):
            try:
                return call(self.handle(uuid), *arguments)
            except pynvml.NVMLError as error:
                if error.value != UNINITIALIZED or is_last_try:
                    raise device_error(error.value, f"{action} of {uuid}") from error
                self._process_id = None
        raise AssertionError("unreachable")

    def read_driver_version(self) -> str:
        """Call `nvmlSystemGetDriverVersion`.

        Raises:
            DeviceError: The call failed.
        """
        return str(self._call("reading the version of the driver", "nvmlSystemGetDriverVersion"))

    def _call(self, action: str, function: str) -> Any:
        """Call an NVML function that concerns no single GPU. Raises `DeviceError`."""
        import pynvml

        if self._process_id != os.getpid():
            self._open()
        try:
            return getattr(pynvml, function)()
        except pynvml.NVMLError as error:
            raise device_error(error.value, action) from error

    def _find_handle(self, uuid: str) -> Any:
        """Find a GPU the session does not know yet, or whose handle it has lost."""
        import pynvml

        self.read_uuids()
        if uuid not in self._handles:
            self._handles[uuid] = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        return self._handles[uuid]

    def _open_device(self, index: int) -> str:
        """Return the UUID of a GPU and keep its handle. Empty if it does not answer, which must not hide the others."""
        import pynvml

        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = str(pynvml.nvmlDeviceGetUUID(handle))
        except pynvml.NVMLError:
            return ""
        self._handles[uuid] = handle
        return uuid

    def _open(self) -> None:
        import pynvml

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise device_error(error.value, "opening NVML") from error
        # The binding looks up a function under a lock when it is first called. A signal handler that interrupts such a
        # look-up, and restores by functions that were not looked up yet, would wait for that lock for ever.
        for function in _RESTORING_FUNCTIONS:
            with suppress(Exception):  # an older driver lacks it, or another binding has no such look-up
                pynvml._nvmlGetFunctionPointer(function)
        self._handles = {}
        self._process_id = os.getpid()


def _read_mig_uuids(handle: Any) -> list[str]:
    """Read the UUIDs of a GPU's MIG devices; none if it is not partitioned."""
    import pynvml

    uuids: list[str] = []
    try:
        for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            uuids.append(str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))))
    except pynvml.NVMLError:
        pass  # past the last one, or a GPU that cannot be partitioned
    return uuids
