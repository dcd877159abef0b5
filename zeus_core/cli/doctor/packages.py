"""Checks of Python and installed packages, read from their metadata. No package is imported."""

from __future__ import annotations

import importlib.util
import platform
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from zeus_core import __version__
from zeus_core.adapters import install_command
from zeus_core.cli.doctor.check import Check
from zeus_core.cli.doctor.nvidia import Driver

if TYPE_CHECKING:
    from zeus_core.device import Gpu

_BINDING = "nvidia-ml-py"
_FOR_DEVELOPERS = frozenset({"dev", "docs", "all"})
# By the kernel's driver: what torch has to be built for, by its name in `torch.version`, and where such builds are.
_ROCM = ("hip", "ROCm", "AMD", "https://download.pytorch.org/whl/rocm6.4")
_XPU = ("xpu", "XPU", "Intel", "https://download.pytorch.org/whl/xpu")
_BUILDS = {"amdgpu": _ROCM, "i915": _XPU, "xe": _XPU}
_CUDA_INDEX = "https://download.pytorch.org/whl/cu"


def check_python() -> Iterator[Check]:
    """Check Python, this package, and the driver's binding."""
    yield Check("python", "ok", f"Python {platform.python_version()}, {sys.executable}")
    yield Check("zeus-core", "ok", f"zeus-core {__version__}")
    version = _version_of(_BINDING)
    if version is None:
        yield Check(_BINDING, "missing", "the driver's Python binding is not installed", f"pip install {_BINDING}")
    elif _version_of("pynvml") is not None:
        fix = f"pip uninstall -y pynvml && pip install --force-reinstall {_BINDING}"
        yield Check(
            _BINDING, "limited", f"{_BINDING} {version}, but a package `pynvml` is installed too and may hide it", fix
        )
    else:
        yield Check(_BINDING, "ok", f"{_BINDING} {version}")


def check_torch(driver: Driver, gpus: Sequence[Gpu] = ()) -> Check:
    """Check that torch is installed, and is built for the visible GPUs and their driver."""
    from zeus_core.device.gpu import driver_of

    version = _version_of("torch")
    if version is None:
        return Check("torch", "missing", "torch is not installed; it is needed for training only", "pip install torch")
    cuda, drivers = _version_in_torch("cuda"), {driver_of(gpu) or "" for gpu in gpus}
    wanted = [build for name, build in _BUILDS.items() if name in drivers]
    for build in (_ROCM, _XPU):
        kind, words, vendor, _ = build
        number = _version_in_torch(kind)
        if number is not None and build in wanted:
            return Check("torch", "ok", f"torch {version}, built for {words} {number}")
        if number is not None:
            sentence = f"torch {version} is built for {words} {number}, and there is no {vendor} GPU"
            return Check("torch", "limited" if driver.has_gpu else "ok", sentence)
    if wanted and not driver.has_gpu:
        _, words, _, index = wanted[0]
        fix = f"pip install --force-reinstall torch --index-url {index}"
        return Check("torch", "limited", f"torch {version} is built without {words}, and cannot use the GPUs", fix)
    if cuda is None and driver.has_gpu:
        fix = "pip install --force-reinstall torch"
        return Check("torch", "limited", f"torch {version} is built without CUDA, and cannot use the GPUs", fix)
    if cuda is None:
        return Check("torch", "ok", f"torch {version}, built without CUDA")
    if driver.cuda_version is not None and _major(cuda) > _major(driver.cuda_version):
        sentence = f"torch {version} is built for CUDA {cuda}; the driver supports CUDA {driver.cuda_version}"
        fix = f"pip install --force-reinstall torch --index-url {_CUDA_INDEX}{driver.cuda_version.replace('.', '')}"
        return Check("torch", "limited", sentence, fix)
    return Check("torch", "ok", f"torch {version}, built for CUDA {cuda}")


def check_extras(needs: Collection[str] = ()) -> Iterator[Check]:
    """Check which extras of this package are installed, and each that is needed."""
    try:
        requirements = metadata.requires("zeus-core") or []
        extras = metadata.metadata("zeus-core").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        sentence = "zeus-core runs from its source and is not installed, so its extras are unknown"
        yield Check("extras", "limited", sentence, install_command())
        return
    missing_of = {
        extra: [name for name in _names_in(requirements, extra) if _version_of(name) is None]
        for extra in extras
        if extra not in _FOR_DEVELOPERS
    }
    installed = [extra for extra, missing in missing_of.items() if not missing]
    absent = [extra for extra, missing in missing_of.items() if missing]
    sentence = f"installed: {', '.join(installed) or 'none'}; not installed: {', '.join(absent) or 'none'}"
    # Who has a part of one wants it; the rest concerns those who ask for it.
    partly = [extra for extra in absent if len(missing_of[extra]) < len(_names_in(requirements, extra))]
    sentence += f"; only a part of {', '.join(partly)} is" if partly else ""
    fix = install_command(",".join(partly)) if partly else None
    yield Check("extras", "limited" if partly else "ok", sentence, fix)
    for extra in missing_of.keys() & set(needs):
        missing = missing_of[extra]
        if missing:
            yield Check(extra, "missing", f"not installed: {', '.join(missing)}", install_command(extra))
        else:
            yield Check(extra, "ok", "installed")


def check_live_view() -> Check:
    """Check that `power` and `energy` can draw a table in place."""
    version = _version_of("rich")
    if version is None:
        return Check(
            "live view", "missing", "rich is not installed: `power` and `energy` print lines", "pip install rich"
        )
    return Check("live view", "ok", f"rich {version}")


def _version_of(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _names_in(requirements: list[str], extra: str) -> list[str]:
    """List the distributions an extra requires, including those for another Python or system."""
    wanted = re.compile(rf"extra\s*==\s*['\"]{re.escape(extra)}['\"]")
    names = [re.match(r"[A-Za-z0-9._-]+", requirement) for requirement in requirements if wanted.search(requirement)]
    return [name[0] for name in names if name and name[0] != "zeus-core"]


def _version_in_torch(platform: str) -> str | None:
    """Read the version of "cuda", "hip" or "xpu" from the file torch writes when it is built."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    found = re.search(rf"^{platform}\b[^=\n]*=\s*['\"]([0-9.]+)[^'\"]*['\"]", text, re.MULTILINE)
    return found[1] if found else None


def _major(version: str) -> int:
    return int(version.partition(".")[0])
