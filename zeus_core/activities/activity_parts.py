"""The visits of one activity of a training: what they save, and the result that the record of a run keeps. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from zeus_core.optimizer.global_setting.trials import SearchBlocks
from zeus_core.search.comparison import Comparison, percentage
from zeus_core.search.run.run_plan import Prediction


class ActivityPart(NamedTuple):
    """The facts of the visits of an activity, or of the steps.

    Attributes:
        measured: All that was measured.
        original: The original setting.
        setting: The one of the visits to come.
        visits: How many there were.
        seconds: Their time.
    """

    measured: SearchBlocks
    original: int
    setting: int
    visits: int
    seconds: float

    @property
    def joules(self) -> float:
        """Their energy, by the power of those that were measured."""
        trials = [block.trial.measurement for block in self.measured.blocks]
        seconds = math.fsum(one.time for one in trials)
        return math.fsum(one.total_energy or 0.0 for one in trials) / seconds * self.seconds

    @property
    def comparison(self) -> Comparison | None:
        """Visits at the original setting, and at the choices; None if they are one, or one was not measured."""
        return self.measured.comparison(self.setting)

    @property
    def is_changed(self) -> bool:
        """Whether some of them were at another setting than the original one."""
        return any(block.trial.setting != self.original for block in self.measured.blocks)

    @property
    def saving(self) -> tuple[float, float] | None:
        """The energy that the choices save, as a fraction, and how far it can be off; None without a choice."""
        comparison = self.comparison
        return None if comparison is None else (comparison.saving_fraction, comparison.saving_uncertainty)

    @property
    def slowdown(self) -> tuple[float, float] | None:
        """The time of a visit at the choices over that at the original setting, and how far it can be off."""
        comparison = self.comparison
        return None if comparison is None else (comparison.slowdown_factor, comparison.slowdown_uncertainty)

    @property
    def choices(self) -> tuple[int, ...]:
        """The settings that were chosen, and measured there, the highest first."""
        return tuple(sorted(self.measured.at_choices, reverse=True))

    @property
    def original_joules(self) -> float:
        """The energy of as many visits at the original setting."""
        comparison = self.comparison
        return self.joules if comparison is None else comparison.before.joules_per_step * self.visits

    @property
    def text(self) -> str:
        """The saving and the slowdown for people, to continue a sentence."""
        comparison = self.comparison
        if comparison is None:
            return ""
        if not comparison.is_certain:
            return f"; saving {comparison.saving_text}"
        saving = percentage(comparison.saving_fraction, comparison.saving_uncertainty)
        slowdown = percentage(comparison.slowdown_factor - 1, comparison.slowdown_uncertainty, sign="+")
        at = f" at {self.choices[-1]} to {self.choices[0]}" if len(self.choices) > 1 else ""
        return f"; saves {saving} of it, for {slowdown} time{at}"


@dataclass(frozen=True)
class ActivityResult:
    """An activity, or the steps, of a training whose activities have settings of their own.

    Attributes:
        visits: How many visits, or steps, there were.
        seconds: Their time.
        joules: Their energy, by the power of those that were measured.
        setting: The setting of the visits to come.
        choices: All that were chosen, and that it had.
        saving: The energy that they save on average, as a fraction, and how far it can be off; None if unknown.
        slowdown: The time of a visit at them over that at the original setting, and how far it can be off.
        follows_because: The reason that it has the setting of the steps; None if it has its own.
        prediction: The expected effect of the best setting; None if settings were changed.
        waiting: The share of the time in which ranks wait, for the slowest one or for a server, and the part of the
            energy that the lowest clock would save meanwhile, from and to; None if nobody waits.
    """

    visits: int
    seconds: float
    joules: float
    setting: int
    choices: tuple[int, ...] = ()
    saving: tuple[float, float] | None = None
    slowdown: tuple[float, float] | None = None
    follows_because: str | None = None
    prediction: Prediction | None = None
    waiting: tuple[float, float, float] | None = None

    @property
    def waiting_text(self) -> str:
        """The waits for people, to continue a sentence; empty if nobody waits."""
        if self.waiting is None:
            return ""
        share, least, most = self.waiting
        waits = f"ranks wait {share:.0%} of it for the slowest one; " if share < 1 else ""
        return f"; {waits}the lowest clock meanwhile would save {least:.1%} to {most:.1%} of its energy"
