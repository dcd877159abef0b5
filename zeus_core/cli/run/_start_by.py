"""`zeus-core run --start-by`: wait for the start that costs or emits least by a deadline."""

from __future__ import annotations

import argparse
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from types import FrameType
from typing import TYPE_CHECKING

from zeus_core.cli.electricity_arguments import FILE, signal_from_file
from zeus_core.cli.text import complain
from zeus_core.errors import UsageError
from zeus_core.units import number_text
from zeus_core.validate import shown

if TYPE_CHECKING:
    from zeus_core.electricity import RecordedSignal
    from zeus_core.optimizer.carbon_aware.best_start import BestStart

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PAST_SECONDS = 7 * 86_400.0  # of which forecasts are made
_LONGEST_SECONDS = 31 * 86_400.0  # of a wait: signals are not foreseen for longer
# The clock of the machine may be set meanwhile, and does not go on in a machine that sleeps.
_LOOK_SECONDS = 60.0
_UNITS_SECONDS = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_DURATION = re.compile("".join(rf"(?:(?P<{unit}>\d+(?:\.\d+)?){unit})?" for unit in _UNITS_SECONDS))


class _EndedError(BaseException):
    """A signal asks this process to end."""


def add_start_by(parser: argparse._ActionsContainer) -> None:
    """Declare `--start-by`, `--deadline` and `--duration`."""
    parser.add_argument(
        "--start-by",
        metavar=FILE,
        help="wait for the start that emits or costs least by this signal: a CSV file of carbon intensities or prices, "
        "with its forecast as far as it has one",
    )
    parser.add_argument(
        "--deadline",
        metavar="TIME",
        help="when the command must be done, such as 2026-12-01T08:00, or in so much time, such as 12h",
    )
    parser.add_argument(
        "--duration", type=_duration, metavar="3h", help="how long the command takes, such as 3h, 90m or 1h30m"
    )


def wait_for_start(
    arguments: argparse.Namespace,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], object] = time.sleep,
) -> int | None:
    """Wait for the best start, if the arguments ask for it, and say when it is and why.

    Args:
        arguments: Those of `add_start_by`.
        clock: Returns seconds since 1970.
        sleep: Waits for so many seconds.

    Returns:
        None to start the command; else the exit code, as a signal has ended the wait.

    Raises:
        UsageError: An argument is wrong or missing.
    """
    if arguments.start_by is None:
        for name in ("deadline", "duration"):
            if getattr(arguments, name) is not None:
                raise UsageError(f"--{name} is for --start-by, which says by which signal to wait, such as prices.csv")
        return None
    if arguments.deadline is None or arguments.duration is None:
        raise UsageError(
            "--start-by needs --deadline and --duration, such as --deadline 2026-12-01T08:00 --duration 3h"
        )
    now = clock()
    deadline = _deadline(arguments.deadline, now)
    from zeus_core.optimizer.carbon_aware.best_start import best_start

    followed = signal_from_file(arguments.start_by, arguments)
    best = best_start(followed, now, deadline, arguments.duration)
    try:
        with _handled_signals():
            complain(f"zeus-core: {_reason(best, followed, now, deadline, arguments.duration)}")
            while (left := best.begin_seconds - clock()) > 0:
                sleep(min(left, _LOOK_SECONDS))
    except _EndedError as ended:
        number = signal.Signals(ended.args[0])
        complain(f"zeus-core: {number.name} ends the wait; the command was not started")
        return 128 + number
    return None


def _reason(best: BestStart, followed: RecordedSignal, now: float, deadline: float, duration: float) -> str:
    unit, source = followed.facts.unit, followed.facts.source
    if deadline - duration < now:
        late = _duration_text(now + duration - deadline)
        return f"starts at once: the deadline {_time_text(deadline)} cannot be kept, the end is {late} after it"
    known = f"{best.published_fraction:.0%} of the time until the deadline is in {source}"
    rest = "" if best.published_fraction > 0.995 else ", the rest is forecast from its past"
    if followed.end_seconds < now - _PAST_SECONDS:
        last = _time_text(followed.end_seconds)
        return f"starts at once: the last value of {source} is of {last}, too old to foresee any"
    if best.begin_seconds <= now:
        return (
            f"starts at once: {number_text(best.mean)} {unit} are expected meanwhile, and no less later ({known}{rest})"
        )
    change = f", {best.mean / best.mean_now - 1:+.0%}" if best.mean_now > 0 else ""
    return (
        f"starts at {_time_text(best.begin_seconds)}, in {_duration_text(best.begin_seconds - now)}: "
        f"{number_text(best.mean)} {unit} are expected then over {_duration_text(duration)}, and "
        f"{number_text(best.mean_now)} now{change} ({known}{rest})"
    )


@contextmanager
def _handled_signals() -> Iterator[None]:
    """Raise what a signal asks for, except for those that are ignored, as under nohup."""

    def end(number: int, frame: FrameType | None) -> None:
        raise _EndedError(number)

    before = {number: signal.getsignal(number) for number in _ENDING}
    heard = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    try:
        for number in heard:
            signal.signal(number, end)
        yield
    finally:
        for number in heard:
            signal.signal(number, before[number])


def _deadline(text: str, now: float) -> float:
    match = _DURATION.fullmatch(text.strip())
    try:
        if match is not None and any(match.groups()):
            deadline = now + _seconds(match)
        else:
            # In the time zone of the machine, unless it names one. Python 3.10 does not read a Z.
            iso = f"{text[:-1]}+00:00" if text.endswith(("Z", "z")) else text
            deadline = datetime.fromisoformat(iso).timestamp()
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"--deadline is {shown(text)}; it must be a time such as 2026-12-01T08:00, or in how much time, such as 12h"
        ) from None
    if deadline - now > _LONGEST_SECONDS:
        raise UsageError(f"--deadline is {shown(text)}; it must be within 31 days, as far as a signal can be foreseen")
    return deadline


def _duration(text: str) -> float:
    match = _DURATION.fullmatch(text.strip())
    if match is None or not 0 < _seconds(match) <= _LONGEST_SECONDS:
        raise argparse.ArgumentTypeError(f"{shown(text)} is no duration of at most 31 days, such as 3h, 90m or 1h30m")
    return _seconds(match)


def _seconds(match: re.Match[str]) -> float:
    return sum(seconds * float(match[unit] or 0) for unit, seconds in _UNITS_SECONDS.items())


def _duration_text(seconds: float) -> str:
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours and minutes else f"{hours} h" if hours else f"{minutes} min"


def _time_text(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M %Z}"
