"""`zeus-core predict`: what a search for a power limit is predicted to save, before any training."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from zeus_core.cli.arguments import number, slowdown
from zeus_core.cli.text import readable, table, write
from zeus_core.errors import DeviceError, UsageError

if TYPE_CHECKING:
    from zeus_core.search.run.prediction import Predicted

PLACE = "Before a run", 31
SUMMARY = "Predict what a power limit saves on a GPU, before any training"
EXAMPLE = "zeus-core predict A100 --slowdown 10% --draw 310"

_SLOWDOWNS = (1.05, 1.1, 1.2)
_STEP_WATTS = 5
_SWEPT = ("V100", "A40", "A100")  # the boards of the prior, by tools/fit_search_prior.py
_LIMITS = re.compile(r"(\d{1,5})-(\d{1,5}) ?W?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "gpu",
        nargs="?",
        help="a model such as A100, or the power limits of another one: 100-350W; this machine's GPUs if left out, or "
        "all known models if there are none",
    )
    parser.add_argument(
        "--slowdown",
        type=slowdown,
        action="append",
        metavar="10%",
        help="accepted time over the usual; repeatable (5%%, 10%%, 20%%)",
    )
    parser.add_argument(
        "--draw", type=_watts, metavar="WATTS", help="mean power of a GPU as it trains now, if you know it"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def execute(arguments: argparse.Namespace) -> int:
    """Print the table: a row for each model, and a column for each slowdown."""
    from zeus_core.search.run.prediction import predict_saving

    factors = arguments.slowdown or _SLOWDOWNS
    boards = _boards(arguments.gpu)
    for name, (lowest, highest) in boards.items():
        if arguments.draw is not None and not lowest < arguments.draw <= 1.2 * highest:
            span = f"the power limits of {name}, {lowest:g} to {highest:g} W"
            raise UsageError(f"--draw is {arguments.draw:g}, beyond {span}")
    predicted = {
        name: [predict_saving(_limits(*limits), factor, None, arguments.draw) for factor in factors]
        for name, limits in boards.items()
    }
    if arguments.json:
        rows = [
            {"gpu": name, "limits_watts": boards[name], "slowdown_factor": factor, "saving": asdict(saving)}
            for name, savings in predicted.items()
            for factor, saving in zip(factors, savings, strict=True)
        ]
        write(json.dumps({"format": "zeus-core predict", "version": 1, "predicted": rows}, indent=2), sys.stdout)
        return 0
    header = ["energy saved", *(f"{100 * (factor - 1):g}% slower" for factor in factors)]
    rows_of_text = [[name, *map(_percent, savings)] for name, savings in predicted.items()]
    write(table([header, *rows_of_text], "<" + ">" * len(factors)), sys.stdout)
    write(
        "\nPredicted, not measured: the median, and the range of 9 runs in 10, by\n"
        f"published sweeps of {_and(_SWEPT)}.\n{_unknown_text(boards, arguments.draw)}"
        "A search measures what yours saves: zeus-core run --save 10% -- COMMAND",
        sys.stdout,
    )
    return 0


def _unknown_text(boards: Iterable[str], draw_watts: float | None) -> str:
    """Return in lines what is not known: boards without a sweep, and the kind of work, unless its power is stated."""
    others = [name for name in boards if not any(re.search(rf"\b{swept}\b", name) for swept in _SWEPT)]
    lines = [f"Not known for {_and(others)}: the rows are by other boards' sweeps."] if others else []
    if draw_watts is None:
        lines.append("Not known for your kind of work: --draw, its power as nvidia-smi shows it, narrows the range.")
    return "".join(f"{line}\n" for line in lines)


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _boards(asked: str | None) -> dict[str, tuple[float, float]]:
    """Return the lowest limit and the original one of each model."""
    from zeus_core.device import discover_gpus
    from zeus_core.device.simulated.presets import PRESETS, find_preset

    if asked is not None and (limits := _LIMITS.fullmatch(asked)):
        lowest, highest = float(limits[1]), float(limits[2])
        if not 0 < lowest < highest:
            raise UsageError(f"the GPU is {asked!r}; give its lowest and its usual limit, such as 100-350W")
        return {f"a GPU of {lowest:g} to {highest:g} W": (lowest, highest)}
    if asked is None:
        found = {}
        try:
            for gpu in discover_gpus():
                span, original = readable(gpu.read_power_limit_range_watts), readable(gpu.read_power_limit_watts)
                if span is not None and original is not None:
                    found[gpu.name] = (span.lowest_watts, original)
        except DeviceError:
            pass
        if found:
            return found
    try:
        presets = PRESETS.values() if asked is None else [find_preset(asked)]
    except UsageError as error:
        raise UsageError(f"{error}; or give its power limits instead, such as 100-350W") from error
    return {preset.name: (preset.limit_range_watts.lowest_watts, preset.default_limit_watts) for preset in presets}


def _limits(lowest: float, original: float) -> tuple[float, ...]:
    count = int((original - lowest) // _STEP_WATTS)
    return tuple(original - _STEP_WATTS * step for step in range(count + 1))


def _percent(saving: Predicted) -> str:
    low, median, high = (f"{100 * value:.0f}" for value in (saving.low, saving.median, saving.high))
    return f"{median} % ({low}-{high})"


def _watts(text: str) -> float:
    return number(text.removesuffix("W").strip(), 1, 1e5, "is not a power in watts, such as 310")
