"""Following a signal, on every rank: it directs a training beside its search, and has it pause between steps."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from zeus_core.carbon._credit import Credit, RunSpent
from zeus_core.carbon._following import Following
from zeus_core.carbon._terms import Terms
from zeus_core.codec import decode, encode
from zeus_core.device import Gpu
from zeus_core.device.gpu import uuid_in_job
from zeus_core.errors import DeviceError, UsageError
from zeus_core.files import write_atomically
from zeus_core.measurement import DeviceEnergy
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer.global_setting.director import Decision, DirectedSearch, DuePause
from zeus_core.ports.exchange import Exchange
from zeus_core.process.deadline import CALL_SECONDS
from zeus_core.process.parallel import ParallelCalls

TRY_LATER = 75  # EX_TEMPFAIL of sysexits.h: what schedulers and mail systems take for "try again later"

_MINUTE_SECONDS = 60.0  # what a journal may lack of a pause in which the process is killed
_TINY_SECONDS = 1e-6  # what the rounding of times leaves
_WINDOW = "__zeus_core_pause"
_SPENT = "spent"  # in a checkpoint

_logger = logging.getLogger(__name__)


class Follower:
    """A `Director` that has a training follow a signal, by the decisions of rank 0.

    All ranks pause before the same step, for the same number of seconds by their own clocks.

    Args:
        aware: The signal, the deadline and what else the user has said.
        monitor: Measures the pauses.
        exchange: The exchanges with the other ranks.
        resumed: See `Directive.director`.
    """

    def __init__(self, aware: Terms, monitor: ZeusMonitor, exchange: Exchange, resumed: Mapping[str, Any]) -> None:
        self._aware = aware
        self._monitor = monitor
        self._exchange = exchange
        self._spent_before = _spent_in(resumed)
        self._search: DirectedSearch | None = None
        self._following: Following | None = None  # on rank 0
        self._idle_watts = self._read_idle_watts()  # now, as the GPUs of the job do not train yet

    def direct(self, search: DirectedSearch) -> Decision:
        """Return what to do next; see `Director`.

        Raises:
            Exception: The signal raised it.
        """
        if self._exchange.rank == 0 and search is not self._search:
            time_source = self._monitor.time_source
            self._following = Following(self._aware, search, self._idle_watts, time_source, self._spent_before)
        self._search = search
        return self._exchange.decide_of(Decision, self._decide)

    def pause(self, pause: DuePause, meanwhile: Callable[[], object]) -> None:
        """Wait, or end the process; see `Director`.

        Raises:
            SystemExit: The process is to end, with `TRY_LATER`.
            Exception: The checkpoint failed, or writing `resume_path` did. Training goes on.
        """
        if self._aware.checkpoint is not None:
            self._exchange.make(self._aware.checkpoint)
        if pause.ends_process:
            self._exchange.make(lambda: self._write_resume_file(pause) if self._exchange.rank == 0 else None)
            raise SystemExit(TRY_LATER)
        with self._monitor.window(_WINDOW) as window:
            self._wait(pause.seconds, meanwhile)
        own = {
            uuid_in_job(self._monitor.gpus[index]): [joules, window.measurement.of("gpu")[index].uncertainty_joules]
            for index, joules in window.measurement.gpu_energy.items()
        }
        sent = self._exchange.gather_first(lambda: own) or []
        energies = {uuid: energy for of_rank in sent for uuid, energy in of_rank.items()}  # ranks may share a GPU
        if any(joules is None for joules, _ in energies.values()):
            energy = DeviceEnergy.lost("the energy of a GPU was lost in the pause")
        else:
            joules = sum(joules or 0.0 for joules, _ in energies.values())
            energy = DeviceEnergy(joules, sum(error or 0.0 for _, error in energies.values()))
        if self._following is not None:
            self._following.note_pause(pause.seconds, energy)

    @property
    def spent(self) -> RunSpent | None:
        """The energy and time that the run took so far; None on other ranks than 0, and before the first decision."""
        if self._following is None:
            return None
        self._following.count()
        return self._following.spent

    @property
    def credit(self) -> Credit | None:
        """The gain of following the signal; None on other ranks than 0, and if it is not known."""
        if self._following is None:
            return None
        self._following.count()
        return self._following.credit()

    def rows(self) -> dict[str, str]:
        """Return the gain of following the signal, as labelled lines."""
        credit = self.credit
        return {} if credit is None else credit.rows()

    def state(self) -> dict[str, Any]:
        """Return the energy and time that the run took so far; see `Director`."""
        spent = self.spent
        return {} if spent is None else {_SPENT: encode(spent)}

    def _read_idle_watts(self) -> float | None:
        """Return the present power of all GPUs of the job, on rank 0; None if a GPU does not tell its own."""
        gpus = self._monitor.gpus.values()
        sent = self._exchange.gather_first(lambda: {uuid_in_job(gpu): _power_watts(gpu) for gpu in gpus}) or []
        watts = {uuid: power for of_rank in sent for uuid, power in of_rank.items()}
        return None if None in watts.values() else sum(power for power in watts.values() if power is not None)

    def _decide(self) -> Decision:
        assert self._following is not None, "rank 0 decides"
        return self._following.decide()

    def _wait(self, seconds: float, meanwhile: Callable[[], object]) -> None:
        time_source = self._monitor.time_source
        until = time_source.now() + seconds
        while (left := until - time_source.now()) > _TINY_SECONDS:
            time_source.sleep(min(left, _MINUTE_SECONDS))
            meanwhile()

    def _write_resume_file(self, pause: DuePause) -> None:
        until = pause.until_seconds
        begin = None if until is None else datetime.fromtimestamp(until, UTC).isoformat(timespec="seconds")
        document = {
            "not_before": begin,
            "not_before_seconds": None if until is None else round(until),
            "because": "the budget is spent" if until is None else "electricity is cleaner or cheaper then",
            "signal": self._aware.signal.facts.source,
        }
        write_atomically(self._aware.resume_path, json.dumps(document, indent=2) + "\n")
        _logger.warning(
            "the process ends with exit code %d; training is to be started again %s (%s)",
            TRY_LATER,
            "with a larger budget" if begin is None else f"at {begin}",
            self._aware.resume_path,
        )


def _spent_in(checkpoint: Mapping[str, Any]) -> RunSpent | None:
    """Return what the run of a checkpoint has taken. None if it followed no signal, or, with a warning, if damaged."""
    if checkpoint.get(_SPENT) is None:
        return None
    try:
        return decode(RunSpent, checkpoint[_SPENT], _SPENT)
    except UsageError as error:
        _logger.warning("what the run has emitted before is not known, and counted from here on: %s", error)
        return None


def _power_watts(gpu: Gpu) -> float | None:
    try:
        return ParallelCalls().call_one_within(CALL_SECONDS, 0, gpu.read_power_watts)
    except DeviceError:
        return None
