"""Conversion between frozen values and JSON types, checked against the annotations of their classes.

| value | JSON |
|---|---|
| dataclass | object, one member per field |
| NamedTuple | array, one element per field |
| tuple, list | array |
| mapping with keys that are text | object |
| mapping with keys that are a NamedTuple | object; "/" joins the fields of a key, only the last may hold one |
| a class of text, such as an Enum | text, of which the class is made |
| None, bool, int, float, str | the same |

`decode` is strict: no other field may be there, and all that have no default must; a bool is not a number, a number is
finite. A class checks more in its `__post_init__`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from zeus_core.errors import UsageError
from zeus_core.validate import shown

T = TypeVar("T")

_WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,18}")
_SCALARS = {bool: "true or false", int: "a whole number", float: "a finite number", str: "text", type(None): "null"}


def encode(value: Any) -> Any:
    """Return a value in JSON types.

    Raises:
        TypeError: It holds an object of a type that has no JSON form.
    """
    kind: type = type(value)
    if kind in _SCALARS:
        return value
    if dataclasses.is_dataclass(kind):
        return {name: encode(getattr(value, name)) for name in _fields_of(kind)}
    if issubclass(kind, Mapping):
        return {_encode_key(key): encode(member) for key, member in value.items()}
    if issubclass(kind, tuple | list):
        return [encode(element) for element in value]
    for scalar in (int, float, str):  # a number of numpy that is a float of Python too, and the like
        if issubclass(kind, scalar):
            return scalar(value)
    raise TypeError(f"{kind.__name__} has no JSON form")


def _encode_key(key: Any) -> str:
    if isinstance(key, str) or type(key) is int:
        return str(key)
    if isinstance(key, tuple) and hasattr(key, "_fields"):
        return "/".join(map(_encode_key, key))
    raise TypeError(f"{key!r} cannot be the name of a member of a JSON object")


def decode(kind: type[T], fields: Any, name: str | None = None) -> T:
    """Return the value of a class that `encode` turned into `fields`.

    Args:
        kind: The class, or an annotation such as `tuple[Trial, ...]`.
        fields: JSON types.
        name: How errors call the value; the name of the class if None.

    Raises:
        UsageError: The fields are not those of the class; the message names the field, its value and what it must be.
    """
    name = name or str(getattr(kind, "__name__", kind))
    try:
        return _decoder_of(kind)(fields)  # type: ignore[arg-type,no-any-return]
    except _MismatchError as mismatch:
        raise UsageError(f"{name}{''.join(reversed(mismatch.path))}{mismatch}") from mismatch.__cause__
    except RecursionError:
        raise UsageError(f"{name} is nested too deeply") from None


class _MismatchError(Exception):
    """A value does not fit its annotation; `path` leads to it, innermost part first."""

    def __init__(self, complaint: str) -> None:
        super().__init__(complaint)
        self.path: list[str] = []


def _unfit(value: Any, wanted: str) -> _MismatchError:
    return _MismatchError(f" is {shown(value)}; it must be {wanted}")


@cache
def _decoder_of(kind: Any) -> Callable[[Any], Any]:
    """Return the function that decodes values of an annotation: found once, as a report reads a thousand runs."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value: value
    if kind in _SCALARS:
        return partial(_decode_scalar, kind)
    if origin is Literal:
        return partial(_decode_literal, parts)
    if origin in (Union, types.UnionType):
        return partial(_decode_union, parts)
    if origin in (tuple, list, Sequence):
        kinds = parts if origin is tuple else (*parts, ...)
        return partial(_decode_array, kinds, list if origin is list else tuple)
    if origin in (dict, Mapping):
        return partial(_decode_mapping, *parts)
    if dataclasses.is_dataclass(kind):
        return partial(_decode_object, kind)
    if issubclass(kind, str):
        return lambda value: _built(kind, _decode_scalar(str, value))
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return partial(_decode_array, tuple(_fields_of(kind).values()), lambda elements: _built(kind, *elements))
    raise TypeError(f"{kind!r} has no JSON form")


def _decode_scalar(kind: Any, value: Any) -> Any:
    if type(value) is kind and (kind is not float or math.isfinite(value)):
        return value
    if kind is float and type(value) is int and abs(value) <= sys.float_info.max:
        return float(value)
    raise _unfit(value, _SCALARS[kind])


def _decode_literal(known: Sequence[Any], value: Any) -> Any:
    if not any(type(value) is type(candidate) and value == candidate for candidate in known):
        raise _unfit(value, f"one of {', '.join(map(repr, known))}")
    return value


def _decode_union(kinds: Sequence[Any], value: Any) -> Any:
    if value is None and types.NoneType in kinds:
        return None
    *others, last = (kind for kind in kinds if kind is not types.NoneType)
    for kind in others:
        with contextlib.suppress(_MismatchError):
            return _decoder_of(kind)(value)
    return _decoder_of(last)(value)


def _decode_array(kinds: Sequence[Any], make: Callable[[list[Any]], Any], value: Any) -> Any:
    if not isinstance(value, list | tuple):
        raise _unfit(value, "an array")
    if len(kinds) == 2 and kinds[1] is ...:
        kinds = [kinds[0]] * len(value)
    if len(value) != len(kinds):
        raise _unfit(value, f"an array of {len(kinds)}")
    elements: list[Any] = []
    try:
        for kind, element in zip(kinds, value, strict=True):
            elements.append(_decoder_of(kind)(element))
    except _MismatchError as mismatch:
        mismatch.path.append(f"[{len(elements)}]")
        raise
    return make(elements)


def _decode_mapping(key_kind: Any, member_kind: Any, value: Any) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise _unfit(value, "an object")
    decode_member, mapping, part = _decoder_of(member_kind), {}, ""
    try:
        for key, member in value.items():
            part = " key"
            decoded_key = _decode_key(key_kind, key)
            part = f"[{key!r}]"
            mapping[decoded_key] = decode_member(member)
    except _MismatchError as mismatch:
        mismatch.path.append(part)
        raise
    return mapping


def _decode_key(kind: Any, key: Any) -> Any:
    if kind is int:
        if not isinstance(key, str) or not _WHOLE_NUMBER.fullmatch(key):
            raise _unfit(key, "a whole number as text")
        return int(key)
    if isinstance(kind, type) and issubclass(kind, tuple):
        kinds = list(_fields_of(kind).values())
        parts = key.split("/", len(kinds) - 1) if isinstance(key, str) else []
        if len(parts) != len(kinds):
            raise _unfit(key, f"{len(kinds)} parts joined by '/'")
        return _built(kind, *map(_decode_key, kinds, parts))
    return _decoder_of(kind)(key)


def _decode_object(kind: Any, value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise _unfit(value, "an object")
    decoders, required = _field_decoders_of(kind), _required_of(kind)
    lacking, unknown = required - value.keys(), value.keys() - decoders.keys()
    if lacking or unknown:
        complaint = f"lacks {', '.join(sorted(lacking))}" if lacking else f"has unknown {', '.join(sorted(unknown))}"
        raise _MismatchError(f" {complaint}; its fields are {', '.join(decoders)}")
    fields, name = {}, ""
    try:
        for name, member in value.items():
            fields[name] = decoders[name](member)
    except _MismatchError as mismatch:
        mismatch.path.append(f".{name}")
        raise
    return _built(kind, **fields)


@cache
def _field_decoders_of(kind: type) -> Mapping[str, Callable[[Any], Any]]:
    return {name: _decoder_of(hint) for name, hint in _fields_of(kind).items()}


def _built(kind: Callable[..., Any], /, *args: Any, **fields: Any) -> Any:
    try:
        return kind(*args, **fields)
    except (TypeError, ValueError, ArithmeticError) as error:  # a UsageError is a ValueError too
        raise _MismatchError(f": {error}") from error


@cache
def _fields_of(kind: type) -> Mapping[str, Any]:
    """Return the fields that make an object of a dataclass or a NamedTuple, with their annotations."""
    hints = get_type_hints(kind)
    if dataclasses.is_dataclass(kind):
        return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}
    return {name: hints[name] for name in kind._fields}  # type: ignore[attr-defined]


@cache
def _required_of(kind: Any) -> frozenset[str]:
    """Return the fields of a dataclass without a default."""
    missing = dataclasses.MISSING
    fields = (field for field in dataclasses.fields(kind) if field.init)
    return frozenset(field.name for field in fields if field.default is field.default_factory is missing)
