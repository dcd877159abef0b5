"""Compiling the inner loops with numba where it is installed (extra `pipeline`); without it they run as they are.

Compiled code is kept in one folder: `NUMBA_CACHE_DIR` if that is set, else `zeus-core/numba` in `XDG_CACHE_HOME` or
`~/.cache`. Where that folder cannot be written, the code is compiled anew in each process. Nothing happens before the
first call.
"""

from __future__ import annotations

import importlib.util
import os
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["cache_folder", "has_numba", "kernels"]

_compiling = threading.Lock()  # numba is told by a global where to keep what it compiles

_WITHOUT_NUMBA = "ZEUS_WITHOUT_NUMBA"
"""Set to anything, this environment variable makes the planner do without numba, to compare or to find a fault."""


def cache_folder() -> Path | None:
    """Where compiled code is kept; None where nothing can be written there."""
    try:
        named = os.environ.get("NUMBA_CACHE_DIR")
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(named) if named else Path(home) / "zeus-core" / "numba"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no such folder can be made, or the user has no home
        return None
    return folder if os.access(folder, os.W_OK) else None


def has_numba() -> bool:
    """Whether the loops are compiled."""
    return not os.environ.get(_WITHOUT_NUMBA) and _is_numba_installed()


@cache
def _is_numba_installed() -> bool:
    return importlib.util.find_spec("numba") is not None


class kernels:  # noqa: N801 - reads as a function where it is used
    """Functions that are compiled together at the first call of one of them.

    They may call each other by name. Without numba they are called with lists in place of arrays, which Python indexes
    several times faster; what they write into arrays is copied back.
    """

    def __init__(self, *functions: Callable[..., Any]) -> None:
        self._functions = functions

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call one of the functions."""
        if has_numba():
            return _compiled(self._functions)[function.__name__](*arguments)
        return _interpreted(function, arguments)


@cache
def _compiled(functions: Sequence[Callable[..., Any]]) -> Mapping[str, Any]:
    with _compiling:
        return _compile(functions)


def _compile(functions: Sequence[Callable[..., Any]]) -> Mapping[str, Any]:
    import numba

    config: Any = numba.config
    folder = cache_folder()
    # Without a folder that can be written numba would look for another, beside the sources.
    jit = numba.njit(cache=True) if folder is not None else numba.njit
    # numba looks up the functions that a function calls among its globals, and they must be compiled ones there.
    found: dict[str, Any] = dict(functions[0].__globals__)
    previous, config.CACHE_DIR = config.CACHE_DIR, str(folder or "")
    try:
        for function in functions:
            found[function.__name__] = jit(types.FunctionType(function.__code__, found, function.__name__))
    finally:
        config.CACHE_DIR = previous
    return found


def _interpreted(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    lists = [_to_lists(argument) for argument in arguments]
    result = function(*lists)
    for argument, values in zip(arguments, lists, strict=True):
        _copy_back(argument, values)
    return result


def _to_lists(argument: Any) -> Any:
    if isinstance(argument, np.ndarray):
        return argument.tolist()
    if isinstance(argument, tuple):
        return type(argument)(*map(_to_lists, argument))
    return argument


def _copy_back(argument: Any, values: Any) -> None:
    if isinstance(argument, np.ndarray):
        if argument.flags.writeable:
            argument[...] = values
    elif isinstance(argument, tuple):
        for part, part_values in zip(argument, values, strict=True):
            _copy_back(part, part_values)
