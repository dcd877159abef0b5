"""A power limit or a clock for the whole of `zeus-core run`, and the original at each of its ends."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from zeus_core.cli.run._guarded_meter import within
from zeus_core.cli.text import complain
from zeus_core.errors import DeviceError, DeviceHeldError, DriverFaultError, UsageError, ZeusError

if TYPE_CHECKING:
    from zeus_core.cli.run._run_options import Setting
    from zeus_core.device import Gpu
    from zeus_core.settings.knob import CommonKnob

_SECONDS = 30.0  # a guardian that starts on a busy machine, and the driver of each board


class FixedSettings:
    """Sets GPUs for the whole run. Without permission it changes nothing, and says so.

    The end of the process restores them too, however it ends: by its guardian, or by the daemon.

    Args:
        settings: The settings that were asked for.
        gpus: The GPUs.

    Attributes:
        in_force: The settings that were made, in words, by what they are of.
        notes: The same for people, or the reasons why there are none.

    Raises:
        UsageError: A GPU has no such setting.
    """

    def __init__(self, settings: Sequence[Setting], gpus: Sequence[Gpu]) -> None:
        self.in_force: dict[str, str] = {}
        self.notes: list[str] = []
        self._held: list[tuple[Setting, CommonKnob]] = []
        for setting in settings:
            if not gpus:
                self.notes.append(f"The {setting.words} was not changed: there is no GPU.")
                continue
            try:
                knob = within(_SECONDS, partial(_knob, setting.words, gpus))
            except ZeusError as error:
                self.notes.append(f"The {setting.words} was not changed: {error}")
            else:
                self._held.append((_accepted(setting, knob.settings), knob))

    def apply(self) -> None:
        """Set the GPUs."""
        for setting, knob in self._held:
            try:
                within(_SECONDS, partial(knob.apply, setting.value))
            except ZeusError as error:
                self.notes.append(f"The {setting.words} was not changed to {setting.text}: {error}")
            else:
                taken = sorted({round(value) for value in knob.taken})
                ends = " to ".join(map(str, dict.fromkeys((taken[0], taken[-1]))))
                self.in_force[setting.words] = f"{ends} {setting.unit}"

    def restore(self) -> None:
        """Restore the originals, and note those that cannot be restored, with their commands."""
        while self._held:
            setting, knob = self._held.pop()
            try:
                if taken := self.in_force.get(setting.words):
                    duration = within(_SECONDS, partial(_duration, knob))
                    others = "" if taken == setting.text else f": no GPU took what was nearer to {setting.text}"
                    self.notes.append(f"The {setting.words} was {taken}{duration}{others}.")
                within(_SECONDS, knob.restore)
            except DriverFaultError as error:
                self.notes.append(f"The original {setting.words} may not be restored: {error}")
            for command, reason in knob.unrestored.items():
                self.notes.append(f"The original {setting.words} is not restored ({reason}): {command}")


def _knob(words: str, gpus: Sequence[Gpu]) -> CommonKnob:
    from zeus_core.kinds import KINDS
    from zeus_core.optimizer.limiter import knob_of

    (kind,) = (kind for kind in KINDS.values() if kind.words == words)
    return knob_of(kind.with_arguments(1, None), gpus, None)


def _accepted(setting: Setting, accepted: Sequence[int]) -> Setting:
    """Return a setting that the GPUs take: for one of a variable, the nearest below it.

    Raises:
        UsageError: They do not take the one that an option asks for.
    """
    if setting.value in accepted:
        return setting
    nearest = setting._replace(value=next((each for each in accepted if each <= setting.value), accepted[-1]))
    ends = f"{accepted[-1]} to {accepted[0]} {setting.unit}; {accepted[0]} is the original"
    wrong = f"{setting.source} is {setting.text}, and the GPUs take {ends}"
    if setting.source.startswith("--"):
        raise UsageError(f"{wrong}; give {nearest.value}, for example")
    complain(f"zeus-core: {wrong}: {nearest.text} is set")
    return nearest


def _duration(knob: CommonKnob) -> str:
    """Return how long a setting was in force, if that can be read, to continue a sentence."""
    try:
        is_undisturbed = knob.is_undisturbed()
    except DeviceHeldError:
        return ", until somebody else changed it"
    except DeviceError:  # of a GPU that is gone
        is_undisturbed = True
    return " for the whole run" if is_undisturbed else ", but not in force for the whole run"
