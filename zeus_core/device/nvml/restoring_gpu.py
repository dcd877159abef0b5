"""One NVIDIA GPU, as much of it as restoring its settings needs."""

from __future__ import annotations

from typing import Any

from zeus_core.device.nvml.board_settings import (
    LimitScope,
    PowerProfiles,
    find_limit_scope,
    is_in_range,
    read_limit,
    read_profiles,
    set_limit,
    set_profiles,
)
from zeus_core.device.nvml.nvml_session import NvmlSession, Question
from zeus_core.device.nvml.return_codes import INVALID_ARGUMENT
from zeus_core.errors import UsageError
from zeus_core.units import milliwatts_from_watts, watts_from_milliwatts


class RestoringGpu:
    """An NVIDIA GPU whose settings are to be restored: its methods are those of a `Gpu`.

    It sets first, and asks only if the driver refuses. `NvmlGpu` reads what the board accepts before it sets: a
    reading that fails would keep a setting that can be restored.

    Args:
        session: The connection.
        uuid: The UUID of the GPU, which is asked for nothing before the first call.
    """

    def __init__(self, session: NvmlSession, uuid: str) -> None:
        self.uuid = uuid
        self._session = session

    def read_power_limit_watts(self) -> float:
        """Read the power limit requested last."""
        return self._read_limit_watts("requested")

    def read_default_power_limit_watts(self) -> float:
        """Read the power limit that the driver begins with."""
        return self._read_limit_watts("default")

    def set_power_limit(self, limit_watts: float) -> None:
        """Request a power limit. Raises `UsageError` if the driver refuses it, and it is outside the board's range."""
        limit_milliwatts, scope = milliwatts_from_watts(limit_watts), self._find_limit_scope()

        def question(library: Any, handle: Any) -> tuple[int, None]:
            # The driver takes an unsigned number of 32 bits: one that is too large would stand for another limit.
            is_number = 0 <= limit_milliwatts < 2**32
            code = set_limit(library, handle, scope, limit_milliwatts)[0] if is_number else INVALID_ARGUMENT
            if code == INVALID_ARGUMENT and not is_in_range(library, handle, scope, limit_milliwatts):
                raise UsageError(f"limit_watts is {limit_watts:g}, which {self.uuid} does not accept")
            return code, None

        self._call("setting the power limit", question)

    def lock_sm_clock(self, clock_mhz: int) -> None:
        """Hold the SM clock."""
        self._call("locking the SM clock", "nvmlDeviceSetGpuLockedClocks", clock_mhz, clock_mhz)

    def unlock_sm_clock(self) -> None:
        """Let the SM clock move freely."""
        self._call("unlocking the SM clock", "nvmlDeviceResetGpuLockedClocks")

    def read_power_profiles(self) -> PowerProfiles:
        """Read the workload power profiles."""
        profiles: PowerProfiles = self._call("reading the power profiles", read_profiles)
        return profiles

    def set_power_profiles(self, mask: int) -> None:
        """Request these workload power profiles and no others."""
        self._call("setting the power profiles", set_profiles, mask)

    def _read_limit_watts(self, which: str) -> float:
        return watts_from_milliwatts(
            self._call(f"reading the {which} power limit", read_limit, self._find_limit_scope(), which)
        )

    def _find_limit_scope(self) -> LimitScope:
        scope: LimitScope = self._call("looking for the scope of the power limit", find_limit_scope)
        return scope

    def _call(self, action: str, function: str | Question, *arguments: object) -> Any:
        return self._session.call(self.uuid, action, function, *arguments)
