"""`zeus-core predict`: what a search for a power limit is predicted to save, before any training."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from zeus_core.cli.arguments import number
from zeus_core.cli.text import readable, table, write
from zeus_core.errors import DeviceError, UsageError
from zeus_core.units import number_text
from zeus_core.validate import checked_slowdown, shown

if TYPE_CHECKING:
    from zeus_core.search.run.prediction import Predicted

SUMMARY = "Predict what a power limit saves on a GPU, before any training"

_WORKS = ("memory", "mixed", "compute")  # those of `prediction`, which loads numpy, and help must not
_SLOWDOWNS = ("5%", "10%", "20%")
_STEP_WATTS = 5
_SWEPT = ("V100", "A40", "A100")  # the boards of the prior, by tools/fit_search_prior.py


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = "Example: zeus-core predict --gpu A100 --slowdown 10% --draw 310"
    parser.add_argument("--gpu", metavar="MODEL", help="such as A100; this machine's GPUs, or all known models if none")
    parser.add_argument("--limits", type=_range, metavar="100-350", help="power limits of another model, in watts")
    parser.add_argument(
        "--slowdown", action="append", metavar="10%", help="accepted time over the usual; repeatable (5%%, 10%%, 20%%)"
    )
    parser.add_argument(
        "--work", choices=_WORKS, help="what bounds a step: the clock (compute), memory, or some of both"
    )
    parser.add_argument(
        "--draw", type=_watts, metavar="WATTS", help="mean power of a GPU as it trains now, if you know it"
    )
    parser.add_argument(
        "--gpu-hours", type=_hours, metavar="HOURS", help="also in kWh, for a training this long; with --draw"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def execute(arguments: argparse.Namespace) -> int:
    """Print the table: a row for each model, and a column for each slowdown."""
    from zeus_core.search.run.prediction import predict_saving

    if arguments.gpu_hours is not None and arguments.draw is None:
        raise UsageError("--gpu-hours needs --draw, the mean power of a GPU, such as --draw 310: nvidia-smi shows it")
    texts = arguments.slowdown or _SLOWDOWNS
    factors = [checked_slowdown("--slowdown", text) for text in texts]
    given = arguments.limits
    boards = _boards(arguments.gpu) if given is None else {arguments.gpu or "the GPU": given}
    for name, (lowest, highest) in boards.items():
        if arguments.draw is not None and not lowest < arguments.draw <= 1.2 * highest:
            span = f"the power limits of {name}, {lowest:g} to {highest:g} W"
            raise UsageError(f"--draw is {arguments.draw:g}, beyond {span}")
    predicted = {
        name: [predict_saving(_limits(*limits), factor, arguments.work, arguments.draw) for factor in factors]
        for name, limits in boards.items()
    }
    hours_kwh = None if arguments.gpu_hours is None else arguments.gpu_hours * arguments.draw / 1000
    if arguments.json:
        rows = [
            {"gpu": name, "limits_watts": boards[name], "slowdown_factor": factor, "saving": asdict(saving)}
            for name, savings in predicted.items()
            for factor, saving in zip(factors, savings, strict=True)
        ]
        total = {"kwh_without_saving": hours_kwh}
        write(
            json.dumps({"format": "zeus-core predict", "version": 1, **total, "predicted": rows}, indent=2), sys.stdout
        )
        return 0
    _write_table(
        "energy saved", texts, {name: [_percent(one) for one in savings] for name, savings in predicted.items()}
    )
    if hours_kwh is not None:
        title = f"of {number_text(hours_kwh)} kWh"
        kwh = {name: [_span(one, hours_kwh) for one in savings] for name, savings in predicted.items()}
        write("", sys.stdout)
        _write_table(title, texts, kwh)
    write(
        "\nPredicted, not measured: the median, and the range of 9 trainings in 10, by\n"
        f"published sweeps of {_and(_SWEPT)}.\n{_unknown_text(boards, arguments)}"
        "A search measures what yours saves: zeus-core run --save 10% -- COMMAND",
        sys.stdout,
    )
    return 0


def _unknown_text(boards: Iterable[str], arguments: argparse.Namespace) -> str:
    """Return in lines what is not known: boards without a sweep, and the kind of work, unless it was stated."""
    others = [name for name in boards if not any(re.search(rf"\b{swept}\b", name) for swept in _SWEPT)]
    lines = [f"Not known for {_and(others)}: the rows are by other boards' sweeps."] if others else []
    if arguments.work is None and arguments.draw is None:
        lines.append("Not known for your kind of work: --work and --draw say which it is.")
    return "".join(f"{line}\n" for line in lines)


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _write_table(title: str, slowdowns: Sequence[str], cells: Mapping[str, Iterable[str]]) -> None:
    header = [title, *(f"{text.strip()} slower" for text in slowdowns)]
    rows = [[name, *row] for name, row in cells.items()]
    write(table([header, *rows], "<" + ">" * len(slowdowns)), sys.stdout)


def _boards(asked: str | None) -> dict[str, tuple[float, float]]:
    """Return the lowest limit and the original one of each model."""
    from zeus_core.device import discover_gpus
    from zeus_core.device.simulated.presets import PRESETS, find_preset

    if asked is None:
        found = {}
        try:
            for gpu in discover_gpus():
                limits, original = readable(gpu.read_power_limit_range_watts), readable(gpu.read_power_limit_watts)
                if limits is not None and original is not None:
                    found[gpu.name] = (limits.lowest_watts, original)
        except DeviceError:
            pass
        if found:
            return found
    try:
        presets = PRESETS.values() if asked is None else [find_preset(asked)]
    except UsageError as error:
        raise UsageError(f"{error}; or add its power limits, such as --limits 100-350") from error
    return {preset.name: (preset.limit_range_watts.lowest_watts, preset.default_limit_watts) for preset in presets}


def _limits(lowest: float, original: float) -> tuple[float, ...]:
    count = int((original - lowest) // _STEP_WATTS)
    return tuple(original - _STEP_WATTS * step for step in range(count + 1))


def _percent(saving: Predicted) -> str:
    low, median, high = (f"{100 * value:.0f}" for value in (saving.low, saving.median, saving.high))
    return f"{median} % ({low}-{high})"


def _span(saving: Predicted, kwh: float) -> str:
    low, median, high = (number_text(kwh * value) for value in (saving.low, saving.median, saving.high))
    return f"{median} ({low}-{high})"


def _watts(text: str) -> float:
    return number(text.removesuffix("W").strip(), 1, 1e5, "is not a power in watts, such as 310")


def _range(text: str) -> tuple[float, float]:
    lowest, _, highest = text.removesuffix("W").strip().partition("-")
    limits = _watts(lowest), _watts(highest)
    if limits[0] >= limits[1]:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not the lowest and the usual limit, such as 100-350")
    return limits


def _hours(text: str) -> float:
    return number(text, 1e-3, 1e9, "is not a number of hours above 0, such as 100")
