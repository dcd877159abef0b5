"""The connection of a process to NVML, the NVIDIA driver's library, through its official binding nvidia-ml-py.

Nothing is loaded before the first call. Every call that fails raises one of the package's errors.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

from zeus_core.device.nvml.return_codes import FUNCTION_NOT_FOUND, UNINITIALIZED, device_error
from zeus_core.device.retry import retried
from zeus_core.errors import DeviceError, NotSupportedError
from zeus_core.process.lock import process_id

Question = Callable[..., tuple[int, Any]]
"""Asks the library about a handle, and returns a code of NVML, 0 if the answer is known, and the answer."""

_RESTORING_FUNCTIONS = (
    "nvmlDeviceGetPowerManagementLimitConstraints",
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

    def read_uuids(self) -> list[str | DeviceError]:
        """Read the UUIDs of the GPUs the driver shows this process, in PCI order.

        Returns:
            The UUID of each GPU, or the reason why it is unknown also after some tries.

        Raises:
            DeviceError: There is no driver, or it does not work.
        """
        count = retried(lambda: self.call(None, "counting the GPUs", "nvmlDeviceGetCount"))
        return [self._open_device(index) for index in range(count)]

    def read_names(self, uuids: Iterable[str]) -> list[str]:
        """Read the product names of some GPUs, without those that do not answer."""
        names: list[str] = []
        for uuid in uuids:
            with suppress(DeviceError):
                names.append(str(retried(partial(self.call, uuid, "reading the name", "nvmlDeviceGetName"))))
        return names

    def read_mig_parents(self, uuids: Iterable[str]) -> dict[str, str]:
        """Return the UUID of the GPU of each MIG device, by the UUID of the MIG device.

        Args:
            uuids: The UUIDs of the GPUs.
        """
        parents: dict[str, str] = {}
        for uuid in uuids:
            parents.update(dict.fromkeys(self._read_mig_uuids(uuid), uuid))
        return parents

    def handle(self, uuid: str) -> Any:
        """Return the handle of a GPU in this process. Raises what the binding raises."""
        self.open()
        handle = self._handles.get(uuid)
        return self._find_handle(uuid) if handle is None else handle

    def call(self, uuid: str | None, action: str, function: str | Question, *arguments: object) -> Any:
        """Call an NVML function, and once more if the driver has lost the session.

        Args:
            uuid: The UUID of the GPU; None for a function that does not take the handle of one.
            action: Words for the message of an error, such as "reading the power".
            function: The function's name in the binding; or a question of `board_settings` about a GPU.
            *arguments: The arguments after the handle.

        Raises:
            DeviceError: The call failed; see `device_error`.
        """
        import pynvml

        if isinstance(function, str) and not hasattr(pynvml, function):
            raise NotSupportedError(f"{action} needs a newer nvidia-ml-py: pip install -U nvidia-ml-py")
        for is_last_try in (False, True):
            try:
                self.open()
                handles = () if uuid is None else (self.handle(uuid),)
                if isinstance(function, str):
                    return getattr(pynvml, function)(*handles, *arguments)
                code, answer = function(pynvml.nvmlLib, *handles, *arguments)
                if code == 0:
                    return answer
            except pynvml.NVMLError as error:
                code = error.value
            if code != UNINITIALIZED or is_last_try:
                break
            self._process_id = None
        raise device_error(code, action if uuid is None else f"{action} of {uuid}")

    def read_driver_version(self) -> str:
        """Call `nvmlSystemGetDriverVersion`.

        Raises:
            DeviceError: The call failed.
        """
        return str(self.call(None, "reading the version of the driver", "nvmlSystemGetDriverVersion"))

    def _find_handle(self, uuid: str) -> Any:
        """Find a GPU the session does not know yet, or whose handle it has lost."""
        import pynvml

        handles = self._handles  # another thread that opens the session anew begins with others
        try:
            handle = handles[uuid] = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except pynvml.NVMLError:
            self.read_uuids()  # an older driver lacks the function
            handle = self._handles.get(uuid)
            if handle is None:
                raise
        return handle

    def _open_device(self, index: int) -> str | DeviceError:
        """Return the UUID of a GPU and keep its handle, or why it does not answer, which must not hide the others."""

        def open_once() -> str:
            handle = self.call(None, "reading its UUID", "nvmlDeviceGetHandleByIndex", index)
            uuid = str(self.call(None, "reading its UUID", "nvmlDeviceGetUUID", handle))
            self._handles[uuid] = handle
            return uuid

        try:
            return retried(open_once, DeviceError)  # of any kind: a GPU must not lose its index for one wrong answer
        except DeviceError as error:
            return error

    def _read_mig_uuids(self, uuid: str) -> list[str]:
        """Read the UUIDs of a GPU's MIG devices; none if it is not partitioned."""
        action, uuids = "looking for MIG devices", list[str]()
        with suppress(DeviceError):  # past the last one, or a GPU that cannot be partitioned
            for index in range(retried(partial(self.call, uuid, action, "nvmlDeviceGetMaxMigDeviceCount"))):
                find = partial(self.call, uuid, action, "nvmlDeviceGetMigDeviceHandleByIndex", index)
                uuids.append(str(retried(partial(self.call, None, action, "nvmlDeviceGetUUID", retried(find)))))
        return uuids

    def open(self) -> None:
        """Load and open the driver, unless this process has done so.

        Raises:
            DeviceError: There is no driver, or it does not work.
        """
        if self._process_id == process_id():
            return
        import pynvml

        def initialize() -> None:
            try:
                pynvml.nvmlInit()
            except pynvml.NVMLError as error:
                raise device_error(error.value, "opening NVML") from error

        retried(initialize)
        # The binding looks up a function under a lock when it is first called. A signal handler that interrupts such a
        # look-up, and restores by functions that were not looked up yet, would wait for that lock for ever.
        for function in _RESTORING_FUNCTIONS:
            with suppress(Exception):  # an older driver lacks it, or another binding has no such look-up
                pynvml._nvmlGetFunctionPointer(function)
        self._handles = {}
        self._process_id = process_id()


_VALUE_BYTES = 40
_HEAD = struct.Struct("=II")  # fieldId, scopeId
_ANSWER = struct.Struct("=28xII")  # behind timestamp, latency and valueType: nvmlReturn, the value as unsigned int


class FieldReader:
    """Reads one field of any device, at less than half of the binding's own cost.

    The binding makes a new array for each call of `nvmlDeviceGetFieldValues` and looks every attribute of it up in
    Python. The function takes an array of `nvmlFieldValue_t` (NVML API reference), which is laid out here.

    Args:
        field_id: The field, whose value is an unsigned int.
        scope_id: The part of the board, for fields that have scopes.
    """

    def __init__(self, field_id: int, scope_id: int = 0) -> None:
        import ctypes

        import pynvml

        self._call = getattr(pynvml.nvmlLib, "nvmlDeviceGetFieldValues", None)
        value_type = ctypes.c_char * _VALUE_BYTES
        self._new_value = value_type.from_buffer_copy
        self._question = bytearray(_VALUE_BYTES)
        _HEAD.pack_into(self._question, 0, field_id, scope_id)

    def read(self, handle: Any) -> tuple[int, int]:
        """Return the NVML code of the field, or of the call if that failed, and the value."""
        if self._call is None:
            return FUNCTION_NOT_FOUND, 0
        value = self._new_value(self._question)
        code: int = self._call(handle, 1, value)
        return (code, 0) if code != 0 else _ANSWER.unpack_from(value)
