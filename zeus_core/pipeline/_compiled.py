"""Compiled inner loops: numba compiles them if it is installed (extra `pipeline`); else Python runs them as they are.

Compiled code is cached in one folder: `NUMBA_CACHE_DIR` if that is set, else `zeus-core/numba` in `XDG_CACHE_HOME` or
`~/.cache`. If that folder cannot be written, each process compiles the code itself. Nothing happens before the first
call.
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

__all__ = ["Kernels", "cache_folder", "has_numba"]

_compiling = threading.Lock()  # numba reads the folder of its cache from a global

_WITHOUT_NUMBA = "ZEUS_WITHOUT_NUMBA"
"""Any value of this environment variable disables numba, to compare results or to find a fault."""


def cache_folder() -> Path | None:
    """Return the folder of compiled code; None if it cannot be written."""
    try:
        named = os.environ.get("NUMBA_CACHE_DIR")
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(named) if named else Path(home) / "zeus-core" / "numba"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # the folder cannot be made, or the user has no home
        return None
    return folder if os.access(folder, os.W_OK) else None


def has_numba() -> bool:
    """Return whether the loops are compiled."""
    return not os.environ.get(_WITHOUT_NUMBA) and _is_numba_installed()


@cache
def _is_numba_installed() -> bool:
    return importlib.util.find_spec("numba") is not None


class Kernels:
    """Functions of one module that are compiled together at the first call of one of them.

    They may call each other by name. Without numba they get lists in place of arrays, because Python indexes lists
    several times faster; their changes are copied back into the arrays.
    """

    def __init__(self, *functions: Callable[..., Any]) -> None:
        self._functions = functions

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call one of the functions; arrays and named tuples of arrays are changed in place."""
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
