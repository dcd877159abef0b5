"""Events of a training loop, independent of any framework, and those who receive them.

Adapters translate the hooks of their framework into these events, which are values, and send them to an `Observer`: an
optimizer, which chooses settings, or `TrainingEnergy`, which accounts for the energy and sends them on. The order is

    TrainBegin, { EpochBegin, { StepBegin, StepEnd, [Pause, [Resume]] }*, EpochEnd }*, TrainEnd

where a step is one optimizer step. Loops that report less (no TrainBegin, no StepEnd) are understood too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, Self

from zeus_core.errors import UsageError
from zeus_core.units import rows_html
from zeus_core.validate import shown, wrong_argument

if TYPE_CHECKING:
    from zeus_core.ports import World

__all__ = ["Activity"]


class Activity(StrEnum):
    """Use of time and energy in a training job: a kind below, or a name of a user's own, as `Activity("rollout")`.

    It is its name, as text, which is part of the names of metrics. To list the kinds, iterate over the class.

    Args:
        name: Letters, digits and underscores, at most 32 of them, a letter first.

    Raises:
        UsageError: No activity can have this name; the message names it.
    """

    STEPS = "steps"
    """Training steps, with the loading of their data and the logging in between."""
    GENERATION = "generation"
    """Text generated for training, as in reinforcement learning."""
    WAITING = "waiting"
    """Waiting for text that a server generates for training, on other devices."""
    REFERENCE = "reference"
    """Passes of a reference model, as in preference optimization."""
    REWARD = "reward"
    """Passes of reward models, as in reinforcement learning."""
    EVALUATION = "evaluation"
    PREDICTION = "prediction"
    CHECKPOINT = "checkpoint"
    OTHER = "other"
    """Activities of a user's own beyond the first `MOST_OWN` of a run."""
    BETWEEN_STEPS = "between_steps"
    """Unusually long times between two steps that nothing announced: an evaluation maybe, or a stall of the data."""
    IDLE = "idle"
    """Everything else between the beginning and the end of training."""

    @classmethod
    def _missing_(cls, name: object) -> Activity:
        """Return an activity of a user's own: no member of the class, and equal to others of its name."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            wanted = 'the name of a kind of work, such as "rollout": letters, digits and underscores, at most 32'
            raise wrong_argument("activity", name, wanted)
        if name in _OF_METRICS or name in _UNITS or name.startswith("per_"):
            raise UsageError(f"activity is {shown(name)}, which is part of the name of a metric; take another")
        own = str.__new__(cls, name)
        own._name_ = own._value_ = name
        return own

    def __reduce_ex__(self, _: object) -> tuple[type[Activity], tuple[str]]:
        """Copy by name: Python 3.11 would look for an attribute of the class."""
        return Activity, (self.value,)

    @property
    def words(self) -> str:
        """The activity in words, for people."""
        return self.replace("_", " ")

    @property
    def is_own(self) -> bool:
        """Whether it is a name of a user's own."""
        return self not in _KINDS


_KINDS = frozenset(Activity)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")
_OF_METRICS = {"host", "kwh", "redone", "uncertainty"}
_UNITS = {"token", "generated_token", "sample", "step"}  # `energy_per_step_j`

MOST_OWN = 32
"""Activities of a user's own in a run; those beyond are `Activity.OTHER`."""


def own_activities(activities: Iterable[Activity]) -> tuple[Activity, ...]:
    """Return those of a user's own that have an account of their own: the first `MOST_OWN`."""
    return tuple(dict.fromkeys(activity for activity in activities if activity.is_own))[:MOST_OWN]


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a training loop: the base of their classes. Those without attributes are equal if of one class."""


@dataclass(frozen=True, slots=True)
class TrainBegin(Event):
    """Training begins. Steps of a training that has not ended are done again.

    Attributes:
        max_steps: The steps of the whole training, if the loop knows.
        step: Those of them that are already done, in a resumed training.
    """

    max_steps: int | None = None
    step: int = 0

    @property
    def steps_left(self) -> int | None:
        """The steps to come, at least one; None if the loop does not know."""
        return None if self.max_steps is None else max(self.max_steps - self.step, 1)


@dataclass(frozen=True, slots=True)
class EpochBegin(Event):
    """An epoch begins, with the loading of its first data."""


@dataclass(frozen=True, slots=True)
class StepBegin(Event):
    """A training step begins. A step whose end was not reported ends here.

    Attributes:
        gap_seconds: The time since the latest step that belongs to no step, as it was unusually long and nothing
            announced it; 0 if all of it belongs to the steps, None if nobody has judged it. It is not compared.
    """

    gap_seconds: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class StepEnd(Event):
    """The training step has ended."""


@dataclass(frozen=True, slots=True)
class Pause(Event):
    """Work other than training (evaluation, saving) is about to start, until `Resume` or the next step.

    Attributes:
        activity: The work.
        on_all_ranks: Whether every rank reports it.
    """

    activity: Activity = Activity.IDLE
    on_all_ranks: bool = False


@dataclass(frozen=True, slots=True)
class Resume(Event):
    """The work that the latest `Pause` announced has ended."""


@dataclass(frozen=True, slots=True)
class Interference(Event):
    """Work other than training has started without a `Pause` since the last step ended."""


@dataclass(frozen=True, slots=True)
class PassBegin(Event):
    """A pass with an account of its own begins within a training step.

    Attributes:
        activity: The pass.
    """

    activity: Activity


@dataclass(frozen=True, slots=True)
class PassEnd(Event):
    """The pass has ended."""


@dataclass(frozen=True, slots=True)
class EpochEnd(Event):
    """The epoch has ended. No training follows until the next step begins."""


@dataclass(frozen=True, slots=True)
class TrainEnd(Event):
    """Training has ended, normally or by an error."""


@dataclass(frozen=True, slots=True)
class Forget(Event):
    """From now on a step is another amount of work: what was learned from steps no longer holds."""


EPOCH_BEGIN, EPOCH_END, STEP_BEGIN, STEP_END = EpochBegin(), EpochEnd(), StepBegin(), StepEnd()
RESUME, INTERFERENCE, PASS_END, TRAIN_END, FORGET = Resume(), Interference(), PassEnd(), TrainEnd(), Forget()


class Observer(Protocol):
    """Receives the events of a training loop."""

    def receive(self, event: Event) -> None:
        """Receive an event: must not raise, nor block longer than a timeout of its own; ignores events of others."""
        ...


class TrainingHooks:
    """The hooks of a training loop, each of which makes one event, and the questions that a loop asks.

    By itself it ignores the events, and knows nothing.
    """

    def receive(self, event: Event) -> None:
        """Receive an event; see `Observer`."""

    def on_train_begin(self, *, max_steps: int | None = None) -> None:
        """Report that training begins. Loops that do not report it begin with their first epoch or step.

        Args:
            max_steps: The steps it will take, if the loop knows.
        """
        self.receive(TrainBegin(max_steps))

    def on_epoch_begin(self) -> None:
        """Report that an epoch begins, with the loading of its first data."""
        self.receive(EPOCH_BEGIN)

    def on_step_begin(self) -> None:
        """Report that a training step begins. A step whose end was not reported ends here."""
        self.receive(STEP_BEGIN)

    def on_step_end(self) -> None:
        """Report that the training step has ended."""
        self.receive(STEP_END)

    def on_pause(self, activity: Activity = Activity.IDLE, on_all_ranks: bool = False) -> None:
        """Report that work other than training is about to start, until `on_resume` or the next step.

        Args:
            activity: The work.
            on_all_ranks: Whether every rank reports it. In the next step, the faster ranks wait for the slower ones.
        """
        self.receive(Pause(activity, on_all_ranks))

    def on_resume(self) -> None:
        """Report the end of the work that the latest `on_pause` announced."""
        self.receive(RESUME)

    def on_interference(self) -> None:
        """Report that work other than training has already happened since the last step ended."""
        self.receive(INTERFERENCE)

    def on_epoch_end(self) -> None:
        """Report that the epoch has ended. No training follows until the next step begins."""
        self.receive(EPOCH_END)

    def on_train_end(self) -> None:
        """Report that training has ended, normally or by an error."""
        self.receive(TRAIN_END)

    def forget(self) -> None:
        """Discard all that was learned from steps: from now on a step is another amount of work."""
        self.receive(FORGET)

    @property
    def saving_fraction(self) -> float | None:
        """Energy per step saved by the setting that was chosen, against the original one; None if unknown."""
        return None

    @property
    def is_end_due(self) -> bool:
        """Whether the process ends before the next step, to go on later: now a checkpoint is to be saved."""
        return False

    def result(self) -> dict[str, str]:
        """Return the result of the latest training for people, as labelled lines; empty if there is none."""
        return {}

    def _repr_html_(self) -> str | None:
        return rows_html(self.result())

    def use_world(self, world: World) -> None:
        """Set the ranks of the job. Call before training begins."""

    def use_work(self, work: Mapping[str, int | str]) -> None:
        """Set facts that distinguish the work of a step from other work, such as the size of the model."""

    def on_prepared(self, models: Sequence[Any], optimizers: Sequence[Any], device: Any) -> None:
        """Report what is trained, after training has begun. An optimizer may have hooks on it until training ends.

        Args:
            models: The models, as they are trained.
            optimizers: Their optimizers. The step of the first ends a training step.
            device: The device that trains.
        """


class TrainingOptimizer(TrainingHooks):
    """An optimizer that takes part in a training: measures it, and chooses a setting. By itself it chooses none."""

    monitor: Any
    """The `ZeusMonitor` that measures."""
    quiet: bool
    """Whether it shows no result of its own: `TrainingEnergy` shows it with that of the training."""

    @property
    def saving_uncertainty(self) -> float | None:
        """How far `saving_fraction` can be off; None if that is."""
        return None

    @property
    def power_limit_watts(self) -> int | None:
        """The power limit that it has set; None if it has set none."""
        return None

    @property
    def sm_clock_mhz(self) -> int | None:
        """The SM clock that it has set; None if it has set none."""
        return None

    @property
    def setting_text(self) -> str | None:
        """The setting in force, of any kind, such as "power limit 300 W"; None without one."""
        return None

    @property
    def is_pause_due(self) -> bool:
        """Whether training pauses before its next step: at `pause`, or else while it receives `StepBegin`."""
        return False

    def pause(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Pause, or end the process, if that is due. `meanwhile` is called each minute of a pause."""

    def state_dict(self) -> dict[str, Any]:
        """Return what it has learned for a checkpoint, in JSON types; empty if that is nothing."""
        return {}

    def load_state_dict(self, state: Any) -> None:
        """Continue from a checkpoint in the next training."""

    def close(self) -> None:
        """Restore the original settings, as at the end of training. Training that continues resumes the search."""
        self.on_train_end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
