"""The time, energy and work of a training run, or of some of it, by activity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from zeus_core.events import Activity
from zeus_core.training.activities.tally import Tally
from zeus_core.training.charges.charging import Charge

TRAINING = (Activity.STEPS, Activity.GENERATION, Activity.REFERENCE)
"""The activities that make up training steps."""


@dataclass(frozen=True)
class Account:
    """Time, energy and work.

    Attributes:
        total: All time and energy, measured from end to end: surer than the sum of the activities.
        activities: The same, by activity.
        redone: The part of it that was spent on steps that were done again after an interruption.
        samples: Samples trained on.
        tokens: Tokens trained on; 0 where they are not counted.
        host: Time and energy of CPU packages and their memory, where these are measured and charged.
        charges: Emissions and cost of the energy of all devices, by unit ("g", "EUR"), where that is known.
        interruptions: Parts of the run that ended without a word, as by a kill. The account holds what they had written
            down last.
        unrecorded_joules: The most that these parts can have taken after that, if they would have gone on to write as
            often as before; None if nobody knows.
    """

    total: Tally = field(default_factory=Tally)
    activities: Mapping[Activity, Tally] = field(default_factory=dict)
    redone: Tally = field(default_factory=Tally)
    samples: int = 0
    tokens: int = 0
    host: Tally = field(default_factory=Tally)
    charges: Mapping[str, Charge] = field(default_factory=dict)
    interruptions: int = 0
    unrecorded_joules: float | None = 0.0

    @classmethod
    def from_ranks(cls, accounts: Iterable[Account]) -> Account:
        """Combine the accounts of the same time on several ranks, each of which has devices and data of its own."""
        ranks = list(accounts)
        return cls(
            Tally.from_ranks(rank.total for rank in ranks),
            {
                activity: Tally.from_ranks(rank.activities.get(activity, Tally()) for rank in ranks)
                for activity in _activities(*ranks)
            },
            Tally.from_ranks(rank.redone for rank in ranks),
            sum(rank.samples for rank in ranks),
            sum(rank.tokens for rank in ranks),
            Tally.from_ranks(rank.host for rank in ranks),
            _charges(*ranks),
            max(rank.interruptions for rank in ranks),
            _known_sum(rank.unrecorded_joules for rank in ranks),
        )

    @property
    def training(self) -> Tally:
        """The training steps, with all that belongs to them."""
        return sum((self.activities[activity] for activity in TRAINING if activity in self.activities), Tally())

    def __add__(self, other: Account) -> Account:
        """Add what came before or after."""
        return Account(
            self.total + other.total,
            {
                activity: self.activities.get(activity, Tally()) + other.activities.get(activity, Tally())
                for activity in _activities(self, other)
            },
            self.redone + other.redone,
            self.samples + other.samples,
            self.tokens + other.tokens,
            self.host + other.host,
            _charges(self, other),
            self.interruptions + other.interruptions,
            _known_sum([self.unrecorded_joules, other.unrecorded_joules]),
        )

    def known_charge(self, unit: str) -> Charge | None:
        """Return what all the energy emitted or cost; None if some of it was lost, or not charged in this unit."""
        charge = self.charges.get(unit)
        is_known = self.total.lost_seconds == self.host.lost_seconds == 0
        return charge if charge is not None and is_known and charge.missed_seconds == 0 else None


def _activities(*accounts: Account) -> list[Activity]:
    """Return the activities of any account; in the order of time, as that of a set would differ between processes."""
    return list(dict.fromkeys(activity for account in accounts for activity in account.activities))


def _known_sum(values: Iterable[float | None]) -> float | None:
    """Add up values; None if one of them is not known."""
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)


def _charges(*accounts: Account) -> dict[str, Charge]:
    """Add up charges. A charge that one account has not, in the unit of another, is missed there."""
    units = {unit: None for account in accounts for unit in account.charges}
    return {
        unit: sum(
            (account.charges.get(unit, Charge(missed_seconds=account.total.seconds)) for account in accounts), Charge()
        )
        for unit in units
    }
