"""One field value of NVML, read at less than half of the binding's own cost.

The binding makes a new array for each call of `nvmlDeviceGetFieldValues` and looks every attribute of it up in Python.
The function takes an array of `nvmlFieldValue_t` (NVML API reference), which is laid out here.
"""

from __future__ import annotations

import struct
from typing import Any

_VALUE_BYTES = 40
_HEAD = struct.Struct("=II")  # fieldId, scopeId
_ANSWER = struct.Struct("=28xII")  # behind timestamp, latency and valueType: nvmlReturn, the value as unsigned int


class FieldReader:
    """Reads one field of any device.

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
            return 13, 0  # NVML_ERROR_FUNCTION_NOT_FOUND
        value = self._new_value(self._question)
        code: int = self._call(handle, 1, value)
        return (code, 0) if code != 0 else _ANSWER.unpack_from(value)
