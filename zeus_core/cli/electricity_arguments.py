"""The electricity that a user states: `--intensity`, `--price` and `--pue`, and the files of signals."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from zeus_core.cli.arguments import check_exists
from zeus_core.cli.text import complain
from zeus_core.errors import UsageError
from zeus_core.validate import shown

if TYPE_CHECKING:
    from zeus_core.electricity import Electricity, RecordedSignal, Signal

_CONSTANT = re.compile(r"\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*([^\W\d][^/,]*/[A-Za-z]+|[€£]/[A-Za-z]+)\s*")
_COUNTRY = re.compile(r"[A-Z]{2}")
_EXAMPLES = {
    "intensity": ("380g/kWh", "carbon.csv,g/kWh,UTC"),
    "price": ("0.31EUR/kWh", "price.csv,EUR/MWh,UTC"),
}
FILE = "FILE[,UNIT[,ZONE]]"
"""A CSV file with the unit and the time zone that it does not state itself."""


def add_electricity(parser: argparse._ActionsContainer) -> None:
    """Declare `--intensity`, `--price` and `--pue`."""
    value, file = _EXAMPLES["intensity"]
    parser.add_argument(
        "--intensity",
        metavar=value,
        help="carbon intensity of the electricity, or a country such as DE for its yearly mean, or a CSV file as "
        f"{FILE}, with unit and time zone where the file does not state them: {file}",
    )
    value, file = _EXAMPLES["price"]
    parser.add_argument("--price", metavar=value, help=f"price of the electricity, or a file: {file}")
    parser.add_argument(
        "--pue", type=float, metavar="RATIO", help="energy of the data centre divided by that of its computers (1)"
    )


def electricity_from(arguments: argparse.Namespace, defaults: Mapping[str, str] | None = None) -> Electricity | None:
    """Return the electricity that the arguments state; None without an intensity or a price.

    Args:
        arguments: Those of `add_electricity`.
        defaults: Values of the site for arguments that are not given; if one is wrong, a line says so and none counts.

    Raises:
        UsageError: An argument is wrong.
    """
    given = {name: getattr(arguments, name) for name in ("intensity", "price", "pue")}
    site = {name: text for name, text in (defaults or {}).items() if given[name] is None}
    stated = {**given, **site}
    if stated["intensity"] is None and stated["price"] is None:
        if given["pue"] is not None:
            raise UsageError(f"--pue is {given['pue']:g}, which needs --intensity or --price; give one of them too")
        return None
    from zeus_core.electricity import Electricity

    try:
        intensity, price = (
            None if stated[name] is None else _signal(name, stated[name], name in site) for name in _EXAMPLES
        )
        return Electricity(intensity, price, 1.0 if stated["pue"] is None else float(stated["pue"]))
    except (UsageError, ValueError) as error:
        if not site:
            raise
        complain(f"zeus-core: the electricity in the defaults of this site is ignored: {error}")
        return electricity_from(arguments)


def signal_from_file(text: str) -> RecordedSignal:
    """Return the signal in a file, with a unit and a zone that may follow its name; see `FILE`.

    Raises:
        UsageError: The file cannot be read, or lacks what must be known.
    """
    from zeus_core.electricity import RecordedSignal

    name, stated = text, list[str]()
    for count in range(3):  # a comma may also be part of the name
        name, *stated = text.rsplit(",", count)
        if Path(name).is_file():
            break
    else:
        if len(stated) < 2:
            check_exists(Path(text))
    unit, zone, *_ = [*(word.strip() or None for word in stated), None, None]
    return RecordedSignal.from_csv(name, unit, zone)


def _signal(name: str, text: str, is_of_site: bool) -> Signal:
    from zeus_core.electricity import ConstantSignal
    from zeus_core.electricity.countries import yearly_intensity

    match, is_price = _CONSTANT.fullmatch(text), name == "price"
    argument = name if is_of_site else f"--{name}"
    try:
        if not is_price and _COUNTRY.fullmatch(text) and not Path(text).is_file():
            return yearly_intensity(text)
        if match is None and "/" not in text and "," not in text and not Path(text).is_file():
            raise UsageError("there is no unit")
        source = "by the defaults of this site" if is_of_site else f"by {argument}"
        signal = signal_from_file(text) if match is None else ConstantSignal(float(match[1]), match[2], source)
        if signal.facts.is_price != is_price:
            raise UsageError(f"it is in {signal.facts.unit}")
    except (UsageError, ValueError) as error:
        value, file = _EXAMPLES[name]
        raise UsageError(
            f"{argument} is {shown(text)}: {error}; give a value with its unit, such as {value}, or a CSV file with "
            f"its unit and time zone, such as {file}"
        ) from error
    return signal
