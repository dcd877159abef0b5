"""A run that trains only until the cost of an epoch at its batch size is known."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

from zeus_core.adapters import contained
from zeus_core.jobs._job_records import Evaluation, ended
from zeus_core.jobs._run_rules import cost_of
from zeus_core.jobs.recurring_run import BegunRun, RecurringRun, is_out_of_memory
from zeus_core.validate import checked_number

# In the first steps, memory is allocated, and kernels are chosen and compiled: they are not measured.
_FIRST_STEPS = 3
# From one look at the energy to the next, which takes milliseconds, all steps so far become half as many more.
_GROWTH = 0.5
_ROUNDING = 1e-9  # epochs are quotients of steps

_logger = logging.getLogger(__name__)


class EpochProbe(RecurringRun):
    """One training of `RecurringJob.measure_epochs`. It reports no evaluation.

    Args:
        begun: As of any run.
        seconds: It ends after so long a time of measured steps, or after an epoch of them.
    """

    def __init__(self, begun: BegunRun, seconds: float) -> None:
        super().__init__(begun)
        self._seconds = seconds
        self._is_over = False
        self._calls, self._next_look = 0, _FIRST_STEPS
        self._looks: list[Evaluation] = []

    @property
    def should_stop(self) -> bool:
        """Whether enough steps were measured."""
        return self._is_over

    def report(self, **_: object) -> bool:
        """Return whether the training should end."""
        return self._is_over

    @contained(default=lambda: True)
    def progress(self, *, epoch: float, energy_joules: float | None = None, seconds: float | None = None) -> bool:
        """Say how far the training is; see `RecurringRun.progress`. A collective call."""
        wanted = "epochs trained so far, above 0, such as 0.01"
        epoch = checked_number("epoch", epoch, 0.0, math.inf, wanted, is_open=True)
        self._calls += 1
        if self._is_over or self._calls < self._next_look:
            return self._is_over
        self._next_look = self._calls + max(_FIRST_STEPS, int(self._calls * _GROWTH))
        self._look(epoch, energy_joules, seconds)
        return self._is_over

    def end(self, error: BaseException | None) -> None:
        """End the run: keep what it has measured, or that it is out of memory."""
        if error is not None and is_out_of_memory(error):
            self._record = ended(self._record, "infeasible", "out of memory")
        elif error is None and len(self._looks) > 1:
            self._record = ended(self._record, "measured", "the cost of an epoch was measured")
            self._record = replace(self._record, evaluations=(self._looks[0], self._looks[-1]))
        elif error is None and not self._has_complained:
            text = "the run at batch size %d ended after %d calls of progress(), too few to measure an epoch"
            _logger.warning(text, self.batch_size, self._calls)
        if self._reporter is not None and self.outcome != "running":
            self._reporter.finish(self._record)

    def _look(self, epoch: float, energy_joules: float | None, seconds: float | None) -> None:
        """Read what was spent, and decide whether that is enough: the same on every rank."""
        epoch, energy_joules, seconds = self._exchange.decide(lambda: (epoch, energy_joules, seconds))
        spent = self._spent(energy_joules, seconds)
        cost = cost_of(self._rules.objective, spent)
        if cost is None:
            self._complain_of_cost(spent)
            self._is_over = True
            return
        look = Evaluation(epoch, None, spent.seconds, spent.energy_joules, cost)
        self._record = replace(self._record, gpu_model=self._record.gpu_model or spent.gpus.model)
        if self._looks and look.epoch <= self._looks[0].epoch:
            return  # the framework does not know the length of an epoch
        self._looks.append(look)
        first = self._looks[0]
        self._is_over = look.seconds - first.seconds >= self._seconds or look.epoch - first.epoch >= 1 - _ROUNDING
