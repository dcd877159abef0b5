"""Prepare `.venv` for the Makefile, which has checked that this is Python 3.11+.

    python3 tools/set_up.py .venv EXTRA
    .venv/bin/python tools/set_up.py FOLDER --over REQUIREMENTS   # an environment over that of this Python

Makes the virtual environment if it is not there, puts torch into it, then this package with one of its extras. torch
comes first, and from the first of these that has it: what `TORCH` names (any arguments of `pip install`), a wheel at
hand (`PIP_FIND_LINKS`), PyTorch's index of CPU builds, the ordinary index (on Linux several GB with CUDA).
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


class SetUpError(Exception):
    """Something this machine lacks; the message says what to do."""


def main(folder: Path, extra: str) -> None:
    """Prepare the virtual environment in `folder` for the extra."""
    python = make_environment(folder)
    install_torch(python)
    if not pip(python, "--quiet", "-e", f".[{extra}]"):
        raise SetUpError("the package or something it needs could not be installed; pip says why above")


def lay_over(folder: Path, requirements: Path, *options: str) -> None:
    """Prepare a virtual environment that has all packages of this one, and others which need the same torch.

    Args:
        folder: Of the environment.
        requirements: The file of the other packages.
        options: Of `pip install`.
    """
    python = make_environment(folder)
    below, above = (
        subprocess.check_output(
            [each, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
        ).strip()
        for each in (sys.executable, python)
    )
    Path(above, "below.pth").write_text(f"import site; site.addsitedir({below!r})\n")
    constraint = folder / "torch.txt"
    constraint.write_text(f"torch=={metadata.version('torch')}\n")
    if not pip(python, "--quiet", *options, "-c", str(constraint), "-r", str(requirements)):
        raise SetUpError(f"the packages of {requirements} could not be installed; pip says why above")


def make_environment(folder: Path) -> Path:
    """Return the Python of the virtual environment, and make the environment if it does not exist."""
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if has_module(python, "pip"):
        return python
    if (folder / "pyvenv.cfg").exists() and python.exists():
        raise SetUpError(f"{folder} is a virtual environment without pip; move it away, or name another: make VENV=...")
    try:
        import venv

        venv.create(folder, with_pip=True)
    except (Exception, SystemExit) as error:
        raise SetUpError(
            "this Python cannot make virtual environments. On Debian and Ubuntu: sudo apt install python3-venv. "
            f"({error})"
        ) from error
    return python


def install_torch(python: Path) -> None:
    """Install torch from the first place that has it, unless it is there."""
    if has_module(python, "torch"):
        return
    named = os.environ.get("TORCH", "").strip()
    if named:
        if not pip(python, *shlex.split(named)):
            raise SetUpError(f"TORCH={named} could not be installed; pip says why above")
        return
    at_hand = pip(python, "--quiet", "--no-index", "--no-deps", "torch", is_attempt=True)
    if at_hand and pip(python, "--quiet", "torch"):
        return
    print("installing torch from PyTorch's index of CPU builds", flush=True)
    # An additional index could hold a newer build with CUDA, which would then be preferred.
    quick = {"PIP_EXTRA_INDEX_URL": "", "PIP_RETRIES": "0", "PIP_DEFAULT_TIMEOUT": "20"}
    if pip(python, "--quiet", "--index-url", TORCH_CPU_INDEX, "torch", is_attempt=True, **quick):
        return
    print("that index cannot be reached; installing the ordinary build of torch, which may be large", flush=True)
    if not pip(python, "torch"):
        raise SetUpError("torch could not be installed; name a build yourself: make TORCH='torch==2.13.0'")


def has_module(python: Path, name: str) -> bool:
    """Return whether the environment exists and has a module."""
    try:
        return subprocess.run([python, "-c", f"import {name}"], capture_output=True).returncode == 0
    except OSError:
        return False


def pip(python: Path, *arguments: str, is_attempt: bool = False, **environment: str) -> bool:
    """Run `pip install`, and return whether it worked. Complaints of an attempt are not shown."""
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", *arguments]
    output = subprocess.DEVNULL if is_attempt else None
    return subprocess.run(command, env={**os.environ, **environment}, stdout=output, stderr=output).returncode == 0


if __name__ == "__main__":
    try:
        if sys.argv[2] == "--over":
            lay_over(Path(sys.argv[1]), Path(sys.argv[3]))
        else:
            main(Path(sys.argv[1]), sys.argv[2])
    except SetUpError as error:
        sys.exit(f"set-up: {error}")
    except KeyboardInterrupt:
        sys.exit("set-up: interrupted")
