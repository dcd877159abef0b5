"""The electricity that a user states: `--intensity`, `--price` and `--pue`, and the files of signals."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from zeus_core.errors import UsageError
from zeus_core.validate import shown

if TYPE_CHECKING:
    from zeus_core.electricity import Electricity, RecordedSignal, Signal

_CONSTANT = re.compile(r"\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*([^\W\d][^/,]*/[A-Za-z]+|[€£]/[A-Za-z]+)\s*")
_COUNTRY = re.compile(r"[A-Z]{2}")
_INTENSITY, _PRICE = "380g/kWh", "0.31EUR/kWh"
FILE = "FILE[,UNIT[,ZONE]]"
"""A CSV file with the unit and the time zone that it does not state itself."""


def add_electricity(parser: argparse._ActionsContainer) -> None:
    """Declare `--intensity`, `--price` and `--pue`."""
    csv = f"or a CSV file as {FILE}: unit and time zone where the file does not state them"
    parser.add_argument(
        "--intensity",
        metavar=_INTENSITY,
        help=f"carbon intensity of the electricity, or a country such as DE for its yearly mean, {csv}: "
        "carbon.csv,g/kWh,UTC",
    )
    parser.add_argument("--price", metavar=_PRICE, help="price of the electricity, or a file: price.csv,EUR/MWh,UTC")
    parser.add_argument(
        "--pue", type=float, metavar="RATIO", help="energy of the data centre divided by that of its computers (1)"
    )
    add_columns(parser)


def add_columns(parser: argparse._ActionsContainer) -> None:
    """Declare `--column` and `--where`."""
    parser.add_argument(
        "--column", action="append", default=[], metavar="NAME", help="the column of values in a CSV file of a signal"
    )
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        type=_condition,
        metavar="COLUMN=VALUE",
        help="only rows with this value in a column of such a file, as one area of several",
    )


def electricity_from(arguments: argparse.Namespace) -> Electricity | None:
    """Return the electricity that the arguments state; None without an intensity or a price.

    Raises:
        UsageError: An argument is wrong.
    """
    if arguments.intensity is None and arguments.price is None:
        if arguments.pue is not None:
            raise UsageError(f"--pue is {arguments.pue:g}, and nothing to use it for; give --intensity or --price too")
        return None
    from zeus_core.electricity import Electricity

    return Electricity(
        _signal("--intensity", arguments.intensity, arguments, is_price=False),
        _signal("--price", arguments.price, arguments, is_price=True),
        1.0 if arguments.pue is None else arguments.pue,
    )


def signal_from_file(text: str, arguments: argparse.Namespace) -> RecordedSignal:
    """Return the signal in a file, with a unit and a zone that may follow its name; see `FILE`.

    Raises:
        UsageError: The file cannot be read, or lacks what must be known.
    """
    for count in range(3):  # a comma may also be part of the name
        name, *stated = text.rsplit(",", count)
        if Path(name).is_file():
            break
    else:
        if not stated[1:]:
            raise UsageError(f"there is no file {shown(text)}")
    unit, zone, *_ = [*(word.strip() or None for word in stated), None, None]
    return read_signal(Path(name), unit, zone, arguments)


def read_signal(
    file: Path, unit: str | None, zone: str | None, arguments: argparse.Namespace, usual_unit: str | None = None
) -> RecordedSignal:
    """Return the signal in a file, of the columns and rows that the arguments name.

    Args:
        file: The file.
        unit: The unit; None for what the file says.
        zone: The time zone; None for what the file says.
        arguments: Those of `add_columns`.
        usual_unit: The unit if the file does not state one.

    Raises:
        UsageError: The file cannot be read, or lacks what must be known.
    """
    from zeus_core.electricity import RecordedSignal
    from zeus_core.electricity.signal_table import SignalTable

    if not file.is_file():
        return RecordedSignal.from_csv(file, unit, zone)  # which says what is wrong
    table = SignalTable(file)
    # Where a command has two files, a name may be that of the other.
    is_only = len([text for text in map(vars(arguments).get, _FILES) if text and not _CONSTANT.fullmatch(text)]) < 2
    column = next((name for name in arguments.column if is_only or table.find(name)), None)
    where = {name: value for name, value in arguments.where if is_only or table.find(name)}
    unit = unit or table.unit(table.value_column(column)) or usual_unit
    return RecordedSignal.from_csv(file, unit, zone, value_column=column, where=where)


_FILES = ("intensity", "price", "start_by")


def _signal(option: str, text: str | None, arguments: argparse.Namespace, is_price: bool) -> Signal | None:
    if text is None:
        return None
    from zeus_core.electricity import ConstantSignal
    from zeus_core.electricity.countries import yearly_intensity

    match = _CONSTANT.fullmatch(text)
    try:
        signal: Signal
        if not is_price and _COUNTRY.fullmatch(text) and not Path(text).is_file():
            return yearly_intensity(text)
        if match is None and "/" not in text and "," not in text and not Path(text).is_file():
            raise UsageError("there is no unit")
        if match is not None:
            signal = ConstantSignal(float(match[1]), match[2], source=f"by {option}")
        else:
            signal = signal_from_file(text, arguments)
        if signal.facts.is_price != is_price:
            raise UsageError(f"it is in {signal.facts.unit}")
    except (UsageError, ValueError) as error:
        value, file = (_PRICE, "price.csv,EUR/MWh,UTC") if is_price else (_INTENSITY, "carbon.csv,g/kWh,UTC")
        raise UsageError(
            f"{option} is {shown(text)}: {error}; give a value with its unit, such as {value}, or a CSV file with "
            f"its unit and time zone, such as {file}"
        ) from error
    return signal


def _condition(text: str) -> tuple[str, str]:
    name, is_one, value = text.partition("=")
    if not is_one or not name:
        raise argparse.ArgumentTypeError(f"{shown(text)} is no column and its value, such as 'Area=BZN|DE-LU'")
    return name, value
