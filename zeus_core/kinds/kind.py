"""The interface of all kinds of settings of a GPU, with the answers that most of them give."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Self

from zeus_core.errors import NotSupportedError, UsageError
from zeus_core.validate import shown


class Kind:
    """A kind of setting: its words, how it is read, set and restored, and what searches and the daemon ask about it.

    Other packages ask these questions and never which kind it is, so that a new kind is one more class. A kind needs
    the attributes without a default, `read`, `set`, `read_accepted` and `command`; one that the driver does not report
    also needs `read_running`. The defaults of the questions are the careful answers: nothing is predicted, and nobody
    is allowed anything who did not ask for this kind by name.

    A GPU is passed as a `Gpu`, or as much of one as the kind calls. Methods that call it raise what it raises. Two
    objects of one class are the same kind, and equal, also where a user has chosen other steps.

    Args:
        step: The distance between two settings of a search, in the unit; `fine_step` if None.
        original: The original that a user knows, where the driver does not report it; None for a free device.

    Attributes:
        name: The name in files and on the wire of the daemon, such as "power_limit".
        words: The name as people read it, such as "power limit".
        unit: The unit as people read it, such as "W".
        unit_name: The unit within names, such as "watts".
        option: The value of the argument `knob` of an optimizer.
        free: The original in words, where it is no value.
        is_readable: Whether the driver reports the value that was set last.
        tolerance: Values that differ by less than this are the same.
        max_rounding: How far the value that a board takes can be from the one that was asked for.
        fine_step: The distance between two settings, for a search whose number of trials does not depend on it.
        coarse_step: The distance for others.
        is_ordered: Whether a lower value takes less power and no less time, so that neighbouring values are alike, and
            an original that somebody lowers leaves the values below it to search.
        has_curves: Whether a search knows how time and power change along the settings, and predicts what it has not
            measured; else it measures each.
        binds_power: Whether the values are watts. One above what the work draws changes nothing, and the firmware or
            the controller of a board may limit the power below it.
        locks_sm_clock: Whether a value is the SM clock, in MHz, that a GPU runs at or below. A step at f then takes at
            most f_e / f times as long as at the mean clock f_e, however little of its time is measured.
        lowers_sm_clock: Whether lower values act through the SM clock alone: steps become no quicker, and no slower
            than by the ratio of the clocks.
        steepest_exponent: a, where a setting v below the original v0 makes work slower by (v0 / v)^a at most.
        saves_waiting: Whether a GPU that waits for other ranks, in a loop on its SMs, draws less at a lower value.
        needs_enforcement: Whether a value counts only once the board says that it keeps to it.
        joins_auto: Whether `knob="auto"` of an optimizer tries it.
        is_usual: Whether most boards have it, so that people are warned where one does not.
        is_allowed_unnamed: Whether a rule of the daemon that names no kinds allows it.
    """

    name: str
    words: str
    unit: str
    unit_name: str
    option: str
    free: str = "free"
    is_readable: bool = True
    tolerance: float = 1.0
    max_rounding: float = 0.0
    fine_step: int = 1
    coarse_step: int = 1
    is_ordered: bool = True
    has_curves: bool = False
    binds_power: bool = False
    locks_sm_clock: bool = False
    lowers_sm_clock: bool = False
    steepest_exponent: float = 2.0  # near the static power, a limit slows work by more than its ratio
    saves_waiting: bool = False
    needs_enforcement: bool = False
    joins_auto: bool = False
    is_usual: bool = False
    is_allowed_unnamed: bool = False

    def __init__(self, step: int | None = None, original: int | None = None) -> None:
        self.step: int = self.fine_step if step is None else step
        """The distance between two settings of a search."""
        self.original: int | None = None if self.is_readable else original
        """The original that a user knows; None for a free device, and where the driver reports it."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    def __hash__(self) -> int:
        return hash(type(self))

    def read(self, gpu: Any) -> float | None:
        """Read the value that was set last; None where the driver does not report it."""
        raise NotImplementedError

    def read_default(self, gpu: Any) -> float | None:
        """Read the value that the driver begins with; None where it does not report it."""
        return None

    def read_enforced(self, gpu: Any) -> float | None:
        """Read the value that the board enforces; None if it reports none."""
        return None

    def read_running(self, gpu: Any) -> float | None:
        """Read the value at which the device runs, which one that was set bounds; None if it reports none.

        Asked only where the driver does not report what was set.
        """
        return None

    def read_accepted(self, gpu: Any) -> Sequence[float]:
        """Read the values that the board accepts, highest first; of a range, its two ends."""
        raise NotImplementedError

    def set(self, gpu: Any, value: float | None) -> None:
        """Set a value; None to let the device choose it."""
        raise NotImplementedError

    def restore(self, gpu: Any, original: float | None) -> float | None:
        """Set the original. Returns what is in force in its place if the board does not take it; else None."""
        self.set(gpu, original)
        return None

    def command(self, uuids: Iterable[str], value: float | None) -> str:
        """Return the command by which an administrator sets a value on some GPUs; None lets them choose it."""
        raise NotImplementedError

    def is_same(self, one: float, other: float) -> bool:
        """Return whether two values are the same, apart from what a board rounds away."""
        return abs(one - other) < self.tolerance

    def is_any(self, value: float, others: Iterable[float | None]) -> bool:
        """Return whether a value is the same as one of some others; None stands for one that is not known."""
        return any(other is not None and self.is_same(value, other) for other in others)

    def is_between(self, value: float, new: float, original: float) -> bool:
        """Return whether a board may show a value while a new one is set for the first time, as it rounds."""
        lowest, highest = sorted((new, original))
        return lowest - self.max_rounding <= value <= highest + self.max_rounding

    def is_enforced(self, value: float, enforced: float) -> bool:
        """Return whether a board keeps to a value, by what it enforces."""
        return enforced >= value - self.tolerance

    def refusal_by(self, gpu_name: str) -> str | None:
        """Return why boards of a name take no value although their driver shows one, with what to do; None if not."""
        return None

    @property
    def range_key(self) -> str | None:
        """The key by which a rule of the daemon bounds the values, such as "power_limit_watts"; None if it cannot."""
        return f"{self.name}_{self.unit_name}"

    def ceiling(self, original: float | None) -> float:
        """Return the highest value that the daemon lets a user set, unless a rule allows more than the original.

        Args:
            original: The original; None for a free device.
        """
        return math.inf if original is None else original

    def text(self, value: float | None) -> str:
        """Return a value in words, such as "300 W"; None is that of a free device."""
        return self.free if value is None else f"{value:g} {self.unit}"

    def check_accepted(self, value: float, accepted: Collection[float], gpu_name: str) -> None:
        """Raise `UsageError` for a value that a board does not accept."""
        if not min(accepted) <= value <= max(accepted):
            ends = f"{min(accepted):g} to {max(accepted):g} {self.unit}"
            raise UsageError(f"a {self.words} of {value:g} {self.unit} is outside the {ends} of {gpu_name}")

    def usable(self, gpu_name: str, accepted: Sequence[float], original: float | None) -> tuple[float, ...]:
        """Return the values that a search may set, highest first: none above the original, which is among them.

        Args:
            gpu_name: For the message of an error.
            accepted: The values that the board accepts, highest first.
            original: The original; None for a free device.

        Raises:
            NotSupportedError: The board accepts none.
            UsageError: It does not accept the original that a user knows.
        """
        if not accepted:
            raise NotSupportedError(f"the {self.words} of {gpu_name} cannot be set")
        highest = accepted[0] if original is None else original
        return highest, min(accepted[-1], highest)

    def common_settings(self, each: Iterable[Sequence[float]]) -> tuple[int, ...]:
        """Return the settings for some GPUs or ranks together, highest first; the first is the original state of all.

        Args:
            each: The values that can be set on each, highest first.
        """
        highest, lowest = zip(*((values[0], values[-1]) for values in each), strict=True)
        first, last = math.ceil(max(highest)), math.ceil(min(lowest))
        return (*range(first, last, -self.step), last)

    def value_of(self, setting: int, usable: Sequence[float]) -> float:
        """Return the value that a setting stands for on a GPU with these values, highest first."""
        return min(max(float(setting), usable[-1]), usable[0])

    def check(self, setting: int, settings: Sequence[int]) -> None:
        """Raise `UsageError` for a setting that cannot be applied where there are these settings, highest first."""
        try:
            is_accepted = bool(settings[-1] <= setting <= settings[0])
        except Exception:  # it is no number
            is_accepted = False
        if not is_accepted:
            raise UsageError(
                f"a {self.words} of {shown(setting)} {self.unit} is outside {settings[-1]} to {settings[0]} "
                f"{self.unit}: choose one between the lowest the boards accept and the original {self.words}"
            )

    def with_arguments(self, step: int | None, original_clock_mhz: int | None) -> Self:
        """Return this kind with those arguments of an optimizer that are about it.

        Args:
            step: The distance between two settings; `fine_step` if None.
            original_clock_mhz: The SM clock at which the GPUs were locked before; None if they were not.
        """
        return type(self)(step)

    @property
    def arguments(self) -> Mapping[str, int | str]:
        """The arguments that must be the same on all ranks, by name."""
        return {"knob": self.words, "step": self.step}

    def state_text(self, setting: int, is_original: bool) -> str:
        """Return a state in words, such as "400 W"."""
        return self.text(setting)
