"""The protocol between the daemon and its clients: a line of JSON for each request and each reply.

A client greets first, and has one request under way at a time. Requests are strict: a field that is missing, unknown,
named twice or of another type is refused. Replies have the request's number, and either a result or an error.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from zeus_core.device.gpu import OF_DAEMON, SIMULATED_GPUS_VARIABLE
from zeus_core.errors import (
    DeviceError,
    DeviceHeldError,
    DeviceLostError,
    DriverFaultError,
    NoDeviceError,
    NotSupportedError,
    PermissionDeniedError,
    UsageError,
    ZeusError,
)
from zeus_core.kinds import KINDS

VERSION = 1
MAX_REQUEST_BYTES = 4096  # the longest valid request, a greeting with long names, has about 1000
MAX_REPLY_BYTES = 65536  # a list of 16 devices has about 8000

SOCKET_VARIABLE = "ZEUS_DAEMON_SOCKET"
# Not in the folder of the ledger: containers get that of the socket, and could write into the ledger.
DEFAULT_SOCKET = "/run/zeus-core-socket/daemon.sock"
REHEARSAL_SOCKET = "/run/zeus-core/rehearsal/daemon.sock"

_MAX_NUMBER = 2**53  # of a request: what every reader of JSON holds exactly
_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,95}", re.ASCII)
_ZONE = re.compile(r"intel-rapl(:[0-9a-f]{1,4}){1,4}", re.ASCII)
_MAX_TEXT = 200


class ProtocolError(ZeusError):
    """The other side does not follow the protocol."""


class Request(NamedTuple):
    """A request that has the right form. Fields that its operation does not have are empty.

    Attributes:
        number: Chosen by the client, and repeated in the reply.
        operation: A key of `_FIELDS`.
        fields: By name; complete, and of the right type.
    """

    number: int
    operation: str
    fields: Mapping[str, Any]


def socket_path(environment: Mapping[str, str] = os.environ) -> str:
    """Return the path of the daemon's socket."""
    is_rehearsal = environment.get(SIMULATED_GPUS_VARIABLE, "").strip() == OF_DAEMON
    return environment.get(SOCKET_VARIABLE) or (REHEARSAL_SOCKET if is_rehearsal else DEFAULT_SOCKET)


def encode_line(values: Mapping[str, Any]) -> bytes:
    """Return values as a line of JSON without spaces."""
    return f"{json.dumps(values, separators=(',', ':'), allow_nan=False)}\n".encode()


def encode_request(number: int, operation: str, fields: Mapping[str, Any]) -> bytes:
    """Return the line of a request.

    Args:
        number: Tells the replies apart.
        operation: A key of `_FIELDS`.
        fields: Its fields.
    """
    return encode_line({"id": number, "op": operation, **fields})


def decode_request(line: bytes) -> Request:
    """Return the request in a line.

    Raises:
        ProtocolError: The line is not a valid request; the message says why.
    """
    values = _object(line)
    number, operation = values.pop("id", None), values.pop("op", None)
    if type(number) is not int or not 0 <= number <= _MAX_NUMBER:
        raise ProtocolError('"id" is not a whole number, at least 0')
    fields = _FIELDS.get(operation) if type(operation) is str else None
    if fields is None:
        raise ProtocolError(f'"op" is none of {", ".join(_FIELDS)}')
    if values.keys() != fields.keys():
        raise ProtocolError(f"a request {operation!r} has the fields {', '.join(['id', 'op', *fields])}, and no others")
    for name, is_valid in fields.items():
        if not is_valid(values[name]):
            raise ProtocolError(f'"{name}" of a request {operation!r} has a value that is not allowed')
    return Request(number, operation, values)


def encode_result(number: int, result: Mapping[str, Any]) -> bytes:
    """Return the line of a reply."""
    return encode_line({"id": number, "result": result})


def encode_error(number: int, error: ZeusError) -> bytes:
    """Return the line of a reply that is an error."""
    kind = next((name for name, cls in _ERRORS.items() if isinstance(error, cls)), "fault")
    return encode_line({"id": number, "error": kind, "message": str(error)[: MAX_REPLY_BYTES // 8]})


def decode_reply(line: bytes) -> tuple[int, dict[str, Any] | ZeusError]:
    """Return the number of a reply, and its result or its error.

    Raises:
        ProtocolError: It is no reply.
    """
    values = _object(line)
    number, result = values.get("id"), values.get("result")
    if type(number) is int and isinstance(result, dict):
        return number, result
    kind, message = values.get("error"), values.get("message")
    if type(number) is int and isinstance(kind, str) and isinstance(message, str):
        return number, _ERRORS.get(kind, DeviceError)(message)
    raise ProtocolError("a reply has neither a result nor an error")


def _is_text(value: Any) -> bool:
    # Not printable: what it could do to the terminal of an administrator who reads the log.
    return type(value) is str and len(value) <= _MAX_TEXT and value.isprintable()


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e9 and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MAX_NUMBER


def _is_device(value: Any) -> bool:
    return type(value) is str and _DEVICE.fullmatch(value) is not None


def _is_knob(value: Any) -> bool:
    return type(value) is str and value in KINDS


def _is_zone(value: Any) -> bool:
    return type(value) is str and _ZONE.fullmatch(value) is not None


_SETTING = {"device": _is_device, "knob": _is_knob}
# The fields of each operation, with what tells whether a value is allowed.
_FIELDS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "hello": {"version": _is_count, "program": _is_text, "job": _is_text, "token": _is_text, "start_ticks": _is_count},
    "allowed": {**_SETTING},
    "set": {**_SETTING, "value": _is_number},
    "restore": {**_SETTING},
    "release": {**_SETTING},
    "list": {},
    "energy": {"zone": _is_zone},
}

# By the first that fits: subclasses before their bases.
_ERRORS: dict[str, type[ZeusError]] = {
    "protocol": ProtocolError,
    "usage": UsageError,
    "held": DeviceHeldError,
    "denied": PermissionDeniedError,
    "unsupported": NotSupportedError,
    "no_device": NoDeviceError,
    "lost": DeviceLostError,
    "fault": DriverFaultError,
    "device": DeviceError,
}


def _object(line: bytes) -> dict[str, Any]:
    try:
        text = line.decode("utf-8").strip(" \t\r\n")
        values, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("it is no JSON in UTF-8") from error
    if not isinstance(values, dict) or end != len(text):
        raise ProtocolError("it is no JSON object")
    return values


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a name is there twice")
    return values


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)
