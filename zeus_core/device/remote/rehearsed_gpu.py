"""Simulated GPUs of a daemon: `ZEUS_SIMULATED_GPUS=daemon`, to rehearse its policy and its log without a GPU."""

from __future__ import annotations

import contextlib

from zeus_core.device.remote.client import DaemonConnection, RemoteControl
from zeus_core.device.simulated.presets import GpuPreset
from zeus_core.device.simulated.simulated_gpu import SimulatedGpu
from zeus_core.errors import DeviceError, UsageError

_LIMIT, _CLOCK = "power_limit", "sm_clock"


def simulated_machine_of_daemon() -> str:
    """Return the simulated GPUs that the daemon serves, such as "A100-SXM4-80GB:4".

    Raises:
        DeviceError: There is no daemon, or it refuses this user.
        UsageError: It serves those of the machine.
    """
    connection = DaemonConnection()
    machine = str(connection.ask("list").get("simulated", ""))
    if not machine:
        raise UsageError(f"the zeus-core daemon at {connection.path} serves no simulated GPUs: start one by --simulate")
    return machine


class RehearsedGpu(SimulatedGpu):
    """A simulated GPU whose settings are made by the daemon, and those of all its clients.

    Each process has a model of its own, which follows the settings: its work is that of this process alone.

    Args:
        preset: The GPU model.
        index: The number of the GPU.
    """

    def __init__(self, preset: GpuPreset, index: int) -> None:
        super().__init__(preset, index)
        self._daemon = DaemonConnection()
        self._remotes = {knob: RemoteControl(self.uuid, knob) for knob in (_LIMIT, _CLOCK)}

    def set_power_limit(self, limit_watts: float) -> None:
        """Have the daemon change the limit, or restore the original; see `RemoteControl`."""
        limit_watts = self.preset.limit_range_watts.checked(limit_watts, self.name)
        if limit_watts == self.preset.default_limit_watts:
            self._remotes[_LIMIT].release()
        else:
            self._remotes[_LIMIT].set(limit_watts)
        super().set_power_limit(limit_watts)

    def lock_sm_clock(self, clock_mhz: int) -> None:
        """Have the daemon lock the clock."""
        self._remotes[_CLOCK].set(float(clock_mhz))
        super().lock_sm_clock(clock_mhz)

    def unlock_sm_clock(self) -> None:
        """Have the daemon restore the original."""
        self._remotes[_CLOCK].release()
        super().unlock_sm_clock()

    def read_power_limit_watts(self) -> float:
        """Read the limit that any client has set last."""
        self._follow()
        return super().read_power_limit_watts()

    def read_power_watts(self) -> float:
        """Read the power, at the settings that any client has made last."""
        self._follow()
        return super().read_power_watts()

    def _follow(self) -> None:
        with contextlib.suppress(DeviceError):  # the model goes on at what is known
            leases = self._daemon.ask("list")["leases"]
            values = {lease["knob"]: lease["value"] for lease in leases if lease["device"] == self.uuid}
            limit_watts, clock_mhz = values.get(_LIMIT), values.get(_CLOCK)
            super().set_power_limit(self.preset.default_limit_watts if limit_watts is None else limit_watts)
            super().lock_sm_clock(self.preset.highest_clock_mhz if clock_mhz is None else int(clock_mhz))
