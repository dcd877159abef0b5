"""The electricity that a user states: `--intensity`, `--price` and `--pue`."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from zeus_core.errors import UsageError
from zeus_core.validate import shown

if TYPE_CHECKING:
    from zeus_core.electricity import Electricity, Signal

_CONSTANT = re.compile(r"\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*([A-Za-z]+/[A-Za-z]+)\s*")
_INTENSITY, _PRICE = "380g/kWh", "0.31EUR/kWh"


def add_electricity(parser: argparse.ArgumentParser) -> None:
    """Declare `--intensity`, `--price` and `--pue`."""
    csv = "or a CSV file of timestamp,value with its unit and time zone, as FILE,UNIT,ZONE"
    parser.add_argument(
        "--intensity", metavar=_INTENSITY, help=f"carbon intensity of the electricity, {csv}: carbon.csv,g/kWh,UTC"
    )
    parser.add_argument("--price", metavar=_PRICE, help=f"price of the electricity, {csv}: price.csv,EUR/MWh,UTC")
    parser.add_argument(
        "--pue", type=float, metavar="RATIO", help="energy of the data centre divided by that of its computers (1)"
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
        _signal("--intensity", arguments.intensity, _INTENSITY, "carbon.csv,g/kWh,UTC", is_price=False),
        _signal("--price", arguments.price, _PRICE, "price.csv,EUR/MWh,UTC", is_price=True),
        1.0 if arguments.pue is None else arguments.pue,
    )


def _signal(option: str, text: str | None, constant: str, csv: str, is_price: bool) -> Signal | None:
    if text is None:
        return None
    from zeus_core.electricity import ConstantSignal, RecordedSignal

    match, file = _CONSTANT.fullmatch(text), text.rsplit(",", 2)
    try:
        signal: Signal
        if match is not None:
            signal = ConstantSignal(float(match[1]), match[2], source=f"by {option}")
        elif len(file) == 3:
            signal = RecordedSignal.from_csv(file[0], file[1].strip(), file[2].strip())
        else:
            raise UsageError("there is no unit")
        if signal.facts.is_price != is_price:
            raise UsageError(f"it is in {signal.facts.unit}")
    except (UsageError, ValueError) as error:
        raise UsageError(
            f"{option} is {shown(text)}: {error}; give a value with its unit, such as {constant}, or a CSV file with "
            f"its unit and time zone, such as {csv}"
        ) from error
    return signal
