"""`zeus-core power`, `energy` and `top`: the machine's devices now, and again once a period until Ctrl-C."""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from zeus_core._identity import printable
from zeus_core.cli.arguments import MAX_SECONDS, add_gpus, check_gpu_indices, notes_on_silent, number
from zeus_core.cli.gpu_state import HEADER, SIDES, HeldSettings, facts_of, load_of, row_of
from zeus_core.cli.text import complain, joules, table, watts, write
from zeus_core.documents import Document
from zeus_core.errors import DeviceError, NoDeviceError
from zeus_core.ports.time_source import MonotonicTime
from zeus_core.units import duration_text

if TYPE_CHECKING:
    from zeus_core.cli.metering import MachineMeter
    from zeus_core.device import Gpu
    from zeus_core.ports import TimeSource

_NO_CURSOR = {"", "dumb", "unknown"}  # values of TERM; rich draws nothing in place there before the end

_logger = logging.getLogger(__name__)


class Power:
    """The command `power`."""

    PLACE = "Measure and save", 11
    SUMMARY = "Show the power of the GPUs until Ctrl-C"
    EXAMPLE = "zeus-core power --period 5"

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        _add_arguments(parser, "show the power once and end", "print the power once as a JSON object and end")

    @staticmethod
    def execute(arguments: argparse.Namespace) -> int:
        """Show the power until Ctrl-C, or once."""
        gpus = _chosen_gpus(arguments.gpus)
        unread: set[int] = set()
        if arguments.json:
            _print_json("zeus-core power", _power_fields(gpus, unread))
        else:
            _show(lambda: _power_table(_power_fields(gpus, unread)), arguments)
        return 0


class EnergyWatch:
    """The command `energy`."""

    PLACE = "Measure and save", 12
    SUMMARY = "Measure the energy of GPUs and CPUs until Ctrl-C"
    EXAMPLE = "zeus-core energy --once --period 60"

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        _add_arguments(parser, "measure for one period and end", "print one JSON object at the end, instead of text")

    @staticmethod
    def execute(arguments: argparse.Namespace) -> int:
        """Measure until Ctrl-C or for one period, and show the running total meanwhile."""
        from zeus_core.cli.metering import devices_to_json, open_meter, summarize, total_to_json

        meter = open_meter(arguments.gpus)
        if not meter.names:
            raise NoDeviceError("; ".join(["there is nothing to measure", *meter.notes]))
        meter.begin()
        if arguments.once or arguments.json:
            with suppress(KeyboardInterrupt):
                for _ in ticks(MonotonicTime(), arguments.period, first=1):
                    if arguments.once:
                        break
        else:
            _show(lambda: running_total(meter), arguments, first=1)
        measurement = meter.end()
        if arguments.json:
            fields = {
                "duration_seconds": measurement.time,
                "is_simulated": meter.is_simulated,
                "devices": devices_to_json(measurement, meter.names),
                "total": total_to_json(measurement),
                "notes": list(meter.notes),
            }
            _print_json("zeus-core energy", fields)
        else:
            write(f"energy of {duration_text(measurement.time)}", sys.stdout)
            write(summarize(measurement, meter.names, meter.notes), sys.stdout)
        return 0


class Top:
    """The command `top`."""

    PLACE = "Measure and save", 13
    SUMMARY = "Show load, limits, users and who controls which GPU, until Ctrl-C"
    EXAMPLE = "zeus-core top --once"

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        once = "show it once and end; with 1 if an ended process has left something changed, or an entry is unreadable"
        _add_arguments(parser, once, "print one JSON object and end, as with --once; null is not known")

    @staticmethod
    def execute(arguments: argparse.Namespace) -> int:
        """Show the GPUs and the ledger until Ctrl-C, or once. Without a GPU, show the ledger once."""
        try:
            gpus, fault = _chosen_gpus(arguments.gpus), None
        except DeviceError as error:
            gpus, fault = {}, str(error)
        facts = {index: facts_of(gpu) for index, gpu in gpus.items()}
        chosen = None if arguments.gpus is None else gpus.values()
        if not (arguments.once or arguments.json or fault):
            _show(lambda: _top_view(gpus, facts, HeldSettings.read(chosen)), arguments)
            return 0
        settings = HeldSettings.read(chosen)
        if arguments.json:
            shown = [{"index": index, **facts[index], **load_of(gpu)} for index, gpu in gpus.items()]
            _print_json("zeus-core top", {"gpus": shown, "no_gpus_because": fault, **settings.fields()}, version=2)
        else:
            write(_top_view(gpus, facts, settings), sys.stdout)
        if fault:
            complain(f"zeus-core: {fault}")
        return 1 if fault or settings.are_left() else 0


def _add_arguments(parser: argparse.ArgumentParser, once: str, as_json: str) -> None:
    add_gpus(parser)
    parser.add_argument(
        "--period", type=_period, default=1.0, metavar="SECONDS", help="time from one view to the next (1)"
    )
    parser.add_argument("--once", action="store_true", help=once)
    parser.add_argument("--json", action="store_true", help=as_json)


def _period(text: str) -> float:
    return number(text, 0.001, MAX_SECONDS, "is not a number of seconds above 0, at least 0.001, such as 1 or 0.5")


def _chosen_gpus(indices: Sequence[int] | None) -> dict[int, Gpu]:
    from zeus_core.device import discover_gpus

    visible = discover_gpus()
    if indices is None:
        for note in notes_on_silent(visible):
            _logger.warning("%s", note)
    return {index: visible[index] for index in check_gpu_indices(indices, visible)}


def _print_json(name: str, fields: Mapping[str, Any], version: int = 1) -> None:
    write(json.dumps(Document(name, version, dict[str, Any]).to_json(dict(fields)), indent=2), sys.stdout)


def _show(view: Callable[[], str], arguments: argparse.Namespace, first: int = 0) -> None:
    """Show a view once, or once a period until Ctrl-C."""
    if arguments.once:
        write(view(), sys.stdout)
        return
    with suppress(KeyboardInterrupt), _drawing() as draw:
        for elapsed_seconds in ticks(MonotonicTime(), arguments.period, first):
            draw(f"{time.strftime('%Y-%m-%d %H:%M:%S')}, after {elapsed_seconds:.1f} s", view())


@contextmanager
def _drawing() -> Iterator[Callable[[str, str], None]]:
    """Yield what shows a heading and a view: in place on a terminal, else below the one before."""
    if sys.stdout is None or not sys.stdout.isatty() or os.environ.get("TERM", "") in _NO_CURSOR:
        yield lambda heading, view: write(f"{heading}\n{view}\n", sys.stdout)
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    def redraw(heading: str, view: str) -> None:
        # `Text` is not read as markup: "[red]" in the name of a program stays as it is.
        live.update(Text(printable(f"{heading}; Ctrl-C ends\n{view}", besides="\n"), overflow="fold"), refresh=True)

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    with Live(console=Console(force_terminal=True), auto_refresh=False) as live:
        yield redraw


def ticks(time_source: TimeSource, period_seconds: float, first: int = 0) -> Iterator[float]:
    """Wait for each multiple of the period, and yield the seconds since the beginning, which is now.

    The schedule does not drift: work between two ticks does not delay the next one. A tick whose time passes during
    such work is left out.

    Args:
        time_source: Tells the time and waits.
        period_seconds: The time between two ticks.
        first: The multiple to begin with; with 0, the first tick is now.
    """
    begin, position = time_source.now(), first
    while True:
        time_source.sleep(begin + position * period_seconds - time_source.now())
        yield time_source.now() - begin
        position = max(position, math.floor((time_source.now() - begin) / period_seconds)) + 1


def _power_fields(gpus: Mapping[int, Gpu], unread: set[int]) -> dict[str, Any]:
    """Read the power of each GPU. The indices of those that cannot be read join `unread`, each with one warning."""
    powers_watts: list[float | None] = []
    for index, gpu in gpus.items():
        try:
            powers_watts.append(gpu.read_power_watts())
        except DeviceError as error:
            powers_watts.append(None)
            if index not in unread:
                unread.add(index)
                _logger.warning("the power of GPU %d is not measured: %s", index, error)
    known = [power for power in powers_watts if power is not None]
    listed = [
        {"index": index, "name": gpu.name, "is_simulated": gpu.is_simulated, "power_watts": power}
        for (index, gpu), power in zip(gpus.items(), powers_watts, strict=True)
    ]
    is_whole = 0 < len(known) == len(listed)
    return {"gpus": listed, "power_watts": sum(known) if is_whole else None}


def _power_table(fields: Mapping[str, Any]) -> str:
    rows = [(f"GPU {gpu['index']}: {gpu['name']}", watts(gpu["power_watts"])) for gpu in fields["gpus"]]
    return table([("device", "power"), *rows, ("total", watts(fields["power_watts"]))], "<>")


def running_total(meter: MachineMeter) -> str:
    """Read the energy of each device since the window of a meter was opened, and return it as a table."""
    from zeus_core.measurement import DeviceEnergy

    so_far = meter.so_far().devices
    energies = [(f"{device.label}: {meter.names[device]}", energy) for device, energy in so_far.items()]
    total = sum(so_far.values(), DeviceEnergy())
    rows = [(name, joules(energy.energy_joules)) for name, energy in [*energies, ("total", total)]]
    return table([("device", "energy"), *rows], "<>")


def _top_view(gpus: Mapping[int, Gpu], facts: Mapping[int, Mapping[str, Any]], settings: HeldSettings) -> str:
    if not gpus:
        return settings.text(gpus)
    rows = [(str(index), *row_of({**facts[index], **load_of(gpu)})) for index, gpu in gpus.items()]
    return "\n\n".join([table([HEADER, *rows], SIDES), settings.text(gpus)])
