"""`zeus-core top`: what the GPUs do and draw, whose processes are on them, and who controls them, live."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import logging
import sys
import time
from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from zeus_core._documents import JsonFormat
from zeus_core._identity import printable
from zeus_core.cli.arguments import add_gpus, add_period, check_gpu_indices, notes_on_silent
from zeus_core.cli.meters._display import ticks
from zeus_core.cli.text import NOT_MEASURED, readable, table, watts, write
from zeus_core.ports.time_source import MonotonicTime

if TYPE_CHECKING:
    from zeus_core.device import Gpu
    from zeus_core.settings.entry import LedgerEntry
    from zeus_core.settings.entry_files import UnreadableEntry
    from zeus_core.settings.ledger import Ledger

SUMMARY = "Show load, power, limits, users and who controls them, until Ctrl-C"

_FORMAT = JsonFormat("zeus-core top", 1)
_HEADER = (
    *("GPU", "name", "busy", "memory", "temp", "power", "limit", "enforced", "default", "SM clock", "used by"),
    "controlled by",
)
_ALIGNMENT = "><" + ">" * 8 + "<<"
_SORTS = {"busy": "utilization", "memory": "memory_used_bytes", "temp": "temperature_celsius", "power": "power_watts"}
# Boards of data centers slow down from 85 to 90 degrees on; an idle one draws 10 to 20 % of its limit.
_WARM_CELSIUS, _HOT_CELSIUS = 80.0, 87.0
_BARS, _SHOWN_PERIODS = "▁▂▃▄▅▆▇█", 20
_IDLE_BELOW, _IDLE_DRAWS = 0.05, 0.25

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Board:
    """A GPU now; None is not known."""

    index: int
    name: str
    uuid: str
    utilization: float | None
    memory_used_bytes: int | None
    memory_bytes: int | None
    temperature_celsius: float | None
    power_watts: float | None
    limit_watts: float | None
    enforced_limit_watts: float | None
    default_limit_watts: float | None
    sm_clock_mhz: float | None
    users: tuple[tuple[str, str], ...] | None  # with their jobs
    holders: tuple[str, ...]

    @property
    def color(self) -> str | None:
        """Red for what slows down, yellow for what may soon, or draws much for nothing."""
        celsius = self.temperature_celsius or 0.0
        is_idle = self.utilization is not None and self.utilization < _IDLE_BELOW
        draws = self.limit_watts is not None and (self.power_watts or 0.0) > _IDLE_DRAWS * self.limit_watts
        warns = celsius >= _WARM_CELSIUS or (is_idle and draws)
        return "red" if celsius >= _HOT_CELSIUS else "yellow" if warns else None

    def row(self) -> tuple[str, ...]:
        """Return its cells."""
        memory = None if self.memory_bytes is None else f"{(self.memory_used_bytes or 0) / 2**30:.0f}"
        users = None if self.users is None else ", ".join(" ".join(filter(None, pair)) for pair in self.users)
        return (
            str(self.index),
            self.name,
            _text("{:.0%}", self.utilization),
            NOT_MEASURED if memory is None else f"{memory}/{(self.memory_bytes or 0) / 2**30:.0f} GiB",
            _text("{:.0f} C", self.temperature_celsius),
            *(
                watts(value)
                for value in (self.power_watts, self.limit_watts, self.enforced_limit_watts, self.default_limit_watts)
            ),
            _text("{:.0f} MHz", self.sm_clock_mhz),
            users or NOT_MEASURED,
            "; ".join(self.holders) or NOT_MEASURED,
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_gpus(parser)
    add_period(parser)
    parser.add_argument("--once", action="store_true", help="print one table and end")
    parser.add_argument("--json", action="store_true", help="print one JSON object and end; null is not known")
    parser.add_argument("--sort", choices=tuple(_SORTS), help="the highest first, in place of the index")
    parser.add_argument("--user", metavar="NAME", help="only GPUs with a process of this user")
    parser.add_argument("--job", metavar="ID", help="only GPUs with a process of this job")


def execute(arguments: argparse.Namespace) -> int:
    """Show the table until Ctrl-C, or once."""
    from zeus_core.device import discover_gpus

    visible = discover_gpus()
    gpus = {index: visible[index] for index in check_gpu_indices(arguments.gpus, visible)}
    if arguments.gpus is None:
        for note in notes_on_silent(visible):
            _logger.warning("%s", note)
    if arguments.json:
        write(json.dumps(_FORMAT.document({"gpus": [asdict(each) for each in _boards(gpus, arguments)]})), sys.stdout)
    elif arguments.once:
        write(_table(_boards(gpus, arguments)), sys.stdout)
    else:
        with contextlib.suppress(KeyboardInterrupt):
            _show_live(gpus, arguments)
    return 0


def _show_live(gpus: Mapping[int, Gpu], arguments: argparse.Namespace) -> None:
    """Draw the table in place if `rich` and a terminal are there, else one below the other."""
    if sys.stdout is None or not sys.stdout.isatty() or importlib.util.find_spec("rich") is None:
        for _ in ticks(MonotonicTime(), arguments.period):
            write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}\n{_table(_boards(gpus, arguments))}\n", sys.stdout)
        return
    from rich.live import Live
    from rich.table import Table

    latest: dict[str, deque[float | None]] = defaultdict(lambda: deque(maxlen=_SHOWN_PERIODS))
    with Live(auto_refresh=False) as live:
        for _ in ticks(MonotonicTime(), arguments.period):
            drawn = Table(caption="Ctrl-C ends")
            for name, side in zip(_HEADER, _ALIGNMENT, strict=True):
                drawn.add_column(name, justify="right" if side == ">" else "left")
            drawn.add_column("power before")
            for board in _boards(gpus, arguments):
                latest[board.uuid].append(board.power_watts)
                drawn.add_row(
                    *map(printable, board.row()), bars(latest[board.uuid], board.limit_watts), style=board.color
                )
            live.update(drawn, refresh=True)


def bars(values: Collection[float | None], most: float | None) -> str:
    """Return a bar for each of some values, of eight heights up to `most`; a gap for each that is not known."""
    known = [value for value in values if value is not None]
    scale = len(_BARS) / (most or max(known, default=0.0) or 1.0)
    return "".join(" " if value is None else _BARS[min(int(scale * value), len(_BARS) - 1)] for value in values)


def _table(boards: Sequence[_Board]) -> str:
    return table([_HEADER, *(board.row() for board in boards)], _ALIGNMENT)


def _boards(gpus: Mapping[int, Gpu], arguments: argparse.Namespace) -> list[_Board]:
    from zeus_core.settings.ledger import seen_ledgers

    ledgers = seen_ledgers()
    boards = [_board(index, gpu, ledgers) for index, gpu in gpus.items()]
    for place, wanted in ((0, arguments.user), (1, arguments.job)):
        if wanted is not None:
            boards = [board for board in boards if wanted in [pair[place] for pair in board.users or ()]]
    if arguments.sort is not None:
        boards.sort(key=lambda board: getattr(board, _SORTS[arguments.sort]) or 0.0, reverse=True)
    return boards


def _board(index: int, gpu: Gpu, ledgers: Sequence[Ledger]) -> _Board:
    from zeus_core.device.gpu import identities_on, read_memory_bytes, read_temperature_celsius, read_utilization
    from zeus_core.ports.run_identity import identity_of

    processes = identities_on(gpu)
    people = None if processes is None else [identity_of(*process) for process in processes]
    memory = read_memory_bytes(gpu) or (None, None)
    return _Board(
        index,
        gpu.name,
        gpu.uuid,
        read_utilization(gpu),
        memory[0],
        memory[1],
        read_temperature_celsius(gpu),
        readable(gpu.read_power_watts),
        readable(gpu.read_power_limit_watts),
        readable(gpu.read_enforced_power_limit_watts),
        readable(gpu.read_default_power_limit_watts),
        readable(gpu.read_sm_clock_mhz),
        None if people is None else tuple(sorted({(one.user, one.job) for one in people})),
        tuple(dict.fromkeys(_holder(ledger, found) for ledger in ledgers for found in ledger.read_of(gpu.uuid))),
    )


def _holder(ledger: Ledger, found: LedgerEntry | UnreadableEntry) -> str:
    from zeus_core.settings.entry_files import UnreadableEntry

    if isinstance(found, UnreadableEntry):
        return f"not known: {found.path} cannot be read"
    return f"{found.holder}, which has ended" if ledger.is_stale(found) else found.holder


def _text(form: str, value: float | None) -> str:
    return NOT_MEASURED if value is None else form.format(value)
