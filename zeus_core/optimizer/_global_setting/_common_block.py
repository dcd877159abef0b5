"""The block of steps under way, which all ranks measure together."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from zeus_core._codec import decode, encode
from zeus_core.errors import DeviceHeldError
from zeus_core.optimizer._global_setting._limiter import Limiter, ReplacedError
from zeus_core.optimizer._global_setting._phases import Phase, Window
from zeus_core.optimizer._global_setting._pieces import Piece, left_out_pieces
from zeus_core.optimizer._global_setting._recorder import TrialRecorder
from zeus_core.optimizer._global_setting._run_steps import RunSteps
from zeus_core.optimizer._global_setting._trial_parts import TrialPart, trial_from_parts
from zeus_core.ports._exchange import Exchange
from zeus_core.search import Trial

__all__ = ["CommonBlock", "FinishedBlock"]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FinishedBlock:
    """A block that all ranks have measured.

    Attributes:
        trial: The measurement; None if it cannot be used.
        run_seconds: The time of the run so far, without that of outliers.
        is_spoiled: Whether a rank's part holds work that is not training.
    """

    trial: Trial | None
    run_seconds: float
    is_spoiled: bool


class CommonBlock:
    """Measures one block after another, each on all ranks.

    Args:
        limiter: Applies the settings on this rank.
        exchange: The exchanges with the other ranks.
        recorder: Measures this rank's part.
        run: Counts the steps of the training.
    """

    def __init__(self, limiter: Limiter, exchange: Exchange, recorder: TrialRecorder, run: RunSteps) -> None:
        self._limiter = limiter
        self._exchange = exchange
        self._recorder = recorder
        self._run = run
        self.steps = 0
        """The steps since it began."""
        self._began_seconds = 0.0

    def begin(self, piece_steps: int) -> None:
        """Begin a block, in pieces of so many steps."""
        self.steps, self._began_seconds = 0, self._recorder.run_seconds
        self._exchange.attempt(lambda: self._recorder.begin_trial(piece_steps))

    def follow(self, window: Window) -> None:
        """Follow the state of the window."""
        match window:
            case Window.OPEN:
                self._exchange.attempt(self._recorder.open_segment)
            case Window.SUSPENDED:
                self._exchange.attempt(self._recorder.close_segment)
            case Window.SPOILED:
                self._exchange.attempt(self._recorder.drop_segment)

    def seconds(self, phase: Enum) -> float:
        """Return how long it has lasted, on the slowest rank. All ranks call this at the end of the same steps."""
        own_seconds = self._recorder.run_seconds - self._began_seconds
        return max(self._exchange.gather(lambda: own_seconds, phase))

    def finish(self, setting: int, is_settling: bool) -> FinishedBlock:
        """End the block. All ranks call this.

        Args:
            setting: The setting it was measured at.
            is_settling: Whether the GPUs may have settled in its first pieces.

        Raises:
            ReplacedError: Somebody else has set the setting of a GPU.
        """
        exchange, run = self._exchange, self._run
        pieces = decode(
            list[dict[int, Piece]], exchange.gather(lambda: encode(self._recorder.pieces()), Phase.CONCLUDE)
        )
        left_out = left_out_pieces(pieces, is_settling)
        told = exchange.gather(lambda: self._own_part(left_out), Phase.CONCLUDE)
        parts = decode(list[TrialPart], [part for part, _ in told])
        held = [because for _, because in told]
        if any(held):
            raise ReplacedError(exchange.complaint(held))
        run.outlier_steps += max(sum(piece.outliers for piece in of_rank.values()) for of_rank in pieces)
        run.excess_seconds += max(sum(piece.excess_seconds for piece in of_rank.values()) for of_rank in pieces)
        trial = trial_from_parts(setting, parts)
        if trial is not None:
            unit = self._limiter.kind.unit
            _logger.info(
                "%d %s: %.4g s, %.4g J per step", trial.setting, unit, trial.seconds_per_step, trial.joules_per_step
            )
        # An outlier would have taken as long at the original setting, and is not what a bound is about.
        run_seconds = max(part.run_seconds for part in parts) - run.excess_seconds
        return FinishedBlock(trial, run_seconds, any(part.is_spoiled for part in parts))

    def _own_part(self, left_out: Sequence[int]) -> tuple[Any, str | None]:
        """Return this rank's part in the block, in JSON types, and the words for the setting of somebody else."""
        part = self._recorder.finish_trial(left_out)
        try:
            is_undisturbed = self._limiter.is_undisturbed()
        except DeviceHeldError as error:
            return encode(part), str(error)
        if not is_undisturbed:
            _logger.warning(
                "the %s in force has changed during a trial, which is repeated",
                self._limiter.kind.words,
            )
            part = replace(part, is_spoiled=True)
        return encode(part), None
