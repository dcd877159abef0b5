"""The target of a recurring job: the metric that its trainings are to reach."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from zeus_core.errors import UsageError
from zeus_core.validate import checked_flag, checked_number, checked_text

# Words in the names of metrics of which less is better; the names are those of `evaluate` and of the Trainer.
_LOWER_IS_BETTER = {"loss", "perplexity", "ppl", "error", "wer", "cer", "mer", "ter", "mse", "rmse", "mae", "mape"}


@dataclass(frozen=True)
class Target:
    """The value that a metric of evaluations is to reach.

    Attributes:
        metric: The name of the metric, as evaluations report it, such as "eval_accuracy".
        value: Its value at which a training is good enough, and ends.
        is_higher_better: Whether a higher value is better. If None, it is so unless the name holds a word such as
            "loss", "error", "perplexity" or "wer".

    Raises:
        UsageError: An attribute is wrong; the message names it.
    """

    metric: str
    value: float
    is_higher_better: bool | None = None

    def __post_init__(self) -> None:
        """Check the attributes, and choose the better direction by the name."""
        wanted = 'the name of a metric, such as "eval_accuracy"'
        if not checked_text("Target.metric", self.metric, wanted):
            raise UsageError(f"Target.metric is ''; it must be {wanted}")
        value = checked_number("Target.value", self.value, -math.inf, math.inf, "a finite number, such as 0.84")
        object.__setattr__(self, "value", value)
        if self.is_higher_better is None:
            words = set(re.split(r"[^a-z0-9]+", self.metric.lower()))
            object.__setattr__(self, "is_higher_better", words.isdisjoint(_LOWER_IS_BETTER))
        checked_flag("Target.is_higher_better", self.is_higher_better)

    def __str__(self) -> str:
        return f"{self.metric} {'>=' if self.is_higher_better else '<='} {self.value:g}"

    def is_reached(self, value: float) -> bool:
        """Return whether a value of the metric is good enough; one that is not a number is not."""
        return value >= self.value if self.is_higher_better else value <= self.value

    def best(self, first: float, second: float) -> float:
        """Return the better one of two values."""
        return max(first, second) if self.is_higher_better else min(first, second)
