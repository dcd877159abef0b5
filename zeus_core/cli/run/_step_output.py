"""The output of a command, passed on as it is, and the steps that are counted in it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pty
import re
import select
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from zeus_core.cli.text import table
from zeus_core.units import number_text

if TYPE_CHECKING:
    from zeus_core.events import TrainingOptimizer
    from zeus_core.monitor import ZeusMonitor
    from zeus_core.training.followed_steps import FollowedSteps

_CHUNK_BYTES = 1 << 16
_MAX_LINE_BYTES = 1 << 16  # of either end of a long line
# Lines end where the cursor moves, as bars of progress move it; colours are no part of the text (ECMA-48).
_LINE_END = re.compile(rb"[\r\n]|\x1b\[[\d;?]*[A-HJKf]")
_COLOUR = re.compile(rb"\x1b\[[\d;:]*m")
_REST_SECONDS = 1.0  # for what a child of the ended command writes: nobody knows when that ends
_POINT_SECONDS = 1.0  # from one point of the table to the next, at least
_MAX_POINTS = 16


class StepMatches:
    """Finds steps in the chunks of a stream. Pure.

    Args:
        pattern: The text of a line that reports steps. A group is the number of the step, if there is one.
    """

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self._pattern = pattern
        self._line = b""
        self._number: int | None = None
        self._highest = 0

    def feed(self, chunk: bytes) -> Iterator[int]:
        """Yield the number of steps that each line which ends in a chunk reports.

        The first number says where the count begins, and one that is lower than the one before begins it anew: 0 steps.
        One that is higher than all before it goes on from the highest: lower ones between were of something else.
        """
        *lines, self._line = _LINE_END.split(self._line + chunk)
        if len(self._line) > 2 * _MAX_LINE_BYTES:
            self._line = self._line[:_MAX_LINE_BYTES] + self._line[-_MAX_LINE_BYTES:]
        for line in lines:
            match = self._pattern.search(_COLOUR.sub(b"", line))
            if match is None:
                continue
            if not self._pattern.groups:
                yield 1
                continue
            try:
                number = int(float(match[1].replace(b",", b"")))
            except (AttributeError, ValueError, OverflowError):  # no number
                continue
            if self._number is None:
                self._number = self._highest = number
                yield 0
            elif number != self._number:
                before = self._highest if number > self._highest else self._number
                self._number, self._highest = number, max(number, self._highest)
                yield max(number - before, 0)


class Point(NamedTuple):
    """The steps until a moment, without what was between them.

    Attributes:
        steps: How many.
        seconds: The time they took.
        joules: The energy of the GPUs in this time.
    """

    steps: int
    seconds: float
    joules: float


class CountedSteps:
    """Measures the steps of a command, and searches for a setting if that is asked for.

    Args:
        monitor: Measures the GPUs.
        make_optimizer: Makes the search, or nothing.
        quiet: Show no result.
    """

    def __init__(
        self,
        monitor: ZeusMonitor,
        make_optimizer: Callable[[ZeusMonitor], TrainingOptimizer | None],
        quiet: bool = False,
    ) -> None:
        # Now, as the first steps are not to wait for it: they would be read all at once, as if they took no time.
        from zeus_core.ports.world import SoloWorld
        from zeus_core.training.followed_steps import FollowedSteps

        optimizer = make_optimizer(monitor)
        self._begin: Callable[[], FollowedSteps] = lambda: FollowedSteps(
            monitor, SoloWorld(), lambda _: optimizer, quiet
        )
        self._followed: FollowedSteps | None = None
        self._point_at = 0.0  # when the latest point was added
        self.points: list[Point] = []

    def note(self, steps: Sequence[int]) -> None:
        """Note the steps that have ended, as each of the lines reports that were read together.

        Their times are not known one by one, where a program writes many lines at once: together they are one step of
        the search. The first line of all says where the count begins.
        """
        if self._followed is None:
            self._followed, self._point_at = self._begin(), time.monotonic()
            self.points.append(Point(0, 0.0, 0.0))
            steps = steps[1:]
        if any(steps):
            self._followed.end_step(sum(steps))
            if time.monotonic() - self._point_at >= _POINT_SECONDS:
                self._point_at = time.monotonic()
                logged = self._followed.energy.log()
                if logged.get("power_w"):
                    seconds, joules = logged["energy_j"] / logged["power_w"], logged["energy_j"]
                    self._add(self.points[-1].seconds + seconds, self.points[-1].joules + joules)

    def end(self) -> None:
        """End the count, and show the result."""
        if self._followed is None:
            return
        self._followed.end()
        summary = self._followed.energy.summary
        training = summary.account.training
        if summary.not_measured is None and training.energy_joules is not None:
            self._add(training.seconds, training.energy_joules)

    def _add(self, seconds: float, joules: float) -> None:
        assert self._followed is not None
        if self._followed.steps == 0:
            return
        if self.points[-1].steps == self._followed.steps:
            self.points.pop()  # now more is known of them
        self.points.append(Point(self._followed.steps, seconds, joules))
        if len(self.points) > _MAX_POINTS:
            del self.points[1:-1:2]


def steps_table(points: Sequence[Point]) -> str:
    """Format the points as a table with a line for each interval; empty without one."""
    if len(points) < 2:
        return ""
    rows = [("steps", "s/step", "J/step", "power")]
    for before, after in [*pairwise(points), (points[0], points[-1])]:
        steps, seconds, joules = (b - a for a, b in zip(before, after, strict=True))
        watts = f"{joules / seconds:.0f} W" if seconds > 0 else "-"
        seconds_each, joules_each = number_text(seconds / steps), number_text(joules / steps)
        rows.append((f"{before.steps + 1}-{after.steps}", seconds_each, joules_each, watts))
    return table(rows[: -1 if len(points) == 2 else None], "<>>>")


class FollowedOutput:
    """The standard output and error of a command, passed on by a thread.

    A stream of ours that is a terminal is one for the command too.

    Args:
        pattern: See `StepMatches`.
        steps: Counts the steps.

    Attributes:
        streams: The descriptors for the command, by those of its streams.
    """

    def __init__(self, pattern: re.Pattern[bytes], steps: CountedSteps) -> None:
        self._steps = steps
        self.streams: dict[int, int] = {}
        self._matches: dict[int, StepMatches] = {}  # by what is read
        self._targets: dict[int, int] = {}
        self._counted: int | None = None  # the stream that reported steps first: the other may repeat them
        for stream in (1, 2):
            source, self.streams[stream] = _terminal(stream) if os.isatty(stream) else os.pipe()
            self._targets[source] = stream
            self._matches[source] = StepMatches(pattern)
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._pass_on, name="zeus-core output", daemon=True)

    def start(self) -> None:
        """Pass on, once the command has been started."""
        for descriptor in self.streams.values():
            os.close(descriptor)
        self._thread.start()

    def end(self) -> None:
        """Pass on what the command, which has ended, has written."""
        self._has_ended.set()
        self._thread.join()

    def _pass_on(self) -> None:
        silent_since = time.monotonic()
        while self._targets:
            ready, _, _ = select.select(list(self._targets), [], [], _REST_SECONDS / 10)
            for source in ready:
                self._pass_on_from(source)
            if ready:
                silent_since = time.monotonic()
            elif self._has_ended.is_set() and time.monotonic() - silent_since > _REST_SECONDS:
                break
        with contextlib.suppress(Exception):
            self._steps.end()

    def _pass_on_from(self, source: int) -> None:
        target = self._targets[source]
        try:
            chunk = os.read(source, _CHUNK_BYTES)
        except OSError as error:  # what the end of a terminal is
            if error.errno != errno.EIO:
                raise
            chunk = b""
        if not chunk:
            del self._targets[source]
            os.close(source)
            self._count(source, b"\n")
            return
        _copy_size(target, source)
        try:
            _write(target, chunk)
        except OSError:  # nobody reads: the command is to notice, as without us
            del self._targets[source]
            os.close(source)
        self._count(source, chunk)

    def _count(self, source: int, chunk: bytes) -> None:
        with contextlib.suppress(Exception):  # the command's output is what counts
            if self._counted in (None, source) and (steps := list(self._matches[source].feed(chunk))):
                self._counted = source
                self._steps.note(steps)


def _write(target: int, chunk: bytes) -> None:
    while chunk:
        try:
            chunk = chunk[os.write(target, chunk) :]
        except BlockingIOError:
            select.select([], [target], [])


def _terminal(stream: int) -> tuple[int, int]:
    """Return both ends of a terminal that changes nothing, as the one of a stream changes it."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    _copy_size(stream, theirs)
    return ours, theirs


def _copy_size(source: int, target: int) -> None:
    with contextlib.suppress(OSError):  # no terminal
        size: Any = fcntl.ioctl(source, termios.TIOCGWINSZ, b"\0" * 8)
        fcntl.ioctl(target, termios.TIOCSWINSZ, size)
