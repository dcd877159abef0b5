"""The few functions of NVML that restoring needs, called without the binding: it takes a third of the memory.

The guardian of a process is another process, which only waits. `zeus_core/device/nvml` is for everything else.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial

from zeus_core._units import milliwatts_from_watts, watts_from_milliwatts
from zeus_core.errors import (
    DeviceError,
    DeviceLostError,
    DriverFaultError,
    NoDeviceError,
    NotSupportedError,
    PermissionDeniedError,
)
from zeus_core.leases._limit_scope import (
    LimitScope,
    find_limit_scope,
    read_limit_milliwatts,
    set_limit_milliwatts,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    _Answer = TypeVar("_Answer")

__all__ = ["BareGpu", "BareNvml"]

_LIBRARY = "libnvidia-ml.so.1"
# nvmlReturn_t. All other codes are faults that may pass, so that the call is made again.
_ERRORS: dict[int, type[DeviceError]] = {
    3: NotSupportedError,
    4: PermissionDeniedError,
    6: NoDeviceError,
    9: NoDeviceError,
    12: NoDeviceError,
    15: DeviceLostError,
}
_UNINITIALIZED = 1


class BareNvml:
    """NVML, loaded and opened by the first call.

    Args:
        library: The name or path of the library.
    """

    def __init__(self, library: str = _LIBRARY) -> None:
        self._name = library
        self._library: Any = None

    def gpu(self, device_uuid: str) -> BareGpu:
        """Open a GPU by its UUID.

        Raises:
            DeviceError: There is no such GPU, no driver, or it does not work.
        """
        handle = ctypes.c_void_p()
        self.open()
        self.call("nvmlDeviceGetHandleByUUID", device_uuid.encode(), ctypes.byref(handle))
        return BareGpu(self, device_uuid, handle)

    def open(self) -> None:
        """Load and open the driver, if that is not done yet.

        Raises:
            DeviceError: There is none, or it does not work.
        """
        if self._library is None:
            try:
                library = ctypes.CDLL(self._name)
            except OSError as error:
                raise NoDeviceError(f"there is no NVIDIA driver: {error}") from error
            library.nvmlErrorString.restype = ctypes.c_char_p
            self._check(library, "nvmlInit_v2", library.nvmlInit_v2())
            self._library = library

    def call(self, function: str, *arguments: object) -> None:
        """Call a function, once more if the driver has lost the session.

        Raises:
            DeviceError: The call failed.
        """
        self.ask(function, lambda library: (getattr(library, function)(*arguments), None))

    def ask(self, action: str, question: Callable[[Any], tuple[int, _Answer]]) -> _Answer:
        """Put a question to the library, once more if the driver has lost the session, and return the answer.

        Args:
            action: Words for the message of an error.
            question: Returns a code of NVML, and the answer.

        Raises:
            DeviceError: The code says that it failed.
        """
        code, answer = question(self._library)
        if code == _UNINITIALIZED:
            self._check(self._library, "nvmlInit_v2", self._library.nvmlInit_v2())
            code, answer = question(self._library)
        self._check(self._library, action, code)
        return answer

    def _check(self, library: Any, function: str, code: int) -> None:
        if code != 0:
            words = library.nvmlErrorString(code).decode(errors="replace")
            raise _ERRORS.get(code, DriverFaultError)(f"{function}: {words} (NVML code {code})")


class BareGpu:
    """One GPU, as far as restoring needs it: a `RestorableGpu`."""

    def __init__(self, nvml: BareNvml, device_uuid: str, handle: ctypes.c_void_p) -> None:
        self.uuid = device_uuid
        """The identity of the device."""
        self._nvml = nvml
        self._handle = handle

    def read_power_limit_watts(self) -> float:
        """Read the power limit requested last."""
        return self._read_limit_watts("requested", "nvmlDeviceGetPowerManagementLimit")

    def read_default_power_limit_watts(self) -> float:
        """Read the power limit that the driver begins with."""
        return self._read_limit_watts("default", "nvmlDeviceGetPowerManagementDefaultLimit")

    def _read_limit_watts(self, which: str, function: str) -> float:
        if self._find_scope() is LimitScope.GPU:
            return watts_from_milliwatts(
                self._nvml.ask(
                    f"reading the {which} power limit",
                    partial(read_limit_milliwatts, handle=self._handle, which=which),
                )
            )
        milliwatts = ctypes.c_uint()
        self._nvml.call(function, self._handle, ctypes.byref(milliwatts))
        return watts_from_milliwatts(milliwatts.value)

    def set_power_limit(self, limit_watts: float) -> None:
        """Request a power limit."""
        milliwatts, scope = milliwatts_from_watts(limit_watts), self._find_scope()
        if scope is LimitScope.MODULE:
            raise NotSupportedError(f"{self.uuid} has a power limit for its whole module alone")
        if scope is LimitScope.GPU:
            self._nvml.ask(
                "setting the power limit",
                lambda library: (set_limit_milliwatts(library, self._handle, milliwatts), None),
            )
        else:
            self._nvml.call("nvmlDeviceSetPowerManagementLimit", self._handle, ctypes.c_uint(milliwatts))

    def _find_scope(self) -> LimitScope:
        return self._nvml.ask("looking for the scope of limits", partial(find_limit_scope, handle=self._handle))

    def lock_sm_clock(self, clock_mhz: int) -> None:
        """Hold the SM clock."""
        clock = ctypes.c_uint(clock_mhz)
        self._nvml.call("nvmlDeviceSetGpuLockedClocks", self._handle, clock, clock)

    def unlock_sm_clock(self) -> None:
        """Let the SM clock move freely."""
        self._nvml.call("nvmlDeviceResetGpuLockedClocks", self._handle)
