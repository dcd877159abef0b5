"""Rules by which the learning rate follows the batch size."""

from __future__ import annotations

import math
from collections.abc import Callable

from zeus_core._validate import checked_number
from zeus_core.errors import UsageError

__all__ = ["LearningRateRule", "checked_rule", "rule_name", "scaled_rate"]

LearningRateRule = str | Callable[[float, int, int], float]

# By the factor of the batch size: linear for SGD (Goyal et al. 2017), the square root for Adam (Malladi et al. 2022).
_RULES: dict[str, Callable[[float], float]] = {
    "linear": lambda factor: factor,
    "square root": math.sqrt,
    "none": lambda factor: 1.0,
}


def checked_rule(rule: LearningRateRule) -> LearningRateRule:
    """Return a rule.

    Raises:
        UsageError: It is none.
    """
    if callable(rule) or (isinstance(rule, str) and rule in _RULES):
        return rule
    names = ", ".join(map(repr, _RULES))
    raise UsageError(
        f"learning_rate_rule is {rule!r}; it must be one of {names}, or a function of the base rate, the batch size "
        "and the default, that returns the rate"
    )


def rule_name(rule: LearningRateRule) -> str:
    """Return how a rule is called in the declaration of a job."""
    return rule if isinstance(rule, str) else str(getattr(rule, "__qualname__", type(rule).__qualname__))


def scaled_rate(rule: LearningRateRule, base: float, batch_size: int, default: int) -> float:
    """Return the learning rate at a batch size, from the one at the default.

    Raises:
        UsageError: `base` is no number above 0, or a function of the user's returned none.
    """
    wanted = "a learning rate above 0, such as 5e-5"
    base = checked_number("base", base, 0.0, math.inf, wanted, is_open=True)
    rate = base * _RULES[rule](batch_size / default) if isinstance(rule, str) else rule(base, batch_size, default)
    return checked_number("the result of learning_rate_rule", rate, 0.0, math.inf, wanted, is_open=True)
