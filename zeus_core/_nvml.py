"""The few calls of NVML that restoring needs, made without the binding; and the meaning of all codes of NVML.

The guardian of a process, the first stage of the daemon and `zeus-core restore` call the library itself, by `BareNvml`:
the binding would double their time to start and their memory. `zeus_core/device/nvml` takes from here how power limits
are read and set, as the binding's own `nvmlDeviceSetPowerManagementLimit_v2` drops the code that the driver returns
(13.615).

A board whose module holds a CPU beside the GPU, such as GH200 and GB200, has a limit for the GPU alone, one for the
whole module, or both: the *scope* of a limit. The functions of NVML without a scope are not used there: what they mean
depends on the board. The limit of a module is no setting of the GPU, as the firmware serves the CPU first.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

from zeus_core.errors import (
    DeviceError,
    DeviceLostError,
    DriverFaultError,
    NoDeviceError,
    NotSupportedError,
    PermissionDeniedError,
    UsageError,
)
from zeus_core.units import milliwatts_from_watts, watts_from_milliwatts

_LIBRARY = "libnvidia-ml.so.1"

UNINITIALIZED = 1  # NVML_ERROR_UNINITIALIZED; the numbers below are those of nvmlReturn_t in nvml.h, too
_INVALID_ARGUMENT = 2
_FUNCTION_NOT_FOUND = 13
# An older driver calls a field that it does not know an invalid argument.
_NO_SCOPES = frozenset({2, 3, _FUNCTION_NOT_FOUND})

# Codes and meanings are those of nvmlReturn_t in the NVML API reference. A code that is not in the table, of a newer
# driver, counts as a passing driver fault.
_MEANINGS: dict[int, tuple[type[DeviceError], str]] = {
    1: (DriverFaultError, "NVML is not initialised in this process; this is repaired by itself at the next call"),
    2: (DriverFaultError, "the driver calls an argument invalid; check the value against `zeus-core top --once`"),
    3: (NotSupportedError, "this GPU does not have this function"),
    4: (PermissionDeniedError, "this needs root or CAP_SYS_ADMIN"),
    6: (NoDeviceError, "there is no such GPU; list the GPUs with `nvidia-smi -L`"),
    8: (DeviceLostError, "the GPU's external power cables are not attached"),
    9: (NoDeviceError, "the NVIDIA driver is not loaded; load it with `sudo modprobe nvidia`"),
    10: (DriverFaultError, "the driver did not answer in time"),
    11: (DriverFaultError, "the kernel has an interrupt problem with this GPU; see `dmesg`"),
    12: (NoDeviceError, "the NVIDIA driver's library libnvidia-ml.so.1 is not on this machine"),
    13: (NotSupportedError, "the installed driver is too old for this function; update the NVIDIA driver"),
    14: (DriverFaultError, "the GPU's info ROM is damaged; see `nvidia-smi -q`"),
    15: (DeviceLostError, "the GPU fell off the bus; it is back after a reset or a reboot"),
    16: (DeviceLostError, "the GPU needs a reset: `sudo nvidia-smi --gpu-reset`"),
    17: (PermissionDeniedError, "the operating system or the container keeps this process from the GPU"),
    18: (NoDeviceError, "the driver's kernel module and its library differ in version; reboot after the update"),
    19: (DriverFaultError, "the GPU is in use in a way that forbids this"),
    20: (DriverFaultError, "the driver is out of memory"),
    21: (DriverFaultError, "the GPU has no data for this yet"),
    24: (NotSupportedError, "this GPU does not have this function"),
    26: (NotSupportedError, "the installed driver no longer has this function"),
    27: (DriverFaultError, "the GPU is not ready yet"),
    28: (NoDeviceError, "there is no such GPU; list the GPUs with `nvidia-smi -L`"),
    29: (DriverFaultError, "the GPU is in a state that forbids this"),
    999: (
        DriverFaultError,
        "the driver failed without saying why; if `nvidia-smi` fails as well, a container has lost its GPUs, as after "
        "`systemctl daemon-reload` on its host: restart the container",
    ),  # github.com/NVIDIA/nvidia-container-toolkit/issues/48
}

_GPU, _MODULE = 0, 1  # NVML_POWER_SCOPE_GPU, NVML_POWER_SCOPE_MODULE
# The limits of a board: the field NVML_FI_DEV_POWER_..._LIMIT, which has scopes, and the function, which has none.
_LIMITS = {
    "lowest": (187, ""),  # without scopes, one function reads both ends
    "highest": (188, ""),
    "default": (189, "nvmlDeviceGetPowerManagementDefaultLimit"),
    "enforced": (190, "nvmlDeviceGetEnforcedPowerLimit"),
    "requested": (192, "nvmlDeviceGetPowerManagementLimit"),
}
_QUESTION = struct.Struct("=II32x")  # nvmlFieldValue_t: fieldId, scopeId; the driver fills the rest
_ANSWER = struct.Struct("=28xII")  # behind timestamp, latency and valueType: nvmlReturn, the value as unsigned int
_VALUE = struct.Struct("=IBxxxI")  # nvmlPowerValue_v2_t: version, powerScope, powerValueMw
_VALUE_VERSION = 2 << 24 | _VALUE.size
# Workload power profiles: masks of 255 bits, bit i for the profile with the id i.
_CURRENT = struct.Struct("=I32s32s32s")  # ...CurrentProfiles_v1_t: version; supported, requested, enforced
_REQUESTED = struct.Struct("=I32s")  # ...RequestedProfiles_v1_t: version, mask; ...UpdateProfiles_v1_t: operation, mask
_OVERWRITE = 2  # NVML_POWER_PROFILE_OPERATION_SET_AND_OVERWRITE


def device_error(code: int, call: str) -> DeviceError:
    """Return the error to raise for an NVML code.

    Args:
        code: The `nvmlReturn_t` value.
        call: Words for the message, such as "reading the power of GPU-…".
    """
    kind, meaning = _MEANINGS.get(code, (DriverFaultError, "the driver failed in a way unknown to this version"))
    return kind(f"{call} failed: {meaning} (NVML error {code})")


def limit_command(uuids: Iterable[str], limit_watts: float) -> str:
    """Return the command by which an administrator sets a power limit on some GPUs."""
    return f"sudo nvidia-smi -i {','.join(uuids)} -pl {limit_watts:g}"


def clock_command(uuids: Iterable[str], clock_mhz: float | None) -> str:
    """Return the command by which an administrator locks the SM clock of some GPUs, or unlocks it (None)."""
    return f"sudo nvidia-smi -i {','.join(uuids)} " + ("-rgc" if clock_mhz is None else f"-lgc {clock_mhz:g}")


class LimitScope(Enum):
    """The parts of a board that its power limit covers."""

    BOARD = "the board, which has one limit"
    GPU = "the GPU; there is another limit for its module"
    MODULE = "the module alone"


# Questions to the library, as ctypes has loaded it, about a device. Each returns a code of NVML, 0 if the answer is
# known, and the answer.


def find_limit_scope(library: Any, handle: Any) -> tuple[int, LimitScope]:
    """Ask for the scope of the limit to control."""
    code, _ = _read_field(library, handle, "requested", _MODULE)
    if code in _NO_SCOPES:
        return 0, LimitScope.BOARD
    if code != 0:
        return code, LimitScope.BOARD
    code, _ = _read_field(library, handle, "requested", _GPU)
    if code in _NO_SCOPES:
        return 0, LimitScope.MODULE
    return code, LimitScope.GPU


def read_limit(library: Any, handle: Any, scope: LimitScope, which: str) -> tuple[int, int]:
    """Ask for a limit in milliwatts: a key of `_LIMITS`. The limit of a module alone is read by the usual function."""
    if scope is LimitScope.GPU:
        return _read_field(library, handle, which, _GPU)
    milliwatts = ctypes.c_uint()
    code = _call(library, _LIMITS[which][1], handle, ctypes.byref(milliwatts))
    return code, milliwatts.value


def set_limit(library: Any, handle: Any, scope: LimitScope, limit_milliwatts: int) -> tuple[int, None]:
    """Request a limit.

    Raises:
        NotSupportedError: There is one for the whole module alone.
    """
    if scope is LimitScope.MODULE:
        raise NotSupportedError(
            "the board has a power limit for its whole module alone, which serves the CPU first: the GPU is measured, "
            "and its limit is not changed"
        )
    if scope is LimitScope.BOARD:
        limit = ctypes.c_uint(limit_milliwatts)
        return _call(library, "nvmlDeviceSetPowerManagementLimit", handle, limit), None
    value = _VALUE.pack(_VALUE_VERSION, _GPU, limit_milliwatts)
    return _call(library, "nvmlDeviceSetPowerManagementLimit_v2", handle, value), None


def _is_in_range(library: Any, handle: Any, limit_milliwatts: int) -> bool:
    """Tell whether a limit lies in the range that the driver states; also if it states none."""
    lowest, highest = ctypes.c_uint(), ctypes.c_uint(2**32 - 1)
    function = "nvmlDeviceGetPowerManagementLimitConstraints"
    _call(library, function, handle, ctypes.byref(lowest), ctypes.byref(highest))
    return lowest.value <= limit_milliwatts <= highest.value


class PowerProfiles(NamedTuple):
    """The workload power profiles of a board, as masks."""

    supported: int
    requested: int
    enforced: int


def read_profiles(library: Any, handle: Any) -> tuple[int, PowerProfiles]:
    """Ask for the profiles. Boards before Blackwell have none."""
    question = _CURRENT.pack(1 << 24 | _CURRENT.size, *3 * [b""])
    answer = ctypes.create_string_buffer(question, _CURRENT.size)
    code = _call(library, "nvmlDeviceWorkloadPowerProfileGetCurrentProfiles", handle, answer)
    return code, PowerProfiles(*(int.from_bytes(mask, "little") for mask in _CURRENT.unpack(answer.raw)[1:]))


def set_profiles(library: Any, handle: Any, mask: int) -> tuple[int, None]:
    """Request these profiles and no others. Drivers before 590 clear those that are requested, and then add."""
    prefix, wanted = "nvmlDeviceWorkloadPowerProfile", mask.to_bytes(32, "little")
    code = _call(library, f"{prefix}UpdateProfiles_v1", handle, _REQUESTED.pack(_OVERWRITE, wanted))
    if code != _FUNCTION_NOT_FOUND:
        return code, None
    code, now = read_profiles(library, handle)
    steps = ("Clear", now.requested.to_bytes(32, "little")), ("Set", wanted)
    for name, step in steps:
        if code == 0 and any(step):
            value = _REQUESTED.pack(1 << 24 | _REQUESTED.size, step)
            code = _call(library, f"{prefix}{name}RequestedProfiles", handle, value)
    return code, None


def _read_field(library: Any, handle: Any, which: str, scope: int) -> tuple[int, int]:
    value = ctypes.create_string_buffer(_QUESTION.pack(_LIMITS[which][0], scope), _QUESTION.size)
    code = _call(library, "nvmlDeviceGetFieldValues", handle, 1, value)
    return (code, 0) if code != 0 else _ANSWER.unpack_from(value)


def _call(library: Any, function: str, *arguments: object) -> int:
    """Call a function of the library, which an old one may lack. Returns a code of NVML."""
    found = getattr(library, function, None)
    return _FUNCTION_NOT_FOUND if found is None else int(found(*arguments))


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
        self.call(f"finding {device_uuid}", "nvmlDeviceGetHandleByUUID", device_uuid.encode(), ctypes.byref(handle))
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
            _check(library.nvmlInit_v2(), "opening NVML")
            self._library = library

    def call(self, action: str, function: str, *arguments: object) -> None:
        """Call a function. See `ask`."""
        self.ask(action, lambda library: (_call(library, function, *arguments), None))

    def ask(self, action: str, question: Callable[[Any], tuple[int, Any]]) -> Any:
        """Put a question to the library, once more if the driver has lost the session, and return the answer.

        Args:
            action: Words for the message of an error.
            question: Returns a code of NVML, and the answer.

        Raises:
            DeviceError: The code says that it failed.
        """
        code, answer = question(self._library)
        if code == UNINITIALIZED:
            _check(self._library.nvmlInit_v2(), "opening NVML")
            code, answer = question(self._library)
        _check(code, action)
        return answer


def _check(code: int, action: str) -> None:
    if code != 0:
        raise device_error(code, action)


class BareGpu:
    """One GPU, as far as restoring needs it. Its methods are those of a `Gpu`."""

    def __init__(self, nvml: BareNvml, device_uuid: str, handle: object) -> None:
        self.uuid = device_uuid
        """The identity of the device."""
        self._nvml = nvml
        self._handle = handle

    def read_power_limit_watts(self) -> float:
        """Read the power limit requested last."""
        return self._read_limit_watts("requested")

    def read_default_power_limit_watts(self) -> float:
        """Read the power limit that the driver begins with."""
        return self._read_limit_watts("default")

    def _read_limit_watts(self, which: str) -> float:
        question = partial(read_limit, handle=self._handle, scope=self._find_scope(), which=which)
        return watts_from_milliwatts(self._nvml.ask(f"reading the {which} power limit of {self.uuid}", question))

    def set_power_limit(self, limit_watts: float) -> None:
        """Request a power limit. Raises `UsageError` if it is outside the range of the board."""
        limit, scope = milliwatts_from_watts(limit_watts), self._find_scope()

        def question(library: Any) -> tuple[int, None]:
            # The driver takes an unsigned number of 32 bits: one that is too large would stand for another limit.
            code = set_limit(library, self._handle, scope, limit)[0] if 0 <= limit < 2**32 else _INVALID_ARGUMENT
            if code == _INVALID_ARGUMENT and not _is_in_range(library, self._handle, limit):
                raise UsageError(f"limit_watts is {limit_watts:g}, which {self.uuid} does not accept")
            return code, None

        self._nvml.ask(f"setting the power limit of {self.uuid}", question)

    def _find_scope(self) -> LimitScope:
        action = f"looking for the scope of the power limit of {self.uuid}"
        scope: LimitScope = self._nvml.ask(action, partial(find_limit_scope, handle=self._handle))
        return scope

    def read_power_profiles(self) -> PowerProfiles:
        """Read the workload power profiles."""
        question = partial(read_profiles, handle=self._handle)
        profiles: PowerProfiles = self._nvml.ask(f"reading the power profiles of {self.uuid}", question)
        return profiles

    def set_power_profiles(self, mask: int) -> None:
        """Request these workload power profiles and no others."""
        question = partial(set_profiles, handle=self._handle, mask=mask)
        self._nvml.ask(f"setting the power profiles of {self.uuid}", question)

    def lock_sm_clock(self, clock_mhz: int) -> None:
        """Hold the SM clock."""
        clock = ctypes.c_uint(clock_mhz)
        action = f"locking the SM clock of {self.uuid}"
        self._nvml.call(action, "nvmlDeviceSetGpuLockedClocks", self._handle, clock, clock)

    def unlock_sm_clock(self) -> None:
        """Let the SM clock move freely."""
        action = f"unlocking the SM clock of {self.uuid}"
        self._nvml.call(action, "nvmlDeviceResetGpuLockedClocks", self._handle)
