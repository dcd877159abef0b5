"""`zeus-core top`: what the GPUs draw, what limits them, and who controls them, live."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from zeus_core.cli.arguments import add_gpus, add_period, check_gpu_indices, notes_on_silent
from zeus_core.cli.meters._display import ticks
from zeus_core.cli.text import NOT_MEASURED, readable, table, write
from zeus_core.ports.time_source import MonotonicTime

if TYPE_CHECKING:
    from zeus_core.device import Gpu
    from zeus_core.settings.entry import LedgerEntry

SUMMARY = "Show power, temperature, limits, clocks and who controls them, until Ctrl-C"

_HEADER = ("GPU", "name", "power", "chip", "limit", "enforced", "default", "SM clock", "controlled by")
_ALIGNMENT = "><" + ">" * 6 + "<"

_logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_gpus(parser)
    add_period(parser)
    parser.add_argument("--once", action="store_true", help="print one table and end")


def execute(arguments: argparse.Namespace) -> int:
    """Show the table until Ctrl-C, or once."""
    from zeus_core.device import discover_gpus

    visible = discover_gpus()
    gpus = {index: visible[index] for index in check_gpu_indices(arguments.gpus, visible)}
    if arguments.gpus is None:
        for note in notes_on_silent(visible):
            _logger.warning("%s", note)
    if arguments.once:
        write(_text(_rows(gpus)), sys.stdout)
        return 0
    with contextlib.suppress(KeyboardInterrupt):
        _show_live(gpus, arguments.period)
    return 0


def _show_live(gpus: Mapping[int, Gpu], period_seconds: float) -> None:
    """Draw the table in place if `rich` and a terminal are there, else one below the other."""
    if sys.stdout is None or not sys.stdout.isatty() or importlib.util.find_spec("rich") is None:
        for _ in ticks(MonotonicTime(), period_seconds):
            write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}\n{_text(_rows(gpus))}\n", sys.stdout)
        return
    from rich.live import Live
    from rich.table import Table

    with Live(auto_refresh=False) as live:
        for _ in ticks(MonotonicTime(), period_seconds):
            drawn = Table(caption="Ctrl-C ends")
            for name, side in zip(_HEADER, _ALIGNMENT, strict=True):
                drawn.add_column(name, justify="right" if side == ">" else "left")
            for row in _rows(gpus):
                drawn.add_row(*row)
            live.update(drawn, refresh=True)


def _text(rows: Sequence[Sequence[str]]) -> str:
    return table([_HEADER, *rows], _ALIGNMENT)


def _rows(gpus: Mapping[int, Gpu]) -> list[tuple[str, ...]]:
    entries = _entries()
    return [
        _row(index, gpu, [entry for entry in entries if entry.device_uuid == gpu.uuid]) for index, gpu in gpus.items()
    ]


def _row(index: int, gpu: Gpu, entries: Sequence[LedgerEntry]) -> tuple[str, ...]:
    from zeus_core.device.gpu import read_temperature_celsius

    clock_mhz, celsius = readable(gpu.read_sm_clock_mhz), read_temperature_celsius(gpu)
    return (
        str(index),
        gpu.name,
        _watts(readable(gpu.read_power_watts)),
        NOT_MEASURED if celsius is None else f"{celsius:.4g} °C",
        _watts(readable(gpu.read_power_limit_watts)),
        _watts(readable(gpu.read_enforced_power_limit_watts)),
        _watts(readable(gpu.read_default_power_limit_watts)),
        NOT_MEASURED if clock_mhz is None else f"{clock_mhz} MHz",
        "; ".join(dict.fromkeys(map(_holder, entries))) or NOT_MEASURED,
    )


def _entries() -> list[LedgerEntry]:
    from zeus_core.settings.ledger import known_ledgers

    return [entry for ledger in known_ledgers() for entry in ledger.entries()]


def _holder(entry: LedgerEntry) -> str:
    return f"{entry.holder}, which has ended" if entry.is_stale() else entry.holder


def _watts(power_watts: float | None) -> str:
    return NOT_MEASURED if power_watts is None else f"{power_watts:.4g} W"
