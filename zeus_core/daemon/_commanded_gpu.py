"""Changes made by commands that an administrator chose, so that the daemon itself needs no right."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from types import MappingProxyType

from zeus_core.device import Gpu
from zeus_core.errors import DriverFaultError, UsageError
from zeus_core.kinds import POWER_LIMIT

# Each operation with the placeholders that its command must have.
OPERATIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "set_power_limit": ("{uuid}", "{watts}"),
        "lock_sm_clock": ("{uuid}", "{mhz}"),
        "unlock_sm_clock": ("{uuid}",),
    }
)

_COMMAND_SECONDS = 10.0  # nvidia-smi takes 1 s, and where it opens the driver of eight boards, several


class CommandedGpu:
    """A `Gpu` that is read through the driver, and changed by commands.

    Args:
        gpu: Reads.
        commands: The words of the command of each operation, with the placeholders {uuid}, {watts} and {mhz}. An
            operation without a command is made by the driver.
        failure_pattern: A regular expression: a command whose output has a match has failed.
    """

    def __init__(self, gpu: Gpu, commands: Mapping[str, tuple[str, ...]], failure_pattern: str | None) -> None:
        self._gpu = gpu
        self._commands = commands
        self._failure = re.compile(failure_pattern) if failure_pattern else None

    def __getattr__(self, name: str) -> object:
        return getattr(self._gpu, name)

    def set_power_limit(self, limit_watts: float) -> None:
        """Execute the command, and read back what it did."""
        if "set_power_limit" not in self._commands:
            return self._gpu.set_power_limit(limit_watts)
        limit_watts = self._gpu.read_power_limit_range_watts().checked(limit_watts, self._gpu.name)
        before_watts = self._gpu.read_power_limit_watts()
        self._execute("set_power_limit", watts=f"{limit_watts:g}")
        set_watts = self._gpu.read_power_limit_watts()  # a board may round; what changes nothing has failed
        if set_watts == before_watts and abs(set_watts - limit_watts) > POWER_LIMIT.max_rounding:
            raise DriverFaultError(f"the command for {limit_watts:g} W succeeded, but {set_watts:g} W are requested")
        return None

    def lock_sm_clock(self, clock_mhz: int) -> None:
        """Execute the command."""
        if "lock_sm_clock" not in self._commands:
            return self._gpu.lock_sm_clock(clock_mhz)
        if clock_mhz not in self._gpu.read_supported_sm_clocks_mhz():
            raise UsageError(f"clock_mhz is {clock_mhz!r}, which {self._gpu.name} does not support")
        return self._execute("lock_sm_clock", mhz=str(clock_mhz))

    def unlock_sm_clock(self) -> None:
        """Execute the command."""
        if "unlock_sm_clock" not in self._commands:
            return self._gpu.unlock_sm_clock()
        return self._execute("unlock_sm_clock")

    def _execute(self, operation: str, **values: str) -> None:
        """Execute the command of an operation, without a shell, and check what it says."""
        words = list(self._commands[operation])
        for name, value in {"uuid": self._gpu.uuid, **values}.items():
            words = [word.replace(f"{{{name}}}", value) for word in words]
        try:
            ended = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_COMMAND_SECONDS,
                cwd="/",
                env={"PATH": os.defpath, "LC_ALL": "C"},
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DriverFaultError(f"the command {words} failed: {error}") from error
        output = ended.stdout.decode(errors="replace")
        if ended.returncode != 0 or (self._failure is not None and self._failure.search(output)):
            raise DriverFaultError(f"the command {words} failed with code {ended.returncode}: {output[-300:].strip()}")
