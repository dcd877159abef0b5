"""The scopes of power limits, on boards whose module holds a CPU beside the GPU, such as GH200 and GB200.

Such a board has a limit for the GPU alone, one for the whole module, or both. The functions of NVML without a scope are
not used there: what they mean depends on the board. The limit of a module is no setting of the GPU, as the firmware
serves the CPU first. These functions call the library itself, for the guardian, which does without the binding, and
since the binding's own `nvmlDeviceSetPowerManagementLimit_v2` drops the code that the driver returns (13.615).
"""

from __future__ import annotations

import struct
from enum import Enum

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["LIMIT_FIELDS", "LimitScope", "find_limit_scope", "read_limit_milliwatts", "set_limit_milliwatts"]

_GPU, _MODULE = 0, 1  # NVML_POWER_SCOPE_GPU, NVML_POWER_SCOPE_MODULE
# NVML_FI_DEV_POWER_MIN_LIMIT and those that follow; "enforced" is NVML_FI_DEV_POWER_CURRENT_LIMIT.
LIMIT_FIELDS = {"lowest": 187, "highest": 188, "default": 189, "enforced": 190, "requested": 192}
_QUESTION = struct.Struct("=II32x")  # nvmlFieldValue_t: fieldId, scopeId; the driver fills the rest
_ANSWER = struct.Struct("=28xII")  # behind timestamp, latency and valueType: nvmlReturn, the value as unsigned int
_VALUE = struct.Struct("=IBxxxI")  # nvmlPowerValue_v2_t: version, powerScope, powerValueMw
_VALUE_VERSION = 2 << 24 | _VALUE.size
_FUNCTION_NOT_FOUND = 13
# An older driver calls a field that it does not know an invalid argument.
_NO_SCOPES = frozenset({2, 3, _FUNCTION_NOT_FOUND})


class LimitScope(Enum):
    """The parts of a board that its power limit covers."""

    BOARD = "the board, which has one limit"
    GPU = "the GPU; there is another limit for its module"
    MODULE = "the module alone"


def find_limit_scope(library: Any, handle: Any) -> tuple[int, LimitScope]:
    """Ask which limits a device has.

    Args:
        library: NVML, as ctypes has loaded it.
        handle: The device.

    Returns:
        An NVML code, 0 if the answer is known, and the scope of the limit to control.
    """
    code, _ = _read(library, handle, "requested", _MODULE)
    if code in _NO_SCOPES:
        return 0, LimitScope.BOARD
    if code != 0:
        return code, LimitScope.BOARD
    code, _ = _read(library, handle, "requested", _GPU)
    if code in _NO_SCOPES:
        return 0, LimitScope.MODULE
    return code, LimitScope.GPU


def read_limit_milliwatts(library: Any, handle: Any, which: str) -> tuple[int, int]:
    """Read a limit of the GPU alone: a key of `LIMIT_FIELDS`. Returns an NVML code, and the limit."""
    return _read(library, handle, which, _GPU)


def set_limit_milliwatts(library: Any, handle: Any, limit_milliwatts: int) -> int:
    """Request a limit of the GPU alone. Returns an NVML code."""
    function = getattr(library, "nvmlDeviceSetPowerManagementLimit_v2", None)
    if function is None:
        return _FUNCTION_NOT_FOUND
    return int(function(handle, _VALUE.pack(_VALUE_VERSION, _GPU, limit_milliwatts)))


def _read(library: Any, handle: Any, which: str, scope: int) -> tuple[int, int]:
    import ctypes  # 3 ms, which programs without a GPU do without

    function = getattr(library, "nvmlDeviceGetFieldValues", None)
    if function is None:
        return _FUNCTION_NOT_FOUND, 0
    value = ctypes.create_string_buffer(_QUESTION.pack(LIMIT_FIELDS[which], scope), _QUESTION.size)
    code = int(function(handle, 1, value))
    return (code, 0) if code != 0 else _ANSWER.unpack_from(value)
