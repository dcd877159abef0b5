"""The trace of a training run: what is recorded, when clocks are compared, and when the file is written."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from zeus_core.adapters import contained
from zeus_core.events import Event, StepBegin, StepEnd, TrainEnd, TrainingOptimizer
from zeus_core.files import folder_lock
from zeus_core.ports import TimeSource
from zeus_core.ports.background import ThreadBackground
from zeus_core.ports.exchange import Exchange
from zeus_core.tracing.clocks import compare_clocks, meet
from zeus_core.tracing.facts import PhaseEnergy
from zeus_core.tracing.recorder import TraceRecorder
from zeus_core.tracing.trace_file import Trace, trace_path, write_trace
from zeus_core.training.account import Account
from zeus_core.training.activities.tally import Tally
from zeus_core.validate import checked_path

_logger = logging.getLogger(__name__)

_SAVE_SECONDS = 60.0  # between two files of a training that goes on: each takes up to a second in the background

_REASONS = {
    "rest": "the original setting",
    "prepare": "the original setting",
    "wait": "the search has not begun",
    "warm-up": "a trial of the search",
    "measure": "a trial of the search",
    "settle": "the choice of the search",
    "confirm": "the choice of the search",
    "done": "the choice of the search",
    "off": "the optimizer has stepped aside",
}


class RunTrace:
    """The trace of this rank, of one training after another.

    Args:
        place: The folder of the files; True for that of the run.
        time_source: Times what is recorded.
        optimizer: The optimizer whose settings are marked; none if None.

    Raises:
        UsageError: `place` is neither True nor a path.
    """

    def __init__(
        self, place: bool | str | Path, time_source: TimeSource, optimizer: TrainingOptimizer | None = None
    ) -> None:
        self._time_source = time_source
        self._optimizer = optimizer
        self._own_folder = checked_trace(place)
        self._compared: Exchange | None = None  # the ranks, if all are traced and there are several
        self._path: Path | None = None
        self._beside = Path()  # where the file is if another process has written to `_path` meanwhile
        self._known: tuple[int, int] | None = None  # the file at `_path` that this training may replace
        self._lock = threading.Lock()
        self._background = ThreadBackground()
        self._saved_at = 0.0
        self._logs = 0
        self._has_warned = False
        self.recorder: TraceRecorder | None = None
        """The record of the training under way."""

    def begin(self, ranks: Exchange, run_folder: Path | None, step: int, run: str, *, by_all: bool) -> TraceRecorder:
        """Begin the trace of a training, or of a part of it; a collective call if all ranks are traced.

        Args:
            ranks: The ranks.
            run_folder: The folder of the run; None if it has none.
            step: Steps done before. The trace of these, if there is one, is kept beside the new one.
            run: The name of the run.
            by_all: Whether all ranks are traced, so that they can compare their clocks.
        """
        self._compared = ranks if by_all and ranks.size > 1 else None
        folder = self._own_folder or run_folder
        if folder is None:
            _logger.warning("trace=True writes to the folder of the run, and there is none: give trace a folder")
        self._path = None if folder is None else trace_path(folder, ranks.rank)
        if self._path is not None and step > 0 and self._path.is_file():
            self._keep_earlier(self._path, step)
        if self._path is not None:
            self._beside = self._path.with_name(f"trace-{ranks.rank}-{run[:8]}-from-step-{step}.json.gz")
            self._known = _identity(self._path) if self._path.is_file() else None
        self._saved_at, self._logs = time.monotonic(), 0
        self.recorder = TraceRecorder(self._time_source, ranks.rank, ranks.size, run)
        self.recorder.steps = step
        return self.recorder

    def compare_clocks(self) -> None:
        """Compare the clocks of all ranks; a collective call, which does nothing unless all are traced."""
        ranks = self._compared
        if self.recorder is not None and ranks is not None:
            meetings = meet(lambda own: ranks.decide(lambda: own), self.recorder.clock_now)
            self.recorder.clock.append(compare_clocks(meetings, self.recorder.now()))

    def log(self) -> None:
        """Compare the clocks at the first log, the second, the fourth and so on; a collective call."""
        self._logs += 1
        if self._logs & (self._logs - 1) == 0:
            self.compare_clocks()

    def receive(self, event: Event) -> None:
        """Note the end of a step, and mark the setting of the optimizer, if it has changed."""
        if self.recorder is None:
            return
        if isinstance(event, StepEnd):
            self.recorder.end_step()
        optimizer = self._optimizer
        if optimizer is None or not isinstance(event, StepBegin | StepEnd | TrainEnd):
            return
        phase: str = getattr(getattr(optimizer, "phase", None), "value", "")
        self.recorder.set_to(optimizer.setting_text or "original setting", _REASONS.get(phase, ""))

    def keep(self, account: Account) -> None:
        """Write the file in the background, if the latest one is some time ago."""
        recorder, now = self.recorder, time.monotonic()
        if recorder is not None and now - self._saved_at > _SAVE_SECONDS:
            self._saved_at = now
            self._background.soon(lambda: self._write(self._made(recorder, account)))

    def end(self, account: Account) -> None:
        """Write the file at the end of a training."""
        recorder, self.recorder = self.recorder, None
        if recorder is not None:
            recorder.end()
            self._write(self._made(recorder, account))

    def _made(self, recorder: TraceRecorder, account: Account) -> Trace:
        phases = {activity.value: _phase(tally) for activity, tally in account.activities.items()}
        return recorder.to_trace(phases, _phase(account.total))

    @contained
    def _write(self, trace: Trace) -> None:
        if self._path is None:
            return
        try:
            with self._lock:
                write_trace(self._beside, trace)
                is_named = self._take_name(self._path)
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                _logger.warning("the trace %s cannot be written: %s", self._path, error)
            return
        if not is_named and not self._has_warned:
            self._has_warned = True
            _logger.warning("another process trains in this folder too: the trace of this one is %s", self._beside)

    def _take_name(self, path: Path) -> bool:
        """Give the file its usual name, unless another process has written one there since this training began."""
        with folder_lock(path.parent):
            found = _identity(path)
            if found is not None and found != self._known:
                return False
            self._beside.replace(path)
            self._known = _identity(path)
        return True

    def _keep_earlier(self, path: Path, step: int) -> None:
        try:
            path.replace(path.with_name(f"trace-{path.name.split('-')[1].split('.')[0]}-until-step-{step}.json.gz"))
        except OSError as error:
            _logger.warning("the trace %s of the steps before is overwritten: %s", path, error)


def checked_trace(trace: bool | str | Path) -> Path | None:
    """Return the folder of a trace; None if none is given, as by True.

    Raises:
        UsageError: It is neither True, False nor a path.
    """
    return None if isinstance(trace, bool) else Path(checked_path("trace", trace, "output", "folder, or True or False"))


def _identity(path: Path) -> tuple[int, int] | None:
    """Return the identity of a file, which one that replaces it does not have; None if there is none."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _phase(tally: Tally) -> PhaseEnergy:
    return PhaseEnergy(tally.seconds, tally.measured, tally.lost_seconds)
