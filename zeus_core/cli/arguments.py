"""Arguments that several commands take, and their checks."""

from __future__ import annotations

import argparse
import math
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zeus_core.errors import UsageError
from zeus_core.validate import checked_slowdown, shown

if TYPE_CHECKING:
    from zeus_core.device import Gpu

_ABOVE_ZERO = math.nextafter(0.0, 1.0)  # the lowest number above 0, as an inclusive bound
MAX_SECONDS = 1e9  # 31 years, and less than Python can wait
_MAX_COUNT = 10**9
_MAX_PORT = 65535


def add_modes(
    parser: argparse.ArgumentParser, modes: Mapping[str, tuple[str, str]]
) -> dict[str, argparse.ArgumentParser]:
    """Declare the modes of a command, as `zeus-core runs sum`, by the help and an example of each."""
    parsers = parser.add_subparsers(dest="mode", required=True, metavar="MODE")
    return {
        name: parsers.add_parser(
            name,
            help=words,
            description=f"{words[0].upper()}{words[1:]}.",
            epilog=f"Example: {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for name, (words, example) in modes.items()
    }


def add_gpus(parser: argparse.ArgumentParser) -> None:
    """Declare `--gpus`."""
    parser.add_argument(
        "--gpus",
        type=_indices,
        metavar="0,1",
        help="GPUs by index, counted after CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES; all visible ones by default",
    )


def seconds(text: str) -> float:
    """Parse a time above 0."""
    return number(text, _ABOVE_ZERO, MAX_SECONDS, "is not a number of seconds above 0, at most 1e9, such as 1 or 0.5")


def seconds_or_zero(text: str) -> float:
    """Parse a time that may be 0."""
    return number(text, 0.0, MAX_SECONDS, "is not a number of seconds, 0 to 1e9, such as 0.005")


def slowdown(text: str) -> float:
    """Parse a slowdown such as 10%, and return the factor of time, such as 1.1."""
    try:
        return checked_slowdown("the slowdown", text)
    except UsageError:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a slowdown from 0% to 100%, such as 10%") from None


def count(text: str) -> int:
    """Parse a whole number above 0."""
    # Not more digits than the highest number has: Python refuses to convert thousands of them.
    if not text.isdecimal() or len(text) > len(str(_MAX_COUNT)) or not 0 < int(text) <= _MAX_COUNT:
        raise argparse.ArgumentTypeError(
            f"{shown(text)} is not a whole number above 0, at most {_MAX_COUNT}, such as 10"
        )
    return int(text)


def port(text: str) -> int:
    """Parse a port of TCP; 0 is any free one."""
    if not (text.isdecimal() and text.isascii()) or len(text) > 5 or int(text) > _MAX_PORT:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a port, 0 to {_MAX_PORT}, such as 9920")
    return int(text)


def path(text: str) -> Path:
    """Parse a path."""
    if not text or "\0" in text:  # such as a shell variable that is not set
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a path, such as output")
    return Path(text)


def check_exists(file: Path, hint: str = "") -> None:
    """Refuse a folder, and a path where nothing is; any other fault is for who opens the file.

    Raises:
        UsageError: There is nothing, or a folder; the message ends with the hint.
    """
    try:
        mode = file.stat().st_mode
    except FileNotFoundError:
        raise UsageError(f"there is no file {shown(str(file))}{hint}") from None
    except OSError:
        return
    if stat.S_ISDIR(mode):
        raise UsageError(f"{shown(str(file))} is a folder, not a file{hint}")


def check_gpu_indices(indices: Sequence[int] | None, gpus: Sequence[Gpu]) -> list[int]:
    """Check the requested GPU indices; None requests all that answer, each board once.

    Raises:
        UsageError: There is no GPU with one of these indices.
    """
    from zeus_core.device.gpu import SilentGpu

    uuids = [gpu.uuid for gpu in gpus]
    if indices is None:
        answering = [index for index, gpu in enumerate(gpus) if not isinstance(gpu, SilentGpu)]
        return [index for index in answering if uuids.index(uuids[index]) == index]
    for index in indices:
        if index >= len(gpus):
            asked, valid = ",".join(map(str, indices)), ", ".join(map(str, range(len(gpus))))
            raise UsageError(f"--gpus is {asked}, but there is no GPU {index}; valid indices: {valid}")
    return list(indices)


def notes_on_silent(gpus: Sequence[Gpu]) -> list[str]:
    """Return a sentence for each GPU that does not answer."""
    from zeus_core.device.gpu import SilentGpu

    return [f"GPU {index} is not measured: {gpu.fault}" for index, gpu in enumerate(gpus) if isinstance(gpu, SilentGpu)]


def number(text: str, minimum: float, maximum: float, complaint: str) -> float:
    """Parse a number within a range."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not minimum <= value <= maximum:
        raise argparse.ArgumentTypeError(f"{shown(text)} {complaint}")
    return value


def _indices(text: str) -> list[int]:
    entries = [entry.strip() for entry in text.split(",")]
    # No machine has a GPU with an index of ten digits.
    if not all(entry.isdecimal() and len(entry) < 10 for entry in entries):
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a list of GPU indices, such as 0 or 0,1")
    indices = [int(entry) for entry in entries]
    if len(set(indices)) < len(indices):
        raise argparse.ArgumentTypeError(f"{shown(text)} names a GPU twice; name each once")
    return indices
