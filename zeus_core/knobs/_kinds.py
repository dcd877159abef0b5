"""The kinds of one setting for all GPUs of a job: power limits, and locked SM clocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from zeus_core.device import Gpu, PowerRange
from zeus_core.knobs._common_clock import CommonClockKnob, check_clock, common_clocks
from zeus_core.knobs._holders import KnobUser
from zeus_core.knobs._knob import Knob
from zeus_core.knobs._power_limit import PowerLimitKnob, check_power_limit, power_limit_settings
from zeus_core.knobs._restoration import used_by

__all__ = ["CommonClock", "CommonKnob", "KnobKind", "PowerLimit"]


class CommonKnob(Knob, Protocol):
    """A knob that turns several GPUs alike, and notices when somebody else turns them."""

    @property
    def in_force(self) -> int | None:
        """The setting that the boards took at the latest `apply`; None once the original was restored for good.

        Some boards round, and some take none below one of their own. The baseline counts as taken.
        """
        ...

    def is_undisturbed(self) -> bool:
        """Tell whether the setting of the latest `apply` still has its effect.

        Raises:
            DeviceHeldError: Somebody else has changed it, and it stays.
            DeviceError: The driver does not answer in time.
        """
        ...

    @property
    def unrestored(self) -> Mapping[str, str]:
        """The commands for the GPUs that `restore` is not known to have restored, each with the reason."""
        ...


class KnobKind(Protocol):
    """A kind of setting, and its words."""

    @property
    def name(self) -> str:
        """The name of the setting, such as "power limit"."""
        ...

    @property
    def unit(self) -> str:
        """The unit of the settings."""
        ...

    @property
    def arguments(self) -> Mapping[str, int | str]:
        """The arguments that must be the same on all ranks, by name."""
        ...

    def state_text(self, setting: int, is_original: bool) -> str:
        """Return a state in words, such as "400 W"."""
        ...

    def make_knob(self, gpus: Sequence[Gpu], user: KnobUser | None = None) -> CommonKnob:
        """Make the knob of some GPUs, for an object that uses it. Nothing is changed here.

        Raises:
            DeviceError: The original settings cannot be read, or cannot be changed at all.
        """
        ...

    def common_settings(self, settings_of_ranks: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Return the settings to try on all ranks, from those of each. The first is the original state of all."""
        ...

    def check(self, setting: int, settings: Sequence[int]) -> None:
        """Raise `UsageError` for a setting that cannot be applied where there are these settings."""
        ...


@dataclass(frozen=True)
class PowerLimit:
    """Power limits, in watts.

    Attributes:
        step_watts: Distance between two limits.
    """

    step_watts: int
    name = "power limit"
    unit = "W"

    @property
    def arguments(self) -> Mapping[str, int | str]:
        """The arguments that must be the same on all ranks, by name."""
        return {"knob": self.name, "pl_step": self.step_watts}

    def state_text(self, setting: int, is_original: bool) -> str:
        """Return a limit in words."""
        return f"{setting} {self.unit}"

    def make_knob(self, gpus: Sequence[Gpu], user: KnobUser | None = None) -> CommonKnob:
        """Make the knob of some GPUs."""
        return used_by(user, PowerLimitKnob(gpus, self.step_watts))

    def common_settings(self, settings_of_ranks: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Return the limits from the highest original one of any rank down to the lowest of any board."""
        ranges = [PowerRange(settings[-1], settings[0]) for settings in settings_of_ranks]
        return power_limit_settings(ranges, self.step_watts)

    def check(self, setting: int, settings: Sequence[int]) -> None:
        """Raise `UsageError` for a limit outside the settings."""
        check_power_limit(setting, settings)


@dataclass(frozen=True)
class CommonClock:
    """Locked SM clocks, in MHz.

    Attributes:
        original_mhz: The clock that the GPUs were locked at before; None if they were not locked.
    """

    original_mhz: int | None = None
    name = "SM clock"
    unit = "MHz"

    @property
    def arguments(self) -> Mapping[str, int | str]:
        """The arguments that must be the same on all ranks, by name."""
        return {"knob": self.name, "original_clock_mhz": self.original_mhz or 0}

    def state_text(self, setting: int, is_original: bool) -> str:
        """Return a clock in words; GPUs that are not locked choose their own."""
        return "unlocked clock" if is_original and self.original_mhz is None else f"{setting} {self.unit}"

    def make_knob(self, gpus: Sequence[Gpu], user: KnobUser | None = None) -> CommonKnob:
        """Make the knob of some GPUs."""
        return used_by(user, CommonClockKnob(gpus, self.original_mhz))

    def common_settings(self, settings_of_ranks: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Return the highest clock of any rank, and the lower ones that all support."""
        return common_clocks(settings_of_ranks)

    def check(self, setting: int, settings: Sequence[int]) -> None:
        """Raise `UsageError` for a clock that is none of the settings."""
        check_clock(setting, settings)
