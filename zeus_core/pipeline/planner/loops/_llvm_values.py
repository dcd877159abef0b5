"""Types and values of translated code, and how they are passed in memory.

A value is its type and, for each part of the type, the name of a value of LLVM or a constant.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

INT, FLOAT, BOOL = "i64", "double", "i1"
_WIDER = (BOOL, INT, FLOAT)


class Array(NamedTuple):
    """The type of an array of one dimension: that of its elements in memory, a key of `LOADED`."""

    element: str


class Record(NamedTuple):
    """The type of a named tuple: the names and types of its fields."""

    names: tuple[str, ...]
    types: tuple[Any, ...]


Type: TypeAlias = Any
"""`INT`, `FLOAT`, `BOOL`, an `Array`, a `Record`, or a tuple of types; that of None is the empty tuple."""

LOADED = {"i64": INT, "i32": INT, "double": FLOAT, "i8": BOOL}
"""The type of an element that is loaded from memory; 32 bits are without sign."""


class Value(NamedTuple):
    """A value: its type and its parts, see `parts`."""

    type: Type
    parts: tuple[str, ...]


NONE = Value((), ())


def parts(kind: Type) -> tuple[str, ...]:
    """Return the types of LLVM that a type consists of: of an array its address and length; 8 bytes each in memory."""
    if isinstance(kind, str):
        return (kind,)
    if isinstance(kind, Array):
        return ("ptr", INT)
    if isinstance(kind, Record):
        return ("ptr",)
    return tuple(part for each in kind for part in parts(each))


def places(types: Iterable[Type]) -> list[tuple[int, Type]]:
    """Return the number of the first part of each type, and the type."""
    found, at = [], 0
    for kind in types:
        found.append((at, kind))
        at += len(parts(kind))
    return found


def common_type(types: Sequence[Type]) -> Type:
    """Return the type of a variable that is assigned values of these types.

    Raises:
        NotImplementedError: There is none.
    """
    found = types[0]
    for kind in types[1:]:
        if found in _WIDER and kind in _WIDER:
            found = max(found, kind, key=_WIDER.index)
        elif type(found) is tuple and type(kind) is tuple and len(found) == len(kind):
            found = tuple(common_type(pair) for pair in zip(found, kind, strict=True))
        elif found != kind:
            raise NotImplementedError(f"one variable for {found} and {kind}")
    return found


def constant(value: Any) -> Value:
    """Return a number or a tuple of numbers as a value.

    Raises:
        NotImplementedError: It is something else.
    """
    if isinstance(value, bool):
        return Value(BOOL, ("true" if value else "false",))
    if isinstance(value, int):
        return Value(INT, (str(value),))
    if isinstance(value, float):
        return Value(FLOAT, (f"0x{struct.pack('>d', value).hex()}",))
    if isinstance(value, tuple):
        return joined([constant(each) for each in value])
    raise NotImplementedError(f"the constant {value!r}")


def joined(values: Sequence[Value]) -> Value:
    """Return a tuple of values."""
    return Value(tuple(each.type for each in values), tuple(part for each in values for part in each.parts))


def elements(value: Value) -> list[Value]:
    """Return the elements of a tuple."""
    return [Value(kind, value.parts[at : at + len(parts(kind))]) for at, kind in places(value.type)]
