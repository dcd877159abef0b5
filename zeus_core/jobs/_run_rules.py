"""The rules of a job for its runs: what a run costs, and how the learning rate follows the batch size."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from zeus_core.device import discover_gpus
from zeus_core.errors import UsageError, ZeusError
from zeus_core.jobs._job_records import Target
from zeus_core.search.objectives import Objective, PowerLimitMeasurement, ZeusCost
from zeus_core.training.run_meter import JobGpus, Spent
from zeus_core.validate import checked_number, checked_object


@dataclass(frozen=True)
class RunRules:
    """The rules of a job for each of its runs.

    Attributes:
        target: The metric to reach.
        max_epochs: Epochs after which it ends short of the target.
        objective: The cost of a run; None for the usual one, over the GPUs of the job.
        learning_rate_rule: How the learning rate follows the batch size.
        default: The batch size that base rates are for.
    """

    target: Target
    max_epochs: int
    objective: Objective | None
    learning_rate_rule: LearningRateRule
    default: int


def checked_objective(objective: Objective | None) -> Objective | None:
    """Return an objective; None stands for the usual one, over the GPUs of the job.

    Raises:
        UsageError: It is none, or its cost cannot be that of a run.
    """
    if objective is None:
        return None
    checked_object("objective", objective, "cost", "an Objective object, such as ZeusCost(eta_knob=0.5) or Energy()")
    if objective.prefers_lowest:
        raise UsageError(f"objective is {objective!r}, whose cost is a power limit; it must be such as Energy()")
    if objective.bound_factor is not None:
        raise UsageError(f"objective is {objective!r}, and no run is the original of others; pass such as Energy()")
    return objective


def cost_of(objective: Objective | None, spent: Spent) -> float | None:
    """Return the cost of a run; None if it is not known.

    Energy that is not known makes the cost unknown, except where the objective does without, as `Time` does.
    """
    gpus = spent.gpus
    usual = ZeusCost(world_size=max(gpus.count, 1))
    used = usual if objective is None else objective
    if used.needs_max_power and not gpus.max_power_watts:
        return None
    joules = math.nan if spent.energy_joules is None else spent.energy_joules
    measurement = PowerLimitMeasurement(round(gpus.max_power_watts), joules, spent.seconds)
    cost = float(used.cost(measurement, measurement))
    return cost if math.isfinite(cost) else None


def discovered_gpus() -> JobGpus:
    """Return the GPUs that this process sees; none without a driver."""
    try:
        gpus = discover_gpus()
        highest = max((gpu.read_power_limit_range_watts().highest_watts for gpu in gpus), default=0.0)
    except ZeusError:
        return JobGpus()
    return JobGpus(len(gpus), gpus[0].name if gpus else None, highest)


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
