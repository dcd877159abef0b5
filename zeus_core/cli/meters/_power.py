"""`zeus-core power`: the power of the GPUs, once a period."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from zeus_core.cli.arguments import add_gpus, add_period, check_gpu_indices, count, notes_on_silent
from zeus_core.cli.meters._display import make_display, ticks
from zeus_core.cli.text import watts, write
from zeus_core.errors import DeviceError
from zeus_core.ports.time_source import MonotonicTime

if TYPE_CHECKING:
    from zeus_core.device import Gpu

SUMMARY = "Show the power of the GPUs until Ctrl-C"

_logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_gpus(parser)
    add_period(parser)
    parser.add_argument("--json", action="store_true", help="print a JSON object a line; null is not measured")
    parser.add_argument("--count", type=count, metavar="N", help="end after N lines")


def execute(arguments: argparse.Namespace) -> int:
    """Show the power until Ctrl-C, or for the given number of lines."""
    from zeus_core.device import discover_gpus

    visible = discover_gpus()
    gpus = {index: visible[index] for index in check_gpu_indices(arguments.gpus, visible)}
    if arguments.gpus is None:
        for note in notes_on_silent(visible):
            _logger.warning("%s", note)
    reader = PowerReader(gpus)
    names = [f"GPU {index}: {gpu.name}" for index, gpu in gpus.items()]
    with contextlib.suppress(KeyboardInterrupt), make_display(names, "power", arguments.json) as display:
        for elapsed_seconds in islice(ticks(MonotonicTime(), arguments.period), arguments.count):
            powers_watts = reader.read_powers_watts()
            display.show(elapsed_seconds, [watts(power) for power in [*powers_watts, _sum(powers_watts)]])
            if arguments.json:
                write(json.dumps(_fields(elapsed_seconds, gpus, powers_watts)), sys.stdout)
    return 0


def _fields(elapsed_seconds: float, gpus: Mapping[int, Gpu], powers_watts: Sequence[float | None]) -> dict[str, Any]:
    each = [
        {"index": index, "name": gpu.name, "is_simulated": gpu.is_simulated, "power_watts": power}
        for (index, gpu), power in zip(gpus.items(), powers_watts, strict=True)
    ]
    return {"seconds": elapsed_seconds, "gpus": each, "power_watts": _sum(powers_watts)}


class PowerReader:
    """Reads the power of several GPUs, and warns once for each GPU whose power cannot be read.

    Args:
        gpus: By index.
    """

    def __init__(self, gpus: dict[int, Gpu]) -> None:
        self._gpus = gpus
        self._silent: set[int] = set()

    def read_powers_watts(self) -> list[float | None]:
        """Read the power of each GPU; None if it cannot be read now."""
        return [self._read(index, gpu) for index, gpu in self._gpus.items()]

    def _read(self, index: int, gpu: Gpu) -> float | None:
        try:
            return gpu.read_power_watts()
        except DeviceError as error:
            if index not in self._silent:
                self._silent.add(index)
                _logger.warning("the power of GPU %d is not measured: %s", index, error)
            return None


def _sum(powers_watts: Sequence[float | None]) -> float | None:
    known = [power for power in powers_watts if power is not None]
    return sum(known) if len(known) == len(powers_watts) else None
