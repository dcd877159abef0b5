"""Compiled inner loops: numba compiles them if it is installed (extra `pipeline`); else Python runs them as they are.

Compiled code is cached in one folder: `NUMBA_CACHE_DIR` if that is set, else `zeus-core/numba` in `XDG_CACHE_HOME` or
`~/.cache`; for root, whose environment may be another user's (`sudo -E`), always `.cache/zeus-core/numba` in root's own
home. numba unpickles what it finds there, which can execute anything: so a folder that others can write to is not used.
Without a folder, each process compiles the code itself. Nothing happens before the first call.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from zeus_core.files import check_only_ours

_logger = logging.getLogger(__name__)

_compiling = threading.Lock()  # numba reads the folder of its cache from a global

_SLOWER_WITHOUT_NUMBA = 20  # times, or the searches would take minutes

_WITHOUT_NUMBA = "ZEUS_WITHOUT_NUMBA"
"""Any value of this environment variable disables numba, to compare results or to find a fault."""


def cache_folder() -> Path | None:
    """Return the folder of compiled code; None if it cannot be written, or others can write to it."""
    try:
        folder = _chosen_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError, KeyError):  # the folder cannot be made, or the user has no home
        return None
    return folder if os.access(folder, os.W_OK) and _is_ours(folder) else None


def _chosen_folder() -> Path:
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        import pwd

        return Path(pwd.getpwuid(0).pw_dir, ".cache", "zeus-core", "numba")
    if named := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "zeus-core", "numba")


def _is_ours(folder: Path) -> bool:
    try:
        check_only_ours(folder)
    except OSError as error:
        _logger.warning("compiled code is not kept, and each process compiles it for some seconds: %s", error)
        return False
    return True


def has_numba() -> bool:
    """Return whether the loops are compiled."""
    return not os.environ.get(_WITHOUT_NUMBA) and _is_numba_installed()


def affordable(tries: int) -> int:
    """Return how many tries to make of those that compiled loops make: fewer without numba, whose loops take longer."""
    return tries if has_numba() else tries // _SLOWER_WITHOUT_NUMBA


@cache
def _is_numba_installed() -> bool:
    return importlib.util.find_spec("numba") is not None


class Kernels:
    """Functions that are compiled together at the first call of one of them.

    They may call each other by name, and make no arrays or lists: memory is an argument. Without numba they get lists
    in place of arrays, because Python indexes lists several times faster; their changes are copied into the arrays.
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
    folder, fingerprint = cache_folder(), _fingerprint(functions)
    if folder is not None and fingerprint is not None:
        compiled = _declare(functions, folder.resolve() / fingerprint)
        # numba keeps the code of each module in a folder within that one.
        if _is_ours(Path(compiled[functions[0].__name__].stats.cache_path)):
            return compiled
    # Without a folder numba would look for another, beside the sources.
    return _declare(functions, None)


def _fingerprint(functions: Sequence[Callable[..., Any]]) -> str | None:
    """Return a name for the sources of all the functions; None if they are not in files.

    numba compiles a function again if the file that it is written in has changed, but not if only a function that it
    calls has, which is then called as it was: with numba 0.68 a search went on with moves of an earlier version. Nor
    does it if a constant from another module has; so all modules beside them count, and all of this folder, this one
    with its options too.
    """
    sources = {Path(function.__code__.co_filename) for function in functions}
    folders = [*(source.parent.glob("*.py") for source in sources), Path(__file__).parent.rglob("*.py")]
    beside = {path for paths in folders for path in paths}
    try:
        return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(sources | beside))).hexdigest()[:16]
    except OSError:
        return None


def _declare(functions: Sequence[Callable[..., Any]], folder: Path | None) -> dict[str, Any]:
    """Return the functions with their names, to be compiled when they are called, and kept in a folder."""
    import numba

    # Without counts of references, which numba would change whenever an array of a named tuple is used: the search is
    # five times as fast. The caller holds all arrays, as no function makes one. The option is one of numba's own, and
    # there from 0.59 to 0.68.
    options: dict[str, Any] = {"cache": folder is not None, "_nrt": False}
    config: Any = numba.config
    # numba looks up what a function uses among its globals, and functions must be compiled ones there.
    modules: dict[str, dict[str, Any]] = {}
    compiled: dict[str, Any] = {}
    previous, config.CACHE_DIR = config.CACHE_DIR, str(folder or "")
    try:
        for function in functions:
            found = modules.setdefault(function.__module__, dict(function.__globals__))
            copied = types.FunctionType(function.__code__, found, function.__name__)
            compiled[function.__name__] = numba.njit(**options)(copied)
    finally:
        config.CACHE_DIR = previous
    for found in modules.values():
        found.update(compiled)
    return compiled


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
