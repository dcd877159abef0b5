"""Compiled inner loops: LLVM compiles them if llvmlite is installed (extra `pipeline`); else Python runs their source.

Both give the same, to the last bit (see `_translation.py`). Compiling takes some tenths of a second in each
process, so nothing is kept in files. Nothing happens before the first call.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

_OLDEST_LLVM = (20,)  # of llvmlite 0.45; earlier ones write addresses otherwise

_compiling = threading.RLock()  # the lock of LLVM, which one thread at a time imports and uses
if hasattr(os, "register_at_fork"):  # not on Windows
    # A child must not inherit it, nor the lock of llvmlite, from a thread that does not exist in the child.
    os.register_at_fork(
        before=_compiling.acquire, after_in_parent=_compiling.release, after_in_child=_compiling.release
    )


@cache
def has_compiler() -> bool:
    """Return whether the loops are compiled."""
    try:
        with _compiling:
            import llvmlite.binding as llvm

            llvm.check_jit_execution()
    except (ImportError, OSError):  # it is not installed, or the system executes no memory
        return False
    return llvm.llvm_version_info >= _OLDEST_LLVM and Path(__file__).is_file()  # a frozen program has no sources


def call_compiled(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the language of `_translation.py`; arrays and those of named tuples are changed in place.

    The result is a number or None. Without a compiler the function gets lists in
    place of arrays, because Python indexes lists several times faster; their changes are copied into the arrays.
    """
    if not has_compiler():
        return _interpreted(function, arguments)
    return _compiled(function, tuple(map(_kind_of, arguments)))(*map(_passed, arguments))


def _kind_of(argument: Any) -> Any:
    """Return the kind of an argument, see `Kind` in `_translation.py`."""
    if isinstance(argument, np.ndarray):
        return argument.dtype.name
    if isinstance(argument, tuple):
        return tuple(zip(argument._fields, map(_kind_of, argument), strict=True))  # type: ignore[attr-defined]
    return float if isinstance(argument, float) else int


def _passed(argument: Any) -> Any:
    """Return a number, or the words of an array or a named tuple."""
    if isinstance(argument, tuple):
        return b"".join(map(_words, argument))
    return _words(argument) if isinstance(argument, np.ndarray) else argument


def _words(argument: Any) -> bytes:
    if not isinstance(argument, np.ndarray):
        return struct.pack("d" if isinstance(argument, float) else "q", argument)
    if not argument.flags.c_contiguous:
        raise ValueError("an array with gaps between its elements")
    return struct.pack("Qq", argument.__array_interface__["data"][0], len(argument))


@cache
def _compiled(function: Callable[..., Any], kinds: tuple[Any, ...]) -> Callable[..., Any]:
    with _compiling:
        from zeus_core.pipeline.planner._translation import translate

        text, results = translate(function, kinds)
        engine = _engine(text)
        types: dict[Any, Any] = {int: ctypes.c_int64, float: ctypes.c_double}
        result = types[results[0]] if results else None
        prototype = ctypes.CFUNCTYPE(result, *(types.get(kind, ctypes.c_char_p) for kind in kinds))
        entry = prototype(engine.get_function_address("entry"))
    entry.engine = engine  # type: ignore[attr-defined] # which holds the code
    return entry


def _engine(text: str) -> Any:
    """Return the machine code of a module in LLVM's text form."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    # For any processor of its kind: the same code everywhere, which is as fast here.
    machine = llvm.Target.from_default_triple().create_target_machine(opt=3)
    module = llvm.parse_assembly(text)
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine


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
