"""The time, energy and work of a training run, or of some of it, by activity."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, get_args

from zeus_core.events import Activity, own_activities
from zeus_core.measurement import DeviceEnergy, Method
from zeus_core.ports.world import WholeNumbers
from zeus_core.training.activities.tally import Tally
from zeus_core.training.charges.charging import Charge

TRAINING = (Activity.STEPS, Activity.GENERATION, Activity.WAITING, Activity.REFERENCE, Activity.REWARD)
"""The activities that make up training steps."""

_USUAL = (
    *(Activity.STEPS, Activity.EVALUATION, Activity.CHECKPOINT),
    *(Activity.OTHER, Activity.BETWEEN_STEPS, Activity.IDLE),
)  # those that each account has a place for, among ranks

_Amount = TypeVar("_Amount", int, Tally)

_BITS = 32  # of the fraction of an amount
_MOST = 2.0**40  # of an amount of a rank, so that the sum over 4 million of them has 62 bits: 35,000 years, 300 GWh
_MOST_COUNT = 2**48  # samples or tokens of a rank, in 16,000 ranks; 10^13 is a whole training of today
_METHODS = get_args(Method)  # best first
_NOTHING, _NO_TALLY = DeviceEnergy(), Tally()
_ABSENT = -1.0  # seconds of an activity that a rank has not had


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

    total: Tally = _NO_TALLY
    activities: Mapping[Activity, Tally] = field(default_factory=dict)
    redone: Tally = _NO_TALLY
    samples: int = 0
    tokens: int = 0
    host: Tally = _NO_TALLY
    charges: Mapping[str, Charge] = field(default_factory=dict)
    interruptions: int = 0
    unrecorded_joules: float | None = 0.0
    visits: Mapping[Activity, int] = field(default_factory=dict)
    generated_tokens: int = 0

    @classmethod
    def from_ranks(cls, accounts: Iterable[Account]) -> Account:
        """Combine the accounts of the same time on several ranks, each of which has devices and data of its own."""
        ranks = list(accounts)
        units, unusual = _units(*ranks), unusual_activities(_activities(*ranks))
        numbers = (rank.to_numbers(units, unusual) for rank in ranks)
        return ranks[0] if len(ranks) == 1 else cls.from_numbers(WholeNumbers.of_all(numbers), units, unusual)

    def to_numbers(self, units: Sequence[str], unusual: Sequence[Activity] = ()) -> WholeNumbers:
        """Return the account as whole numbers, to be combined with those of other ranks; see `from_numbers`.

        An amount x is round(x 2^32) = w 2^32 + r, with 0 <= r < 2^32, of which w and r are numbers. Energies are
        multiples of 2^-10 J, and exact; times, uncertainties and charges are rounded by 2^-33 of their unit at most.
        The longest time counts, not the sum: a float above 0 is in the order of its bits.

        Args:
            units: Those that some rank charges its energy in. One that this account lacks is missed in it.
            unusual: The `unusual_activities` on which all ranks agree; others are part of `Activity.OTHER`.
        """
        columns = (*_USUAL, *unusual)
        activities = placed(self.activities, columns, _NO_TALLY)
        visits = placed(self.visits, columns, 0)
        tallies = (self.total, self.redone, self.host, *map(activities.get, columns))
        amounts: list[float] = [self.unrecorded_joules or 0.0]
        seconds, methods = [], []
        for tally in tallies:
            measured = _NOTHING if tally is None else tally.measured
            seconds.append(_ABSENT if tally is None else tally.seconds + 0.0)  # not -0.0
            methods.append(_METHODS.index(measured.method))
            lost_seconds = 0.0 if tally is None else tally.lost_seconds
            amounts += (measured.energy_joules or 0.0, measured.uncertainty_joules or 0.0, lost_seconds)
        for unit in units:
            charge = self.charges.get(unit) or Charge(missed_seconds=self.total.seconds)
            amounts += (charge.amount, charge.uncertainty, charge.joules, charge.stale_joules, charge.missed_seconds)
        counts = (
            int(self.unrecorded_joules is None),
            *(min(count, _MOST_COUNT) for count in (self.samples, self.tokens, self.generated_tokens)),
            *(visits.get(activity, 0) for activity in columns),
        )
        largest = (*array("q", array("d", seconds).tobytes()), *methods, self.interruptions)
        return WholeNumbers((*counts, *(number for amount in amounts for number in _whole(amount))), largest)

    @classmethod
    def from_numbers(cls, numbers: WholeNumbers, units: Sequence[str], unusual: Sequence[Activity] = ()) -> Account:
        """Return the account that whole numbers of all ranks make: the same in every order and grouping of ranks."""
        columns = (*_USUAL, *unusual)
        unknown, samples, tokens, generated_tokens, *parts = numbers.sums
        visits, parts = parts[: len(columns)], parts[len(columns) :]
        whole = zip(parts[::2], parts[1::2], strict=True)
        amounts = (((integer << _BITS) + rest) / (1 << _BITS) for integer, rest in whole)  # rounded once
        unrecorded_joules = next(amounts)
        tallies = []
        count = (len(numbers.largest) - 1) // 2
        seconds = array("d", array("q", numbers.largest[:count]).tobytes())
        for longest, method in zip(seconds, numbers.largest[count:], strict=False):
            energy = DeviceEnergy(next(amounts), next(amounts), _METHODS[method])
            # Not the longest loss: a shorter one on a rank, after a longer one on another, must show in a difference.
            tallies.append(Tally(longest, energy, next(amounts)))
        total, redone, host, *of_activities = tallies
        return cls(
            total,
            {
                activity: tally
                for activity, tally in zip(columns, of_activities, strict=True)
                if tally.seconds != _ABSENT
            },
            redone,
            samples,
            tokens,
            host,
            {unit: Charge(*(next(amounts) for _ in range(5))) for unit in units},
            numbers.largest[-1],
            None if unknown else unrecorded_joules,
            {activity: count for activity, count in zip(columns, visits, strict=True) if count > 0},
            generated_tokens,
        )

    @property
    def training(self) -> Tally:
        """The training steps, with all that belongs to them."""
        return sum((self.activities[activity] for activity in TRAINING if activity in self.activities), Tally())

    def in_order(self) -> list[tuple[Activity, Tally]]:
        """Return the activities in the order of `Activity`, and then those of a user's own, as they came."""
        columns = (*Activity, *(activity for activity in self.activities if activity.is_own))
        return [(activity, self.activities[activity]) for activity in columns if activity in self.activities]

    @property
    def joules_per_generated_token(self) -> float | None:
        """The energy of the text generated for training, by token; None if one of them is not known."""
        joules = self.activities.get(Activity.GENERATION, _NO_TALLY).energy_joules
        return joules / self.generated_tokens if joules is not None and self.generated_tokens > 0 else None

    def joules_per_visit(self) -> dict[Activity, float]:
        """Return the energy of a pass of reward models, and of each activity of a user's own, on one rank."""
        return {
            activity: tally.energy_joules / count
            for activity, tally in self.in_order()
            if activity is Activity.REWARD or activity.is_own
            if tally.energy_joules is not None and (count := self.visits.get(activity, 0)) > 0
        }

    def __add__(self, other: Account) -> Account:
        """Add what came before or after. Activities of a user's own beyond `MOST_OWN` become `Activity.OTHER`."""
        columns = (*Activity, *own_activities(_activities(self, other)))
        ours, theirs = (placed(account.activities, columns, _NO_TALLY) for account in (self, other))
        visits, more_visits = (placed(account.visits, columns, 0) for account in (self, other))
        return Account(
            self.total + other.total,
            {each: ours.get(each, _NO_TALLY) + theirs.get(each, _NO_TALLY) for each in dict.fromkeys([*ours, *theirs])},
            self.redone + other.redone,
            self.samples + other.samples,
            self.tokens + other.tokens,
            self.host + other.host,
            _charges(self, other),
            self.interruptions + other.interruptions,
            _known_sum([self.unrecorded_joules, other.unrecorded_joules]),
            {each: visits.get(each, 0) + more_visits.get(each, 0) for each in dict.fromkeys([*visits, *more_visits])},
            self.generated_tokens + other.generated_tokens,
        )

    def known_charge(self, unit: str) -> Charge | None:
        """Return what all the energy emitted or cost; None if some of it was lost, or not charged in this unit."""
        charge = self.charges.get(unit)
        is_known = self.total.lost_seconds == self.host.lost_seconds == 0
        return charge if charge is not None and is_known and charge.missed_seconds == 0 else None


def unusual_activities(activities: Iterable[Activity]) -> tuple[Activity, ...]:
    """Return those that an account has a place for only if all ranks agree on it; of own ones, the first `MOST_OWN`."""
    found = list(dict.fromkeys(activities))
    own = own_activities(found)
    return tuple(each for each in found if each not in _USUAL and (not each.is_own or each in own))


def placed(
    amounts: Mapping[Activity, _Amount], columns: Collection[Activity], nothing: _Amount
) -> Mapping[Activity, _Amount]:
    """Return amounts by activity, of which those outside of some columns are added to `Activity.OTHER`."""
    if all(activity in columns for activity in amounts):
        return amounts
    others = {each: amount for each, amount in amounts.items() if each in columns}
    for activity, amount in amounts.items():
        if activity not in columns:
            others[Activity.OTHER] = others.get(Activity.OTHER, nothing) + amount
    return others


def _whole(amount: float) -> tuple[int, int]:
    """Return an amount as a whole number of its unit, and the rest, in 2^-32 of it."""
    if not -_MOST < amount < _MOST:
        amount = -_MOST if amount < 0 else _MOST
    return divmod(round(amount * (1 << _BITS)), 1 << _BITS)


def _units(*accounts: Account) -> list[str]:
    return list(dict.fromkeys(unit for account in accounts for unit in account.charges))


def _activities(*accounts: Account) -> list[Activity]:
    """Return the activities of any account; in the order of time, as that of a set would differ between processes."""
    return list(dict.fromkeys(activity for account in accounts for activity in account.activities))


def _known_sum(values: Iterable[float | None]) -> float | None:
    """Add up values; None if one of them is not known."""
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)


def _charges(*accounts: Account) -> dict[str, Charge]:
    """Add up charges. A charge that one account has not, in the unit of another, is missed there."""
    return {
        unit: sum(
            (account.charges.get(unit, Charge(missed_seconds=account.total.seconds)) for account in accounts), Charge()
        )
        for unit in _units(*accounts)
    }
