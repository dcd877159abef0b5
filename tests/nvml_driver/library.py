"""Compile nvml_driver.c and open it.

The library has no SONAME on purpose. In a folder of LD_LIBRARY_PATH it is found by the name of its file. When a process
opens it by its path, later look-ups of `libnvidia-ml.so.1` in that process still find NVIDIA's library.
"""

import contextlib
import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
from ctypes import POINTER, c_char_p, c_int, c_int64, c_uint32, c_uint64
from pathlib import Path

from tests.nvml_driver.state import RegimeRecord, State, check_sizes

__all__ = ["NoCompilerError", "build_library", "open_library"]

_SOURCE = Path(__file__).with_name("nvml_driver.c")
_FLAGS = ("-shared", "-fPIC", "-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror")


class NoCompilerError(RuntimeError):
    """There is no C compiler on this machine."""


def build_library(folder: Path) -> Path:
    """Compile the driver, unless the folder has it already, and return the library's path.

    Raises:
        NoCompilerError: There is no C compiler.
        RuntimeError: The compiler fails.
    """
    library = folder / hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:12] / "libnvidia-ml.so.1"
    if library.exists():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    unfinished = library.with_name(f"unfinished-{os.getpid()}.so")
    command = [*_find_compiler(), *_FLAGS, "-o", str(unfinished), str(_SOURCE), "-lpthread"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"{shlex.join(command)} failed:\n{result.stderr}")
    with contextlib.suppress(FileExistsError):  # another worker was quicker
        os.link(unfinished, library)
    unfinished.unlink()
    return library


def open_library(path: Path) -> ctypes.CDLL:
    """Open a compiled driver and declare the functions that only tests use."""
    library = ctypes.CDLL(str(path))
    for name, result, arguments in (
        ("sizes", None, [POINTER(c_uint64)]),
        ("function", c_char_p, [c_int]),
        ("create", c_int, [c_char_p]),
        ("use", c_int, [c_char_p]),
        ("used", c_char_p, []),
        ("lock", None, [POINTER(State)]),
        ("unlock", None, [POINTER(State)]),
        ("set_load", None, [POINTER(State), c_int, POINTER(RegimeRecord)]),
        ("set_limit", None, [POINTER(State), c_int, c_uint32, c_uint32]),
        ("energy_until", c_int64, [POINTER(State), c_int, c_int64]),
        ("counted_until", c_int64, [POINTER(State), c_int, c_int64]),
    ):
        function = getattr(library, f"zeus_test_nvml_{name}")
        function.restype, function.argtypes = result, arguments
    check_sizes(library)
    return library


def _find_compiler() -> list[str]:
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    raise NoCompilerError("NOT TESTED: no C compiler (cc, gcc, clang or $CC) for the NVML driver of the tests")
