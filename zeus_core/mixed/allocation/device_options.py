"""Options: how long a device takes for a batch at each of its settings, and what it draws meanwhile."""

from __future__ import annotations

import math
from dataclasses import dataclass

from zeus_core.errors import UsageError
from zeus_core.kinds import KINDS, Kind
from zeus_core.validate import (
    checked_number,
    checked_one_of,
    checked_whole_number,
)

# Sums and products of larger numbers overflow, or lose the digits that plans differ by.
_MAX_SECONDS = MAX_WATTS = 1e9
_MAX_JOULES = 1e18
_MIN_SECONDS = 1e-9
MAX_BATCH = 1_000_000_000  # samples, or tokens, of a step on one device


@dataclass(frozen=True)
class DeviceOption:
    """A device at one setting: time and energy of a step are straight lines in its batch, down to a floor.

    A step with a batch lasts `max(floor, fixed + batch * per sample)` seconds. Above the floor it takes `power` times
    these seconds, and the fixed energy.

    Attributes:
        setting: Watts of a power limit, or MHz of a clock.
        fixed_seconds: Time of a step that does not depend on the batch; may be below 0 where larger batches are slower
            than in proportion.
        seconds_per_sample: Further time of each sample, at least 0.
        power_watts: Power while the step is longer than the floor, in the limit of large batches.
        floor_seconds: The shortest step, however small the batch: the host cannot issue the work any faster.
        floor_power_watts: Power of a step as short as the floor, if the batch were empty; it rises in proportion to the
            batch, to that of a step which is just as long. If None, it is the same for all steps as short as the floor.
        measured_batches: The smallest and the largest batch that this was measured with; None if it is known otherwise.
        time_error_fraction: How far measured times were off this line: root of the mean square, relative.
        energy_error_fraction: The same for energies.
        fixed_joules: Energy of a step besides power times seconds, which does not depend on the batch. It is below 0
            where small batches fill the device less, so that it draws less power.

    Raises:
        UsageError: A number is out of its range, NaN included, or a step would take less than no energy.
    """

    setting: int
    fixed_seconds: float
    seconds_per_sample: float
    power_watts: float
    floor_seconds: float = 0.0
    floor_power_watts: float | None = None
    measured_batches: tuple[int, int] | None = None
    time_error_fraction: float = 0.0
    energy_error_fraction: float = 0.0
    fixed_joules: float = 0.0

    def __post_init__(self) -> None:
        """Check all values."""
        object.__setattr__(self, "setting", checked_whole_number("setting", self.setting, 1))
        below = -_MAX_SECONDS
        self._check("fixed_seconds", below, _MAX_SECONDS, "seconds, -1e9 to 1e9, such as 0.005")
        self._check("seconds_per_sample", 0.0, _MAX_SECONDS, "seconds, 0 to 1e9, such as 0.0004")
        self._check("floor_seconds", 0.0, _MAX_SECONDS, "seconds, 0 to 1e9, such as 0.04")
        if not self.seconds(1) >= _MIN_SECONDS:
            raise UsageError(f"a step with a batch of 1 at {self.setting} takes {self.seconds(1):g} s; raise its floor")
        self._check("power_watts", 0.0, MAX_WATTS, "watts, 0 to 1e9, such as 250")
        if self.floor_power_watts is not None:
            self._check("floor_power_watts", 0.0, MAX_WATTS, "watts, 0 to 1e9, such as 80, or None")
        self._check("fixed_joules", -_MAX_JOULES, _MAX_JOULES, "joules, -1e18 to 1e18, such as -2.5")
        least = self.power_watts * self.seconds(1) + self.fixed_joules
        if least < 0.0:
            raise UsageError(f"a step of {self.seconds(1):g} s at {self.setting} takes {least:g} J; raise fixed_joules")
        for name in ("time_error_fraction", "energy_error_fraction"):
            self._check(name, 0.0, math.inf, "a fraction, at least 0")
        self._check_measured_batches()

    def _check(self, name: str, minimum: float, maximum: float, wanted: str) -> None:
        object.__setattr__(self, name, checked_number(name, getattr(self, name), minimum, maximum, wanted))

    def _check_measured_batches(self) -> None:
        if self.measured_batches is None:
            return
        wanted = "the smallest and the largest batch, such as (8, 256), or None"
        measured = [
            checked_whole_number("measured_batches", batch, 1, wanted, MAX_BATCH) for batch in self.measured_batches
        ]
        if len(measured) != 2 or measured[0] > measured[1]:
            raise UsageError(f"measured_batches is {tuple(measured)}; it must be {wanted}")
        object.__setattr__(self, "measured_batches", (measured[0], measured[1]))

    def seconds(self, batch: int) -> float:
        """Return the time of a step with a batch of at least 1."""
        return max(self.floor_seconds, self.fixed_seconds + batch * self.seconds_per_sample)

    def joules(self, batch: int) -> float:
        """Return the energy of a step with a batch of at least 1."""
        joules = self.power_watts * self.seconds(batch) + self.fixed_joules
        above = self.batch_at_floor
        if self.floor_power_watts is None or batch >= above:
            return joules
        return joules * (batch / above) + self.floor_power_watts * self.floor_seconds * (1.0 - batch / above)

    @property
    def batch_at_floor(self) -> float:
        """The batch up to which a step lasts as long as the floor; 0 without one, infinite if every batch does."""
        above_seconds = self.floor_seconds - self.fixed_seconds
        if above_seconds <= 0.0 or self.floor_seconds == 0.0:
            return 0.0
        return above_seconds / self.seconds_per_sample if self.seconds_per_sample else math.inf

    def is_measured(self, batch: int) -> bool:
        """Return whether a batch is within those measured, or empty."""
        if self.measured_batches is None or batch == 0:
            return True
        return self.measured_batches[0] <= batch <= self.measured_batches[1]


@dataclass(frozen=True)
class DeviceOptions:
    """The settings of one device, for one kind of work.

    Attributes:
        name: Its name for people, such as "A100-SXM4-80GB".
        options: One for each setting, in any order; sorted here, the highest setting first.
        blocking_power_watts: Power while it waits for the others in a collective.
        max_batch: The largest batch that its memory holds. If None, the largest that was measured at each setting, or
            any if nothing was.
        knob: The name of the setting: "power limit" (watts) or "SM clock" (MHz).

    Raises:
        UsageError: A value cannot be, or a setting occurs twice.
    """

    name: str
    options: tuple[DeviceOption, ...]
    blocking_power_watts: float
    max_batch: int | None = None
    knob: str = "power limit"

    def __post_init__(self) -> None:
        """Check all values, and sort the options."""
        if not self.options:
            raise UsageError("options is (); it must be a list of options, one for each setting")
        options = tuple(sorted(self.options, key=lambda option: -option.setting))
        object.__setattr__(self, "options", options)
        settings = [option.setting for option in options]
        if len(set(settings)) < len(settings):
            raise UsageError(f"{self.name} has a setting twice: {settings}; keep one option for each")
        wanted = "watts, 0 to 1e9, such as 80"
        blocking = checked_number("blocking_power_watts", self.blocking_power_watts, 0.0, MAX_WATTS, wanted)
        object.__setattr__(self, "blocking_power_watts", blocking)
        if self.max_batch is not None:
            wanted = f"a whole number of samples, 0 to {MAX_BATCH}, or None"
            held = checked_whole_number("max_batch", self.max_batch, 0, wanted, MAX_BATCH)
            object.__setattr__(self, "max_batch", held)
        checked_kind(self.knob)

    def option(self, setting: int) -> DeviceOption:
        """Return the option of a setting.

        Raises:
            UsageError: There is none.
        """
        for option in self.options:
            if option.setting == setting:
                return option
        known = ", ".join(str(option.setting) for option in self.options)
        raise UsageError(f"{self.name} has no setting {setting!r}; it has {known}")

    def largest_batch(self, option: DeviceOption) -> int:
        """Return the largest batch that an option may be given."""
        if self.max_batch is not None:
            return self.max_batch
        return MAX_BATCH if option.measured_batches is None else option.measured_batches[1]

    @property
    def max_power_watts(self) -> float:
        """The highest power limit, or the highest power at any clock."""
        if checked_kind(self.knob).binds_power:
            return float(self.options[0].setting)
        return max(option.power_watts for option in self.options)


def checked_global_batch(global_batch: int, multiple_of: int) -> int:
    """Return a global batch in units of which the batches of ranks are multiples.

    Raises:
        UsageError: It is no multiple itself, or not a number of samples.
    """
    wanted = f"a whole number of samples, 1 to {MAX_BATCH}, such as 512"
    global_batch = checked_whole_number("global_batch", global_batch, 1, wanted, MAX_BATCH)
    multiple_of = checked_whole_number("multiple_of", multiple_of, 1, "a number of samples, such as 8", MAX_BATCH)
    if global_batch % multiple_of:
        raise UsageError(
            f"global_batch is {global_batch}; with multiple_of={multiple_of} it must be a multiple of that"
        )
    return global_batch // multiple_of


def checked_kind(knob: str) -> Kind:
    """Return the kind of setting of an argument `knob`, which names it in words.

    Raises:
        UsageError: There is none.
    """
    kinds = {kind.words: kind for kind in KINDS.values()}
    return kinds[checked_one_of("knob", knob, kinds)]
