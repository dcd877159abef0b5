"""The settings of a board that the binding cannot read and set with all their codes: power limits and profiles.

The functions here call the library that the binding has loaded. The binding's own
`nvmlDeviceSetPowerManagementLimit_v2` drops the code that the driver returns (13.615).

A board whose module holds a CPU beside the GPU, such as GH200 and GB200, has a limit for the GPU alone, one for the
whole module, or both: the *scope* of a limit. The functions of NVML without a scope are not used there: what they mean
depends on the board. The limit of a module is no setting of the GPU, as the firmware serves the CPU first.
"""

from __future__ import annotations

import ctypes
import struct
from enum import Enum
from typing import Any, NamedTuple

from zeus_core.device.nvml.return_codes import FUNCTION_NOT_FOUND
from zeus_core.errors import NotSupportedError

# An older driver calls a field that it does not know an invalid argument.
_NO_SCOPES = frozenset({2, 3, FUNCTION_NOT_FOUND})

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


def is_in_range(library: Any, handle: Any, scope: LimitScope, limit_milliwatts: int) -> bool:
    """Tell whether a limit lies in the range that the driver states; also if it states none."""
    if scope is LimitScope.GPU:
        lowest_code, lowest = _read_field(library, handle, "lowest", _GPU)
        highest_code, highest = _read_field(library, handle, "highest", _GPU)
        is_stated = lowest_code == highest_code == 0
    else:
        ends = ctypes.c_uint(), ctypes.c_uint()
        function = "nvmlDeviceGetPowerManagementLimitConstraints"
        is_stated = _call(library, function, handle, *map(ctypes.byref, ends)) == 0
        lowest, highest = ends[0].value, ends[1].value
    return lowest <= limit_milliwatts <= highest if is_stated else 0 <= limit_milliwatts < 2**32


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
    if code != FUNCTION_NOT_FOUND:
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
    return FUNCTION_NOT_FOUND if found is None else int(found(*arguments))
