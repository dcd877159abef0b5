"""Write down every public name with its signature, so that a change of the interface is seen where it is reviewed.

    python tools/public_api.py

Public is what users may rely on: the names in `__all__` of the modules below. The list is `docs/public-api.txt`; a test
compares it with the modules as they are. Another module without an underscore is for its neighbours in this repository.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

LIST = Path(__file__).parents[1] / "docs" / "public-api.txt"
PACKAGES = ("zeus_core", "zeus_huggingface", "zeus_lightning", "zeus_deepspeed")
PUBLIC = (
    "zeus_core",
    "zeus_core.device",
    "zeus_core.electricity",
    "zeus_core.errors",
    "zeus_core.events",
    "zeus_core.jobs",
    "zeus_core.mixed.allocation",
    "zeus_core.mixed.levelling",
    "zeus_core.monitor",
    "zeus_core.optimizer",
    "zeus_core.carbon",
    "zeus_core.batches",
    "zeus_core.batches.pytorch",
    "zeus_core.optimizer.power_limit",
    "zeus_core.pipeline",
    "zeus_core.pipeline.schedules",
    "zeus_core.pipeline.taps.megatron",
    "zeus_core.pipeline.taps.pipelining",
    "zeus_core.pipeline.taps.torchtitan",
    "zeus_core.pytorch",
    "zeus_core.search",
    "zeus_core.testing",
    "zeus_core.training",
    "zeus_huggingface",
    "zeus_huggingface.accelerate",
    "zeus_huggingface.accelerate.batches",
    "zeus_huggingface.auto",
    "zeus_huggingface.batches",
    "zeus_lightning",
    "zeus_lightning.batches",
    "zeus_deepspeed",
    "zeus_deepspeed.auto",
)


def public_modules() -> Iterator[ModuleType]:
    """Import every public module."""
    return map(importlib.import_module, PUBLIC)


def describe_api() -> str:
    """Return the whole list. A name that several modules offer is described in the first and referred to after it."""
    described: dict[int, str] = {}
    paragraphs = []
    for module in public_modules():
        lines = [module.__name__]
        for name in sorted(getattr(module, "__all__", ())):
            value = getattr(module, name)
            known = described.get(id(value))
            if known is None:
                described[id(value)] = f"{module.__name__}.{name}"
                lines += [f"    {line}" for line in describe(name, value)]
            else:
                lines.append(f"    {name}: see {known}")
        if len(lines) > 1:
            paragraphs.append("\n".join(lines))
    return f"{len(described)} public names\n\n" + "\n\n".join(paragraphs) + "\n"


def describe(name: str, value: object) -> Iterator[str]:
    """Yield the lines of one name: a class with its members, a function, or the type of a constant."""
    if isinstance(value, type):
        yield from describe_class(name, value)
    elif inspect.isfunction(value):
        yield f"{name}{signature_of(value)}"
    elif isinstance(value, ModuleType):
        yield f"module {name}"
    elif hasattr(value, "__origin__"):
        yield f"{name} = {annotation_text(value)}"
    else:
        yield f"{name}: {type(value).__name__}"


def describe_class(name: str, cls: type) -> Iterator[str]:
    """Yield the constructor and the public members, inherited ones included."""
    bases = ", ".join(base.__name__ for base in cls.__bases__ if base is not object)
    yield f"class {name}({bases})" if bases else f"class {name}"
    if issubclass(cls, enum.Enum):
        yield f"    members: {', '.join(member.name for member in cls)}"
    elif hasattr(cls, "_fields") or has_constructor(cls):
        yield f"    {name}{signature_of(cls)}"
    members = {member: value for base in reversed(cls.__mro__) if is_ours(base) for member, value in vars(base).items()}
    for member, value in sorted(members.items()):
        if not member.startswith("_") and not isinstance(value, enum.Enum):
            yield from (f"    {line}" for line in describe_member(member, value))


def describe_member(name: str, value: object) -> Iterator[str]:
    """Yield a method, a property or a nested class; fields of records are in the constructor's signature."""
    if isinstance(value, property):
        yield f"{name}: {returned_by(value.fget)}  (property)"
    elif isinstance(value, classmethod | staticmethod):
        yield f"{name}{signature_of(value.__func__)}  ({type(value).__name__})"
    elif inspect.isfunction(value):
        yield f"{name}{signature_of(value)}"


def has_constructor(cls: type) -> bool:
    """Return whether a class is made by calling it with arguments of ours: no protocol, no plain error."""
    return not getattr(cls, "_is_protocol", False) and any(
        "__init__" in vars(base) for base in filter(is_ours, cls.__mro__)
    )


def is_ours(cls: type) -> bool:
    """Return whether a class is defined in one of our packages."""
    return cls.__module__.partition(".")[0] in PACKAGES


def signature_of(value: Callable[..., object]) -> str:
    """Return the arguments, without `self`, and the result."""
    signature = inspect.signature(value)
    parameters = [
        parameter.replace(annotation=annotation_text(parameter.annotation), default=default_text(parameter.default))
        for parameter in signature.parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    return str(signature.replace(parameters=parameters, return_annotation=annotation_text(signature.return_annotation)))


def returned_by(function: object) -> object:
    """Return the annotated type of a property."""
    assert callable(function)
    return annotation_text(inspect.signature(function).return_annotation)


class Text:
    """A value that prints as a text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        """Return the text itself."""
        return self._text


def annotation_text(annotation: object) -> object:
    """Return a type without the modules of its parts; none stays none."""
    if annotation is inspect.Parameter.empty:
        return annotation
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"ForwardRef\('(.*?)'\)", r"\1", text)
    return Text(re.sub(r"\b(?:[a-z_][a-z0-9_]*\.)+(?=[A-Za-z_])", "", text))


def default_text(default: object) -> object:
    """Return a default value; dots for one that is long or that differs between processes."""
    if default is inspect.Parameter.empty:
        return default
    text = repr(default)
    return Text("..." if " at 0x" in text or len(text) > 40 else text)


if __name__ == "__main__":
    LIST.write_text(describe_api(), encoding="utf-8")
