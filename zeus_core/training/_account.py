"""What a training run, or some of it, has taken, by activity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from zeus_core.errors import UsageError
from zeus_core.events import Activity
from zeus_core.training._tally import Tally

__all__ = ["TRAINING", "Account"]

TRAINING = (Activity.STEPS, Activity.GENERATION, Activity.REFERENCE)
"""The activities that make up training steps."""


@dataclass(frozen=True)
class Account:
    """Time, energy and work.

    Attributes:
        total: All time and energy, measured from end to end: surer than the sum of the activities.
        activities: The same, by activity.
        redone: What of it was spent on steps that were done again after an interruption.
        samples: Samples trained on.
        tokens: Tokens trained on; 0 where they are not counted.
    """

    total: Tally = field(default_factory=Tally)
    activities: Mapping[Activity, Tally] = field(default_factory=dict)
    redone: Tally = field(default_factory=Tally)
    samples: int = 0
    tokens: int = 0

    @property
    def training(self) -> Tally:
        """The training steps, with all that belongs to them."""
        return sum((self.activities[it] for it in TRAINING if it in self.activities), Tally())

    def __add__(self, other: Account) -> Account:
        """Both, one after the other."""
        names = {*self.activities, *other.activities}
        return Account(
            self.total + other.total,
            {it: self.activities.get(it, Tally()) + other.activities.get(it, Tally()) for it in names},
            self.redone + other.redone,
            self.samples + other.samples,
            self.tokens + other.tokens,
        )

    @staticmethod
    def of_ranks(accounts: Iterable[Account]) -> Account:
        """The same time on several ranks, each of which accounts for devices and data of its own."""
        ranks = list(accounts)
        names = {name for rank in ranks for name in rank.activities}
        return Account(
            Tally.of_ranks(rank.total for rank in ranks),
            {it: Tally.of_ranks(rank.activities.get(it, Tally()) for rank in ranks) for it in names},
            Tally.of_ranks(rank.redone for rank in ranks),
            sum(rank.samples for rank in ranks),
            sum(rank.tokens for rank in ranks),
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads back."""
        return {
            "total": self.total.to_json(),
            "activities": {activity.value: tally.to_json() for activity, tally in self.activities.items()},
            "redone": self.redone.to_json(),
            "samples": self.samples,
            "tokens": self.tokens,
        }

    @classmethod
    def from_json(cls, fields: Any) -> Account:
        """Read what `to_json` wrote.

        Raises:
            UsageError: It is something else.
        """
        try:
            return cls(
                Tally.from_json(fields["total"]),
                {Activity(name): Tally.from_json(tally) for name, tally in fields["activities"].items()},
                Tally.from_json(fields["redone"]),
                int(fields["samples"]),
                int(fields["tokens"]),
            )
        except UsageError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise UsageError(f"this is not an account of energy: {error!r}") from error
