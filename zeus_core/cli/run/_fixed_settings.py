"""A power limit or a clock for the whole of `zeus-core run`, and the original at each of its ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from zeus_core._launch import CLOCK, LIMIT
from zeus_core.cli.run._guarded_meter import within
from zeus_core.cli.text import complain
from zeus_core.errors import DeviceError, DeviceHeldError, DriverFaultError, UsageError, ZeusError

if TYPE_CHECKING:
    from zeus_core.cli.run._run_options import Asked
    from zeus_core.device import Gpu
    from zeus_core.settings.knob import CommonKnob

_SECONDS = 30.0  # a guardian that starts on a busy machine, and the driver of each board


class _Fixed(NamedTuple):
    name: str
    knob: CommonKnob
    setting: int
    unit: str

    @property
    def text(self) -> str:
        """The setting that was asked for."""
        return f"{self.setting} {self.unit}"

    @property
    def taken_text(self) -> str:
        """The settings that the GPUs took."""
        taken = sorted({round(value) for value in self.knob.taken})
        return " to ".join(map(str, dict.fromkeys((taken[0], taken[-1])))) + f" {self.unit}"

    def duration_text(self) -> str:
        """Return how long the setting was in force, as far as it can be read, to continue a sentence."""
        try:
            is_undisturbed = self.knob.is_undisturbed()
        except DeviceHeldError:
            return ", until somebody else changed it"
        except DeviceError:  # of a GPU that is gone
            is_undisturbed = True
        return " for the whole run" if is_undisturbed else ", but not in force for the whole run"


class FixedSettings:
    """Sets GPUs for the whole run. Without permission it changes nothing, and says so.

    The end of the process restores them too, however it ends: by its guardian, or by the daemon.

    Args:
        asked: The options.
        gpus: The GPUs.

    Attributes:
        in_force: The settings that were made, in words, by what they are of.
        notes: The same for people, or the reasons why there are none.

    Raises:
        UsageError: A GPU has no such setting.
    """

    def __init__(self, asked: Asked, gpus: Sequence[Gpu]) -> None:
        self.in_force: dict[str, str] = {}
        self.notes: list[str] = []
        self._fixed: list[_Fixed] = []
        wanted = [
            ("power limit", "--limit", LIMIT, asked.limit_watts, "W", _limit_knob),
            ("SM clock", "--clock", CLOCK, asked.clock_mhz, "MHz", _clock_knob),
        ]
        for name, option, variable, setting, unit, make in wanted:
            if setting is None:
                continue
            knob = self._made(name, gpus, make)
            if knob is None:
                continue
            if setting not in knob.settings:
                is_clamped = variable in asked.clamped
                wrong = f"{variable if is_clamped else option} is {setting} {unit}"
                takes = f"the GPUs take {_range(knob.settings, unit)}"
                if not is_clamped:
                    raise UsageError(f"{wrong}, and {takes}")
                setting = next((lower for lower in knob.settings if lower <= setting), knob.settings[-1])
                complain(f"zeus-core: {wrong}, and {takes}: {setting} {unit} is set")
            self._fixed.append(_Fixed(name, knob, setting, unit))

    def apply(self) -> None:
        """Set the GPUs."""
        for fixed in self._fixed[:]:
            try:
                within(_SECONDS, lambda fixed=fixed: fixed.knob.apply(fixed.setting))  # type: ignore[misc]
                self.in_force[fixed.name] = fixed.taken_text
            except ZeusError as error:
                self.notes.append(f"The {fixed.name} was not changed to {fixed.text}: {error}")

    def restore(self) -> None:
        """Restore the originals, and note those that cannot be restored, with their commands."""
        fixed, self._fixed = self._fixed, []
        for one in reversed(fixed):
            try:
                if taken := self.in_force.get(one.name):
                    rest = within(_SECONDS, one.duration_text)
                    others = "" if taken == one.text else f": no GPU took what was nearer to {one.text}"
                    self.notes.append(f"The {one.name} was {taken}{rest}{others}.")
                within(_SECONDS, one.knob.restore)
            except DriverFaultError as error:
                self.notes.append(f"The original {one.name} may not be restored: {error}")
            for command, reason in one.knob.unrestored.items():
                self.notes.append(f"The original {one.name} is not restored ({reason}): {command}")

    def _made(self, name: str, gpus: Sequence[Gpu], make: Callable[[Sequence[Gpu]], CommonKnob]) -> CommonKnob | None:
        if not gpus:
            self.notes.append(f"The {name} was not changed: there is no GPU.")
            return None
        try:
            return within(_SECONDS, lambda: make(gpus))
        except UsageError:
            raise
        except ZeusError as error:
            self.notes.append(f"The {name} was not changed: {error}")
            return None


def _limit_knob(gpus: Sequence[Gpu]) -> CommonKnob:
    from zeus_core.settings.limit_knob import PowerLimitKnob

    return PowerLimitKnob(gpus, 1)


def _clock_knob(gpus: Sequence[Gpu]) -> CommonKnob:
    from zeus_core.settings.clock_knob import CommonClockKnob

    return CommonClockKnob(gpus)


def _range(settings: Sequence[int], unit: str) -> str:
    highest, *lower = settings
    if len(lower) < 2:
        return " or ".join(map(str, settings)) + f" {unit}"
    steps = {before - after for before, after in pairwise(lower)}
    every = f", in steps of {steps.pop()} {unit}" if len(steps) == 1 and steps != {1} else ""
    return f"{lower[-1]} to {highest} {unit}{every}; {highest} is the original"
