"""The result of an activity that has a setting of its own, for the record of a run."""

from __future__ import annotations

from dataclasses import dataclass

from zeus_core.search.run.run_plan import Prediction


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
