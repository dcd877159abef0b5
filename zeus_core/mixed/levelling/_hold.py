"""The setting of one rank that is levelled: a knob of its own, or that of a search, below its choice."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from zeus_core.device import Gpu
from zeus_core.errors import DeviceError
from zeus_core.kinds import Kind
from zeus_core.optimizer.global_setting.search_optimizer import SearchOptimizer
from zeus_core.optimizer.limiter import Limiter
from zeus_core.settings.holders import KnobUser


class CommonLevel(NamedTuple):
    """The setting that a search holds all ranks at, or observes them at."""

    limiter: Limiter
    setting: int
    observes: bool


def common_level(search: SearchOptimizer) -> CommonLevel | None:
    """Return the level that a search has chosen; None while it tries settings."""
    chosen = search.chosen_level
    return None if chosen is None else CommonLevel(*chosen, chosen[0].observes)


class Hold:
    """Sets the GPU of this rank. Each setting has one owner: where a search owns it, it is lowered through the search.

    Args:
        gpus: The GPUs of this rank, of which there must be one.
        kind: The kind of setting.
        level: The level of a search; None without one.
        user: The object that the settings are for.

    Raises:
        DeviceError: There are several GPUs, or the original setting cannot be read.
    """

    def __init__(self, gpus: Sequence[Gpu], kind: Kind, level: CommonLevel | None, user: KnobUser) -> None:
        if len(gpus) != 1:
            raise DeviceError(f"the monitor of this rank has {len(gpus)} GPUs: give each rank one of its own")
        is_shared = level is not None and level.limiter.kind == kind
        self._level = level if is_shared else None
        self._limiter = Limiter(gpus, kind, user) if self._level is None else self._level.limiter
        highest = self._limiter.settings[0] if self._level is None else self._level.setting
        self.settings: list[int] = [setting for setting in self._limiter.settings if setting <= highest]
        """The settings, highest first; the first is that without levelling."""
        self._has_set = False

    def set(self, setting: int) -> str | None:
        """Apply a setting. Returns why it cannot be set, if so.

        Raises:
            DeviceError: The GPU refuses for another reason, or somebody else has set it.
        """
        self._has_set = True
        return self._limiter.set(setting).denial if self._level is None else self._limiter.lower(setting)

    def release(self) -> None:
        """Restore the original setting, or that of the search. Never raises."""
        if not self._has_set:
            return
        if self._level is None:
            self._limiter.restore()
            return
        with suppress(DeviceError):  # the search meets it too, and reports it
            self._limiter.lower(None)
