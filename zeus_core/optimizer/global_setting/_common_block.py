"""A block of steps on all ranks: each measures its part, and all conclude the same from them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from zeus_core.errors import DeviceHeldError
from zeus_core.optimizer.global_setting.measuring import TrialRecorder
from zeus_core.optimizer.global_setting.phases import Phase, WindowState
from zeus_core.optimizer.global_setting.trials import Piece, TrialPart, left_out_pieces, trial_from_parts
from zeus_core.optimizer.limiter import Limiter, ReplacedError
from zeus_core.ports.exchange import Exchange
from zeus_core.search import Trial
from zeus_core.units import duration_text, energy_text

_logger = logging.getLogger(__name__)


@dataclass
class RunSteps:
    """The steps of a training so far.

    Attributes:
        steps: How many.
        seconds: The time of those until the end of the latest block, without pauses of training and `excess_seconds`.
        outlier_steps: Those that took far too long, and are in no trial.
        excess_seconds: How much longer these took than others.
    """

    steps: int = 0
    seconds: float = 0.0
    outlier_steps: int = 0
    excess_seconds: float = 0.0


class _OwnPart(NamedTuple):
    """The part of a rank in a block.

    Attributes:
        part: The measured part.
        held: The words for the setting that somebody else has set; None for none.
        is_idle: Whether none of its GPUs computed anything in the latest second, as far as all of them say that.
    """

    part: TrialPart
    held: str | None = None
    is_idle: bool = False


class _Unusual(NamedTuple):
    """The pieces that are left out of a block, and the most outliers of a rank in it, and their excess."""

    pieces: tuple[int, ...]
    outlier_steps: int
    excess_seconds: float


class _Ended(NamedTuple):
    """A block on all ranks.

    Attributes:
        trial: Their measurement; None if it cannot be used.
        is_spoiled: Whether the part of a rank holds work that is not training.
        run_seconds: The longest time of all steps of the run on a rank.
        held: The words for settings that somebody else has set, by rank; empty if nobody has.
        is_idle: Whether no GPU of the job computed anything at its end.
    """

    trial: Trial | None
    is_spoiled: bool
    run_seconds: float
    held: tuple[str | None, ...] = ()
    is_idle: bool = False


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
        self.steps: int = 0
        """The steps since it began."""
        self.is_spoiled: bool = False
        """Whether a rank's part in the latest one holds work that is not training."""
        self.is_idle: bool = False
        """Whether no GPU of the job computed anything at the end of the latest one."""
        self._setting = 0
        self._is_settling = False
        self._began_seconds = 0.0

    def begin(self, setting: int, piece_steps: int, is_settling: bool) -> None:
        """Begin a block.

        Args:
            setting: The setting in force.
            piece_steps: The steps of its pieces.
            is_settling: Whether the GPUs may settle in its first pieces.
        """
        self._setting, self._is_settling = setting, is_settling
        self.steps, self._began_seconds = 0, self._recorder.run_seconds
        self._exchange.attempt(lambda: self._recorder.begin_trial(piece_steps))

    def follow(self, window: WindowState) -> None:
        """Follow the state of the window."""
        match window:
            case WindowState.OPEN:
                self._exchange.attempt(self._recorder.open_segment)
            case WindowState.SUSPENDED:
                self._exchange.attempt(self._recorder.close_segment)
            case WindowState.SPOILED:
                self._exchange.attempt(self._recorder.drop_segment)

    def seconds(self, phase: Enum) -> float:
        """Return how long it has lasted, on the slowest rank. All ranks call this at the end of the same steps."""
        own_seconds = self._recorder.run_seconds - self._began_seconds
        return self._exchange.longest(lambda: own_seconds, phase)

    def finish(self) -> Trial | None:
        """End the block, and return what all ranks have measured; None if it cannot be used. All ranks call this.

        Raises:
            ReplacedError: Somebody else has set the setting of a GPU.
        """
        exchange, run = self._exchange, self._run
        unusual = exchange.conclude_of(dict[int, Piece], self._recorder.pieces, _Unusual, self._unusual, Phase.CONCLUDE)
        ended = exchange.conclude_of(
            _OwnPart, lambda: self._own_part(unusual.pieces), _Ended, self._ended, Phase.CONCLUDE
        )
        if ended.held:
            raise ReplacedError(exchange.complaint(ended.held))
        run.outlier_steps += unusual.outlier_steps
        run.excess_seconds += unusual.excess_seconds
        self.is_spoiled, self.is_idle, trial = ended.is_spoiled, ended.is_idle, ended.trial
        if trial is not None:
            text = self._limiter.kind.text(trial.setting)
            _logger.info(
                "%s: %s, %s per step", text, duration_text(trial.seconds_per_step), energy_text(trial.joules_per_step)
            )
        # An outlier would have taken as long at the original setting, and is not what a bound is about.
        run.seconds = ended.run_seconds - run.excess_seconds
        return trial

    def _unusual(self, ranks: Sequence[dict[int, Piece]]) -> _Unusual:
        """Conclude what is unusual in a block from the pieces of all ranks."""
        return _Unusual(
            tuple(left_out_pieces(ranks, self._is_settling)),
            max(sum(piece.outliers for piece in pieces.values()) for pieces in ranks),
            max(sum(piece.excess_seconds for piece in pieces.values()) for pieces in ranks),
        )

    def _ended(self, ranks: Sequence[_OwnPart]) -> _Ended:
        """Conclude what all ranks have measured in a block."""
        parts = [own.part for own in ranks]
        return _Ended(
            trial_from_parts(self._setting, parts),
            any(part.is_spoiled for part in parts),
            max(part.run_seconds for part in parts),
            tuple(own.held for own in ranks) if any(own.held for own in ranks) else (),
            all(own.is_idle for own in ranks),
        )

    def _own_part(self, left_out: Sequence[int]) -> _OwnPart:
        part = self._recorder.finish_trial(left_out)
        try:
            is_undisturbed = self._limiter.is_undisturbed()
        except DeviceHeldError as error:
            return _OwnPart(part, str(error))
        if not is_undisturbed:
            _logger.warning(
                "the %s in force has changed during a trial, which is repeated",
                self._limiter.kind.words,
            )
            part = replace(part, is_spoiled=True)
        return _OwnPart(part, is_idle=self._limiter.is_idle)
