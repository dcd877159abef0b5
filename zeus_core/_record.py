"""Values with named fields, without `dataclasses`, which takes as long to load as all of Python."""

from __future__ import annotations

from collections.abc import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**options: bool) -> Callable[[type], type]:
        """Leave the class as it is: type checkers alone know this decorator."""
        return lambda kind: kind


@dataclass_transform(frozen_default=True)
class Record:
    """A value whose fields are those that its class annotates: a frozen dataclass, to type checkers and to readers.

    Nothing but type checkers keeps its fields from being set.
    """

    def __init__(self, *values: Any, **fields: Any) -> None:
        names = type(self).__annotations__
        fields.update(zip(names, values, strict=False))
        for name in names:  # a default is an attribute of the class
            self.__dict__[name] = fields.pop(name) if name in fields else getattr(type(self), name)
        if fields:
            raise TypeError(f"{type(self).__name__} has no fields {', '.join(fields)}")

    def replacing(self, **changes: Any) -> Self:
        """Return this value with other values of some fields."""
        return type(self)(**{**self.__dict__, **changes})

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.__dict__ == self.__dict__

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__.values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"
