"""Judging a plan that is late, or may not save energy, by iterations at the original clocks."""

from __future__ import annotations

import logging
from dataclasses import replace

from zeus_core.pipeline.optimizer._baseline import MeasuringBaseline
from zeus_core.pipeline.optimizer._context import RankContext
from zeus_core.pipeline.optimizer._delays import DelayWatch, Verdict
from zeus_core.pipeline.optimizer._planning import no_plan
from zeus_core.pipeline.optimizer.frequency_phases import (
    Conclusion,
    Delayed,
    Doubted,
    GivenUp,
    Phase,
    Profiled,
    Unprofiled,
)
from zeus_core.pipeline.profile.iterations import Iteration

__all__ = ["Judging", "JudgingSaving"]

_logger = logging.getLogger(__name__)


class JudgingSaving(MeasuringBaseline):
    """Measures iterations at the original clocks again, to see whether a plan saves energy.

    Args:
        context: This rank.
        doubted: The plan.
    """

    def __init__(self, context: RankContext, doubted: Doubted) -> None:
        super().__init__(context, doubted.planned.job, doubted.planned.profile, Phase.JUDGING)
        self._doubted = doubted

    def conclude(self, baseline: Iteration) -> Conclusion:
        """Keep the plan, measure the job again if its profile no longer fits, or withdraw the plan."""
        planned, savings = self._doubted.planned, self._doubted.savings
        if not savings.is_doubtful(baseline):
            return replace(planned, baseline=baseline)
        if planned.profile is not None and not self.fits(planned.profile, baseline):
            return Unprofiled(planned.job, baseline)
        return no_plan(
            self._context, baseline, f"the plan is withdrawn, as it does not save: {savings.saving(baseline)}"
        )


class Judging(MeasuringBaseline):
    """Measures iterations at the original clocks after a delay, and decides which plan to follow.

    Args:
        context: This rank.
        delayed: The delay.
        delays: Judges it.
    """

    def __init__(self, context: RankContext, delayed: Delayed, delays: DelayWatch) -> None:
        super().__init__(context, delayed.planned.job, delayed.planned.profile, Phase.JUDGING)
        self._delayed = delayed
        self._delays = delays

    def conclude(self, baseline: Iteration) -> Conclusion:
        """Keep the plan, make another one, or give up."""
        planned, verdict = self._delayed.planned, self._delays.judge(baseline.step_seconds)
        if verdict is Verdict.TRANSIENT:
            if planned.profile is None or self._delayed.is_usual:
                return replace(planned, baseline=baseline)
            return Profiled(planned.profile, baseline)
        if verdict is Verdict.EVERY_PLAN:
            settings = self._context.settings
            _logger.warning(
                "%s met the allowed iteration time of %.4g s; the last took %.4g s. Training continues at the "
                "original clocks; a larger slowdown_factor allows for more",
                "no plan" if settings.plan_path is None else f"the plan {settings.plan_path} has not",
                settings.slowdown_factor * baseline.step_seconds,
                self._delays.delayed_seconds,
            )
            return GivenUp(baseline, "none was fast enough")
        return super().conclude(baseline)
