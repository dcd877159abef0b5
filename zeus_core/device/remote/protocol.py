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
# A request for a change, and the reply to one, as this module writes them.
_KNOB = "[a-z_]{1,32}"
_ID, _NUMBER = r"(0|[1-9][0-9]{0,14})", r"(-?(?:0|[1-9][0-9]{0,7})(?:\.[0-9]{1,17})?)"
_CHANGE = re.compile(
    rf'\{{"id":{_ID},"op":"set","device":"({_DEVICE.pattern})","knob":"({_KNOB})","value":{_NUMBER}\}}'.encode()
)
_CHANGED = re.compile(rf'\{{"id":{_ID},"result":\{{"enforced":{_NUMBER}\}}\}}'.encode())

_encode_json = json.JSONEncoder(separators=(",", ":"), check_circular=False, allow_nan=False).encode


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


def encode_members(fields: Mapping[str, Any]) -> str:
    """Return fields as JSON writes them within an object, without spaces."""
    return _encode_json(dict(fields))[1:-1]


def encode_number(value: float | None) -> str:
    """Return a number as JSON writes it: without the encoder, which takes several times as long."""
    return repr(value) if type(value) is float and math.isfinite(value) else _encode_json(value)


def encode_request(number: int, operation: str, members: str) -> bytes:
    """Return the line of a request.

    Args:
        number: Tells the replies apart.
        operation: A key of `_FIELDS`.
        members: The fields, as `encode_members` writes them.
    """
    return f'{{"id":{number},"op":"{operation}"{members and ","}{members}}}\n'.encode()


def decode_request(line: bytes) -> Request:
    """Return the request in a line.

    Raises:
        ProtocolError: The line is not a valid request; the message says why.
    """
    change = _CHANGE.fullmatch(line)
    if change is not None and change[3].decode() in KINDS:  # as nearly always; to decode JSON takes four times as long
        number, device, knob, value = change.groups()
        return Request(int(number), "set", {"device": device.decode(), "knob": knob.decode(), "value": float(value)})
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
    return _line({"id": number, "result": result})


def encode_changed(number: int, enforced: float | None) -> bytes:
    """Return the line of a reply to a change: what `encode_result` returns, in less time."""
    result = "" if enforced is None else f'"enforced":{encode_number(enforced)}'
    return f'{{"id":{number},"result":{{{result}}}}}\n'.encode()


def encode_error(number: int, error: ZeusError) -> bytes:
    """Return the line of a reply that is an error."""
    kind = next((name for name, cls in _ERRORS.items() if isinstance(error, cls)), "fault")
    return _line({"id": number, "error": kind, "message": str(error)[: MAX_REPLY_BYTES // 8]})


def decode_reply(line: bytes) -> tuple[int, dict[str, Any] | ZeusError]:
    """Return the number of a reply, and its result or its error.

    Raises:
        ProtocolError: It is no reply.
    """
    changed = _CHANGED.fullmatch(line)
    if changed is not None:  # as nearly always; the decoder of JSON takes four times as long
        return int(changed[1]), {"enforced": float(changed[2])}
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


_DEVICE_FIELDS: dict[str, Callable[[Any], bool]] = {
    "device": lambda value: type(value) is str and _DEVICE.fullmatch(value) is not None,
    "knob": lambda value: value in KINDS if type(value) is str else False,
}

_FIELDS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "hello": {"version": _is_count, "program": _is_text, "job": _is_text, "token": _is_text, "start_ticks": _is_count},
    "allowed": _DEVICE_FIELDS,
    "set": {**_DEVICE_FIELDS, "value": _is_number},
    "restore": _DEVICE_FIELDS,
    "release": _DEVICE_FIELDS,
    "list": {},
    "energy": {"zone": lambda value: type(value) is str and _ZONE.fullmatch(value) is not None},
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


def _line(values: Mapping[str, Any]) -> bytes:
    return f"{_encode_json(values)}\n".encode()


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
