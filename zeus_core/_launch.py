"""Runs a Python program so that the trainers in it measure their energy, without a line of code in it.

    python _launch.py SCRIPT ARGUMENTS...        as `python SCRIPT ARGUMENTS...`
    python _launch.py -m MODULE ARGUMENTS...     as `python -m MODULE ARGUMENTS...`

`zeus-core run --trainer` starts programs in this way. It acts when the program imports a framework, and on nothing
else. Python programs that the program starts through `subprocess` are run in the same way: the processes of torchrun,
`accelerate launch` and `trl`.

This file runs in any Python, also where the package is not installed; so it imports nothing but the standard library.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.machinery
import importlib.util
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

VARIABLE = "ZEUS"
"""Environment variable: "1" enables the frameworks that look for callbacks by themselves, as Lightning does."""

# The module of a framework, with the one of ours to import after it.
_ENABLERS = {"transformers.trainer": "zeus_huggingface.auto"}

_PYTHON = re.compile(r"python(\d+(\.\d+)*)?")
_OPTIONS_WITH_VALUE = "WX"
_MAX_SHEBANG_BYTES = 1024  # Linux itself reads 256; pip writes longer paths into the second line


def launched(command: Sequence[str]) -> list[str] | None:
    """Return the command that runs a Python program by this file; None if the command runs no script or module.

    Args:
        command: `python ...`, or a script that names Python as its interpreter, such as `torchrun`; and its arguments.
    """
    if not command:
        return None
    program, arguments = command[0], list(command[1:])
    if not _is_python(program):
        path = shutil.which(program)
        interpreter = _interpreter_of(path) if path else []
        if path is None or not interpreter:
            return None
        program, arguments = interpreter[0], [*interpreter[1:], path, *arguments]
    position = _position_of_target(arguments)
    if position is None or Path(arguments[position]).absolute() == Path(_this_file()):
        return None
    return [program, *arguments[:position], _this_file(), *arguments[position:]]


def lightning_callbacks() -> list[Any]:
    """Return the callback for a trainer of Lightning, which calls this by an entry point; none unless enabled."""
    if os.environ.get(VARIABLE) != "1":
        return []
    try:
        return [importlib.import_module("zeus_lightning").ZeusCallback()]
    except Exception as error:
        _warn(error)
        return []


def _is_python(program: str) -> bool:
    return program == sys.executable or _PYTHON.fullmatch(Path(program).name) is not None


def _this_file() -> str:
    return str(Path(__file__).absolute())


def _interpreter_of(path: str) -> list[str]:
    """Return the Python, and its options, in the first line of a script; empty for other files."""
    try:
        with Path(path).open("rb") as file:
            lines = file.read(_MAX_SHEBANG_BYTES).split(b"\n")
    except OSError:
        return []
    if not lines[0].startswith(b"#!"):
        return []
    try:
        words = shlex.split(lines[0][2:].decode())
        if words[:1] == ["/bin/sh"] and len(lines) > 1 and lines[1].startswith(b"'''exec'"):
            words = shlex.split(lines[1].decode())[1:-2]  # '''exec' /a long path/python "$0" "$@"
    except ValueError:
        return []
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if word != "-S"]
    return words if words and _is_python(words[0]) else []


def _position_of_target(arguments: Sequence[str]) -> int | None:
    """Return where `SCRIPT` or `-m` is in the arguments of Python; None if it runs something else."""
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        if argument == "-m":
            return position if position + 1 < len(arguments) else None
        if not argument.startswith("-"):
            return position
        if not argument.startswith(("-W", "-X")) and (argument[1:2] in {"", "-"} or set(argument) & set("cm?hV")):
            return None
        position += 2 if argument[1:] in _OPTIONS_WITH_VALUE else 1
    return None


class _Finder:
    """Finds a framework's module as others would, and has it followed by ours."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of a module, once for each framework."""
        enabler = _ENABLERS.pop(name, None)
        if enabler is None:
            return None
        spec: Any = importlib.util.find_spec(name)
        if spec is None or not hasattr(spec.loader, "exec_module"):
            return None
        spec.loader = _Loader(spec.loader, enabler)
        return spec


class _Loader:
    """Loads a module by its own loader, and then imports another one. Leaves no trace on the module."""

    def __init__(self, loader: Any, enabler: str) -> None:
        self._loader = loader
        self._enabler = enabler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        """Create the module as its own loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """Execute the module, and import ours."""
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        try:
            importlib.import_module(self._enabler)
        except Exception as error:
            _warn(error)


def _warn(error: Exception) -> None:
    text = f"zeus-core: trainings of this process ({sys.executable}) are not measured: {type(error).__name__}: {error}"
    try:
        sys.stderr.write(text + "\n")
    except Exception:  # there is nobody to tell
        return


def _launch_children() -> None:
    """Start Python programs by this file from now on."""
    popen: Any = subprocess.Popen
    construct = popen.__init__

    @functools.wraps(construct)
    def construct_launched(process: Any, args: Any, *rest: Any, **options: Any) -> None:
        if not rest and isinstance(args, (list, tuple)) and not options.get("shell") and not options.get("executable"):
            args = _launched_or_same(args)
        construct(process, args, *rest, **options)

    popen.__init__ = construct_launched


def _launched_or_same(command: Any) -> Any:
    try:
        return launched([os.fsdecode(word) for word in command]) or command
    except Exception:  # it is up to Popen to say what is wrong
        return command


def _run(arguments: Sequence[str]) -> None:
    """Run the program as Python itself would, in a module `__main__` of its own."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    is_module = arguments[0] == "-m"
    sys.argv = list(arguments[1:] if is_module else arguments)
    path = sys.argv[0]
    has_own_folder = not getattr(sys.flags, "safe_path", False)
    if has_own_folder:
        sys.path.pop(0)  # that of this file
    as_main: Callable[[str, bool], Any] = vars(runpy)["_run_module_as_main"]  # what Python itself calls
    if is_module:
        if has_own_folder:
            sys.path.insert(0, str(Path.cwd()))
        as_main(path, True)
    elif Path(path).is_dir() or path.endswith((".zip", ".pyz")):
        sys.path.insert(0, str(Path(path).absolute()))
        as_main("__main__", False)
    else:
        if has_own_folder:
            sys.path.insert(0, str(Path(path).resolve().parent))
        _run_script(str(Path(path).absolute()), main)


def _run_script(path: str, main: types.ModuleType) -> None:
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        sys.stderr.write(f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}\n")
        sys.exit(2)
    main.__file__ = path
    vars(main)["__builtins__"] = builtins
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    exec(compile(source, path, "exec", dont_inherit=True), vars(main))


def _main() -> None:
    if len(sys.argv) < 2:
        sys.exit(f"usage: python {sys.argv[0]} [-m] PROGRAM [ARGUMENT ...]")
    os.environ[VARIABLE] = "1"
    sys.meta_path.insert(0, _Finder())
    _launch_children()
    _run(sys.argv[1:])


if __name__ == "__main__":
    _main()
