"""The port of policies for the batch size of a recurring job: what they get, and what they answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

from zeus_core.errors import UsageError
from zeus_core.validate import (
    checked_number,
    checked_one_of,
    checked_whole_number,
    shown,
    wrong_argument,
)

RunOutcome = Literal["reached", "stopped", "infeasible", "failed", "running"]


@dataclass(frozen=True)
class BatchRun:
    """One training of a recurring job at one batch size.

    The outcome says what is known of its batch size by the run:

    | outcome | the training | known is |
    |---|---|---|
    | `reached` | reached its target | what a training costs, and how many epochs it takes |
    | `stopped` | ended short of the target: too dear, or after `max_epochs` | a lower bound of both |
    | `infeasible` | cannot run at this batch size, such as for lack of memory | that it must not be proposed again |
    | `failed` | was killed, or crashed for another reason | that this can happen, and what it cost so far |
    | `running` | has begun, and not ended | that another run need not explore the same |

    Attributes:
        batch_size: The global batch size.
        outcome: See above.
        epochs: Epochs trained; of a run that reached its target, until then.
        seconds: Their duration.
        energy_joules: Their energy.
        cost: Their cost in the unit of the job's objective, without the cost of a search of settings within the run.
        started_at: When it began, in seconds since 1970.
        gpu_model: The GPU model it ran on; None if that is not known. Costs are compared among runs on the model of the
            problem only; epochs are compared among all.

    Raises:
        UsageError: An attribute cannot be, such as a cost that is not finite.
    """

    batch_size: int
    outcome: RunOutcome
    epochs: float = 0.0
    seconds: float = 0.0
    energy_joules: float = 0.0
    cost: float = 0.0
    started_at: float = 0.0
    gpu_model: str | None = None

    def __post_init__(self) -> None:
        """Check the attributes."""
        object.__setattr__(self, "batch_size", checked_whole_number("BatchRun.batch_size", self.batch_size, 1))
        checked_one_of("BatchRun.outcome", self.outcome, get_args(RunOutcome))
        for name in ("epochs", "seconds", "energy_joules", "cost", "started_at"):
            value = checked_number(f"BatchRun.{name}", getattr(self, name), 0.0, math.inf, "a number, at least 0")
            object.__setattr__(self, name, value)
        if self.outcome == "reached" and not (self.cost > 0 and self.epochs > 0):
            raise UsageError(
                f"a run at batch size {self.batch_size} that reached its target has a cost of {self.cost:g} and "
                f"{self.epochs:g} epochs; both must be above 0"
            )


@dataclass(frozen=True)
class BatchProblem:
    """The facts that are the same for all runs of a job.

    Attributes:
        batch_sizes: The global batch sizes to choose from; each is kept once, the lowest first.
        default: The batch size of the user, one of them.
        max_epochs: Epochs after which a training ends short of its target.
        half_life_runs: After so many runs, an observation counts half; None if the work does not change.
        known_epochs: Mean epochs to the target by batch size, where they are known from elsewhere, such as another GPU
            model: `math.inf` where the target was never reached.
        epoch_costs: Measured cost of an epoch by batch size, where it is known.
        gpu_model: The GPU model that the next run is for; None if that is not known.

    Raises:
        UsageError: An attribute cannot be, such as a default that is none of the batch sizes.
    """

    batch_sizes: tuple[int, ...]
    default: int
    max_epochs: int
    half_life_runs: float | None = None
    known_epochs: Mapping[int, float] = field(default_factory=dict)
    epoch_costs: Mapping[int, float] = field(default_factory=dict)
    gpu_model: str | None = None

    def __post_init__(self) -> None:
        """Check the attributes."""
        if not len(self.batch_sizes):
            raise wrong_argument("batch_sizes", self.batch_sizes, "batch sizes, such as [64, 128, 256]")
        sizes = {checked_whole_number(f"batch_sizes[{place}]", size, 1) for place, size in enumerate(self.batch_sizes)}
        object.__setattr__(self, "batch_sizes", tuple(sorted(sizes)))
        object.__setattr__(self, "default", checked_whole_number("default", self.default, 1))
        if self.default not in self.batch_sizes:
            raise UsageError(
                f"default is {self.default}; it must be one of batch_sizes: {', '.join(map(str, self.batch_sizes))}"
            )
        object.__setattr__(self, "max_epochs", checked_whole_number("max_epochs", self.max_epochs, 1))
        if self.half_life_runs is not None:
            wanted = "a number of runs above 0, such as 20, or None"
            half_life = checked_number("half_life_runs", self.half_life_runs, 0.0, math.inf, wanted, is_open=True)
            object.__setattr__(self, "half_life_runs", half_life)
        _check_by_size("known_epochs", self.known_epochs, is_endless_allowed=True)
        _check_by_size("epoch_costs", self.epoch_costs)


@dataclass(frozen=True)
class BatchProposal:
    """The answer of a policy.

    Attributes:
        batch_size: The batch size of the next run.
        max_cost: The cost at which the run cannot pay off any more, and is to be stopped; None if it may cost anything.
            It is in the unit of `BatchRun.cost`, and counts the same.
        reason: Why, as the end of a sentence: "the default is tried first".

    Raises:
        UsageError: An attribute cannot be.
    """

    batch_size: int
    max_cost: float | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        """Check the attributes."""
        object.__setattr__(self, "batch_size", checked_whole_number("BatchProposal.batch_size", self.batch_size, 1))
        if self.max_cost is not None:
            wanted = "a cost above 0, or None"
            max_cost = checked_number("BatchProposal.max_cost", self.max_cost, 0.0, math.inf, wanted, is_open=True)
            object.__setattr__(self, "max_cost", max_cost)


class BatchSizePolicy(Protocol):
    """Decides the batch size of the next run. A pure function: the history and the seed are all it knows.

    Asked again with the same arguments, it answers the same. So nothing is lost in a restart, processes that share a
    history need not talk, and a replay decides as the job did.
    """

    def propose(self, problem: BatchProblem, runs: Sequence[BatchRun], seed: int) -> BatchProposal:
        """Return the batch size of the next run.

        Args:
            problem: The facts that are the same for all runs.
            runs: All runs so far, in the order in which they began. Those at other batch sizes than the problem's are
                passed over.
            seed: For policies that draw at random; a job keeps it.

        Raises:
            UsageError: All batch sizes are infeasible.
        """
        ...


def feasible_sizes(problem: BatchProblem, runs: Sequence[BatchRun]) -> list[int]:
    """Return the batch sizes that may be proposed, the lowest first.

    Raises:
        UsageError: There are none.
    """
    infeasible = {
        run.batch_size for run in runs if run.outcome == "infeasible" and run.gpu_model in (None, problem.gpu_model)
    }
    feasible = [size for size in problem.batch_sizes if size not in infeasible]
    if not feasible:
        raise UsageError(
            f"no batch size is left: a training can run at none of {', '.join(map(str, problem.batch_sizes))}; declare "
            "the job with smaller ones"
        )
    return feasible


def _check_by_size(name: str, values: Mapping[int, float], *, is_endless_allowed: bool = False) -> None:
    for size, value in values.items():
        checked_whole_number(f"a batch size of {name}", size, 1)
        if not (is_endless_allowed and isinstance(value, float) and value == math.inf):
            wanted = "a number above 0"
            checked_number(f"{name}[{shown(size)}]", value, 0.0, math.inf, wanted, is_open=True)
