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
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from zeus_core.errors import UsageError
from zeus_core.validate import wrong_argument

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
    return _decoder_of(kind)(fields, name or str(getattr(kind, "__name__", kind)))  # type: ignore[arg-type,no-any-return]


_Decoder = Callable[[Any, str], Any]
"""Returns the value of JSON types, which errors call by the second argument, such as "run.parts[0].step"."""


@cache
def _decoder_of(kind: Any) -> _Decoder:
    """Return the function that decodes values of an annotation: found once, as a report reads a thousand runs."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value, _: value
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
        return lambda value, name: _built(name, kind, _decode_scalar(str, value, name))
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        kinds = tuple(_fields_of(kind).values())
        return lambda value, name: _built(name, kind, *_decode_array(kinds, tuple, value, name))
    raise TypeError(f"{kind!r} has no JSON form")


def _decode_scalar(kind: Any, value: Any, name: str) -> Any:
    if type(value) is kind and (kind is not float or math.isfinite(value)):
        return value
    if kind is float and type(value) is int and abs(value) <= sys.float_info.max:
        return float(value)
    raise wrong_argument(name, value, _SCALARS[kind])


def _decode_literal(known: Sequence[Any], value: Any, name: str) -> Any:
    if not any(type(value) is type(candidate) and value == candidate for candidate in known):
        raise wrong_argument(name, value, f"one of {', '.join(map(repr, known))}")
    return value


def _decode_union(kinds: Sequence[Any], value: Any, name: str) -> Any:
    if value is None and types.NoneType in kinds:
        return None
    *others, last = (kind for kind in kinds if kind is not types.NoneType)
    for kind in others:
        with contextlib.suppress(UsageError):
            return _decoder_of(kind)(value, name)
    return _decoder_of(last)(value, name)


def _decode_array(kinds: Sequence[Any], make: Callable[[Iterable[Any]], Any], value: Any, name: str) -> Any:
    if not isinstance(value, list | tuple):
        raise wrong_argument(name, value, "an array")
    if len(kinds) == 2 and kinds[1] is ...:
        kinds = [kinds[0]] * len(value)
    if len(value) != len(kinds):
        raise wrong_argument(name, value, f"an array of {len(kinds)}")
    return make(_decoder_of(kind)(value[place], f"{name}[{place}]") for place, kind in enumerate(kinds))


def _decode_mapping(key_kind: Any, member_kind: Any, value: Any, name: str) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise wrong_argument(name, value, "an object")
    decode_member = _decoder_of(member_kind)
    return {
        _decode_key(key_kind, key, f"{name} key"): decode_member(member, f"{name}[{key!r}]")
        for key, member in value.items()
    }


def _decode_key(kind: Any, key: Any, name: str) -> Any:
    if kind is int:
        if not isinstance(key, str) or not _WHOLE_NUMBER.fullmatch(key):
            raise wrong_argument(name, key, "a whole number as text")
        return int(key)
    if isinstance(kind, type) and issubclass(kind, tuple):
        kinds = list(_fields_of(kind).values())
        parts = key.split("/", len(kinds) - 1) if isinstance(key, str) else []
        if len(parts) != len(kinds):
            raise wrong_argument(name, key, f"{len(kinds)} parts joined by '/'")
        return _built(name, kind, *(_decode_key(*part, name) for part in zip(kinds, parts, strict=True)))
    return _decoder_of(kind)(key, name)


def _decode_object(kind: Any, value: Any, name: str) -> Any:
    if not isinstance(value, Mapping):
        raise wrong_argument(name, value, "an object")
    decoders = _field_decoders_of(kind)
    lacking, unknown = _required_of(kind) - value.keys(), value.keys() - decoders.keys()
    if lacking or unknown:
        which, names = ("lacks", lacking) if lacking else ("has unknown", unknown)
        complaint = f"{which} {', '.join(sorted(map(str, names)))}"
        raise UsageError(f"{name} {complaint}; its fields are {', '.join(decoders)}")
    return _built(name, kind, **{field: decoders[field](member, f"{name}.{field}") for field, member in value.items()})


def _built(name: str, kind: Callable[..., Any], /, *args: Any, **fields: Any) -> Any:
    try:
        return kind(*args, **fields)
    except (TypeError, ValueError, ArithmeticError) as error:  # a UsageError is a ValueError too
        raise UsageError(f"{name}: {error}") from error


@cache
def _fields_of(kind: type) -> Mapping[str, Any]:
    """Return the fields that make an object of a dataclass or a NamedTuple, with their annotations."""
    hints = get_type_hints(kind)
    if dataclasses.is_dataclass(kind):
        return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}
    return {name: hints[name] for name in kind._fields}  # type: ignore[attr-defined]


@cache
def _field_decoders_of(kind: type) -> Mapping[str, _Decoder]:
    return {name: _decoder_of(hint) for name, hint in _fields_of(kind).items()}


@cache
def _required_of(kind: Any) -> frozenset[str]:
    """Return the fields of a dataclass without a default."""
    missing = dataclasses.MISSING
    fields = (field for field in dataclasses.fields(kind) if field.init)
    return frozenset(field.name for field in fields if field.default is field.default_factory is missing)
