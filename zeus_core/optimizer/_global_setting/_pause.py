"""A pause of training between two steps: all ranks wait, or the process ends."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from zeus_core._files import write_atomically
from zeus_core.measurement import DeviceEnergy
from zeus_core.monitor import ZeusMonitor
from zeus_core.ports._exchange import Exchange

if TYPE_CHECKING:
    from zeus_core.optimizer.carbon_aware import CarbonAware

__all__ = ["TRY_LATER", "Pause", "Pauser"]

TRY_LATER = 75  # EX_TEMPFAIL of sysexits.h: what schedulers and mail systems take for "try again later"

_MINUTE_SECONDS = 60.0  # what a journal may lack of a pause in which the process is killed
_TINY_SECONDS = 1e-6  # what the rounding of times leaves
_WINDOW = "__zeus_core_pause"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pause:
    """A pause of training, before its next step.

    Attributes:
        seconds: How long to wait, until the next decision.
        until_seconds: When training is expected to go on, in seconds since 1970; None for never, as a budget is spent.
        ends_process: Whether the process ends meanwhile.
    """

    seconds: float
    until_seconds: float | None
    ends_process: bool


class Pauser:
    """Has this rank pause together with all others, which wait for the same number of seconds by their own clocks.

    Args:
        aware: It says what to do before a pause.
        monitor: Measures it.
        exchange: The exchanges with the other ranks.
        while_paused: Called each minute of a pause.
    """

    def __init__(
        self, aware: CarbonAware, monitor: ZeusMonitor, exchange: Exchange, while_paused: Callable[[], object]
    ) -> None:
        self._aware = aware
        self._monitor = monitor
        self._exchange = exchange
        self._while_paused = while_paused

    def pause(self, pause: Pause) -> DeviceEnergy:
        """Wait, or end the process; return what all GPUs took meanwhile. All ranks call this before the same step.

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
            self._wait(pause.seconds)
        own = {
            self._monitor.gpus[index].uuid: [joules, window.measurement.gpu_uncertainty_joules[index]]
            for index, joules in window.measurement.gpu_energy.items()
        }
        told = self._exchange.gather(lambda: own)
        energies = {uuid: energy for of_rank in told for uuid, energy in of_rank.items()}  # ranks may share a GPU
        if any(joules is None for joules, _ in energies.values()):
            return DeviceEnergy.lost("the energy of a GPU was lost in the pause")
        return DeviceEnergy(
            sum(joules or 0.0 for joules, _ in energies.values()), sum(error or 0.0 for _, error in energies.values())
        )

    def _wait(self, seconds: float) -> None:
        time_source = self._monitor.time_source
        until = time_source.now() + seconds
        while (left := until - time_source.now()) > _TINY_SECONDS:
            time_source.wait(threading.Event(), min(left, _MINUTE_SECONDS))
            self._while_paused()

    def _write_resume_file(self, pause: Pause) -> None:
        until = pause.until_seconds
        begin = None if until is None else datetime.fromtimestamp(until, timezone.utc).isoformat(timespec="seconds")
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
