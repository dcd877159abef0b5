"""NVIDIA GPUs, through the NVML library and its official binding nvidia-ml-py.

Nothing is loaded before the first device is asked for. Every call that fails raises one of the package's errors.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

from zeus_core.device._gpu import PowerRange
from zeus_core.device.nvml._counter_period import watch_counter_period_seconds
from zeus_core.device.nvml._errors import UNINITIALIZED, device_error
from zeus_core.device.nvml._field import FieldReader
from zeus_core.errors import DeviceError, NotSupportedError, PermissionDeniedError, UsageError
from zeus_core.units import joules_from_millijoules, milliwatts_from_watts, watts_from_milliwatts

__all__ = ["NvmlGpu", "NvmlSession"]

_VOLTA, _AMPERE = 5, 7  # nvmlDeviceArchitecture_t
_GA100 = ("A100", "A30", "A800")
_POWER_INSTANT_FIELD = 186  # NVML_FI_DEV_POWER_INSTANT: power without the one-second average of Ampere and later
_FIELD_UNKNOWN = frozenset({2, 3, 13})  # an older driver may call a field it does not know an invalid argument
_VOLTA_PERIOD_SECONDS = 0.02
_PERIOD_SECONDS = 0.1


class NvmlSession:
    """An initialised NVML and the handles of its devices.

    It opens by itself in each process that uses it: neither handles nor NVML survive a fork.
    """

    def __init__(self) -> None:
        self._process_id: int | None = None
        self._handles: dict[str, Any] = {}

    def read_uuids(self) -> list[str]:
        """The UUIDs of the GPUs the driver shows this process, in PCI order; empty for one that does not answer.

        Raises:
            DeviceError: There is no driver, or it does not work.
        """
        count = self._call("counting the GPUs", "nvmlDeviceGetCount")
        return [self._open_device(index) for index in range(count)]

    def read_mig_parents(self) -> dict[str, str]:
        """The UUID of the GPU of each MIG device, by the latter's UUID."""
        parents: dict[str, str] = {}
        for uuid in filter(None, self.read_uuids()):
            parents.update(dict.fromkeys(_read_mig_uuids(self.handle(uuid)), uuid))
        return parents

    def handle(self, uuid: str) -> Any:
        """The handle of a GPU in this process. Raises what the binding raises."""
        if self._process_id != os.getpid():
            self._open()
        handle = self._handles.get(uuid)
        return self._find_handle(uuid) if handle is None else handle

    def call(self, uuid: str, action: str, function: str, *arguments: object) -> Any:
        """Call an NVML function on one GPU, once more if the driver has lost the session meanwhile.

        Args:
            uuid: The GPU.
            action: What the call does, for the message of an error: "reading the power".
            function: Name in the binding.
            *arguments: What follows the handle.

        Raises:
            DeviceError: The call failed; see `nvml_errors`.
        """
        import pynvml

        call = getattr(pynvml, function, None)
        if call is None:
            raise NotSupportedError(f"{action} needs a newer nvidia-ml-py: pip install -U nvidia-ml-py")
        for is_last_try in (False, True):
            try:
                return call(self.handle(uuid), *arguments)
            except pynvml.NVMLError as error:
                if error.value != UNINITIALIZED or is_last_try:
                    raise device_error(error.value, f"{action} of {uuid}") from error
                self._process_id = None
        raise AssertionError("unreachable")

    def read_driver_version(self) -> str:
        """From `nvmlSystemGetDriverVersion`.

        Raises:
            DeviceError: The call failed.
        """
        return str(self._call("reading the version of the driver", "nvmlSystemGetDriverVersion"))

    def _call(self, action: str, function: str) -> Any:
        """Call an NVML function that concerns no single GPU. Raises `DeviceError`."""
        import pynvml

        if self._process_id != os.getpid():
            self._open()
        try:
            return getattr(pynvml, function)()
        except pynvml.NVMLError as error:
            raise device_error(error.value, action) from error

    def _find_handle(self, uuid: str) -> Any:
        """Look for a GPU the session does not know yet, or has lost sight of."""
        import pynvml

        self.read_uuids()
        if uuid not in self._handles:
            self._handles[uuid] = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        return self._handles[uuid]

    def _open_device(self, index: int) -> str:
        """The UUID of a GPU, whose handle is kept; empty if it does not answer, which must not hide the others."""
        import pynvml

        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = str(pynvml.nvmlDeviceGetUUID(handle))
        except pynvml.NVMLError:
            return ""
        self._handles[uuid] = handle
        return uuid

    def _open(self) -> None:
        import pynvml

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise device_error(error.value, "opening NVML") from error
        self._handles = {}
        self._process_id = os.getpid()


class NvmlGpu:
    """An NVIDIA GPU. See `Gpu` for what each method does.

    Args:
        session: Shared by the GPUs of one discovery.
        uuid: Which GPU.

    Raises:
        DeviceError: The GPU does not answer.
    """

    is_simulated = False

    def __init__(self, session: NvmlSession, uuid: str) -> None:
        import pynvml

        self.uuid = uuid
        self._session = session
        # The two calls at the edges of every window go to the binding directly. Whatever goes wrong with one is sorted
        # out by making it again through the session, which knows about forks and errors.
        self._nvml_error = pynvml.NVMLError
        self._get_energy = pynvml.nvmlDeviceGetTotalEnergyConsumption
        self._power_field = FieldReader(_POWER_INSTANT_FIELD)
        self.name = str(self._call("reading the name", "nvmlDeviceGetName"))
        self._architecture = self._find_architecture()
        self._has_instant_power = self._find_instant_power()

    @cached_property
    def energy_counter_period_seconds(self) -> float:
        """Found out by watching the counter, for a quarter of a second at most, when it is asked for first."""
        try:
            watched_seconds = watch_counter_period_seconds(self.read_energy_counter_joules)
        except DeviceError:
            watched_seconds = None
        usual_seconds = _VOLTA_PERIOD_SECONDS if self._architecture == _VOLTA else _PERIOD_SECONDS
        return watched_seconds or usual_seconds

    @property
    def power_average_seconds(self) -> float:
        """0 with the instant-power field; else as NVML says of its power usage: 1 from Ampere on, but for GA100."""
        is_of_the_moment = self._architecture < _AMPERE or any(name in self.name for name in _GA100)
        return 0.0 if self._has_instant_power or is_of_the_moment else 1.0

    def read_driver_version(self) -> str:
        """That of the session's driver."""
        return self._session.read_driver_version()

    def read_energy_counter_joules(self) -> float:
        """From `nvmlDeviceGetTotalEnergyConsumption`; Volta and later have it."""
        try:
            energy_millijoules = self._get_energy(self._session.handle(self.uuid))
        except self._nvml_error:
            energy_millijoules = self._call("reading the energy counter", "nvmlDeviceGetTotalEnergyConsumption")
        return joules_from_millijoules(energy_millijoules)

    def read_power_watts(self) -> float:
        """From the instant-power field where the driver has it, else from `nvmlDeviceGetPowerUsage`."""
        if self._has_instant_power:
            try:
                code, power_milliwatts = self._power_field.read(self._session.handle(self.uuid))
            except self._nvml_error as error:
                code, power_milliwatts = error.value, 0
            if code == 0:
                return watts_from_milliwatts(power_milliwatts)
            return self._read_instant_power_again_watts()
        return watts_from_milliwatts(self._call("reading the power", "nvmlDeviceGetPowerUsage"))

    def read_power_limit_watts(self) -> float:
        """From `nvmlDeviceGetPowerManagementLimit`."""
        return watts_from_milliwatts(self._call("reading the power limit", "nvmlDeviceGetPowerManagementLimit"))

    def read_enforced_power_limit_watts(self) -> float:
        """From `nvmlDeviceGetEnforcedPowerLimit`."""
        return watts_from_milliwatts(self._call("reading the enforced power limit", "nvmlDeviceGetEnforcedPowerLimit"))

    def read_default_power_limit_watts(self) -> float:
        """From `nvmlDeviceGetPowerManagementDefaultLimit`."""
        return watts_from_milliwatts(
            self._call("reading the default power limit", "nvmlDeviceGetPowerManagementDefaultLimit")
        )

    def read_power_limit_range_watts(self) -> PowerRange:
        """From `nvmlDeviceGetPowerManagementLimitConstraints`."""
        lowest_milliwatts, highest_milliwatts = self._call(
            "reading the range of power limits", "nvmlDeviceGetPowerManagementLimitConstraints"
        )
        return PowerRange(watts_from_milliwatts(lowest_milliwatts), watts_from_milliwatts(highest_milliwatts))

    def set_power_limit(self, limit_watts: float) -> None:
        """Through `nvmlDeviceSetPowerManagementLimit`, which takes some milliseconds and needs root."""
        limit_watts = self.read_power_limit_range_watts().checked(limit_watts, self.name)
        self._control(
            f"sudo nvidia-smi -i {self.uuid} -pl {limit_watts:g}",
            "setting the power limit",
            "nvmlDeviceSetPowerManagementLimit",
            milliwatts_from_watts(limit_watts),
        )

    def read_sm_clock_mhz(self) -> int:
        """From `nvmlDeviceGetClockInfo` of the SM domain."""
        import pynvml

        return int(self._call("reading the SM clock", "nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM))

    def read_supported_sm_clocks_mhz(self) -> tuple[int, ...]:
        """The graphics clocks at the highest memory clock: NVML states SM and graphics clocks as one."""
        memory_clocks_mhz = self._call("reading the memory clocks", "nvmlDeviceGetSupportedMemoryClocks")
        if not memory_clocks_mhz:
            raise NotSupportedError(f"{self.name} states no supported clocks")
        clocks_mhz = self._call(
            "reading the supported clocks", "nvmlDeviceGetSupportedGraphicsClocks", max(memory_clocks_mhz)
        )
        return tuple(sorted(clocks_mhz, reverse=True))

    def lock_sm_clock(self, clock_mhz: int) -> None:
        """Through `nvmlDeviceSetGpuLockedClocks`, which takes about 10 ms and needs root."""
        supported = self.read_supported_sm_clocks_mhz()
        if clock_mhz not in supported:
            raise UsageError(f"clock_mhz is {clock_mhz!r}; {self.name} supports {', '.join(map(str, supported))}")
        self._control(
            f"sudo nvidia-smi -i {self.uuid} -lgc {clock_mhz}",
            "locking the SM clock",
            "nvmlDeviceSetGpuLockedClocks",
            clock_mhz,
            clock_mhz,
        )

    def unlock_sm_clock(self) -> None:
        """Through `nvmlDeviceResetGpuLockedClocks`."""
        self._control(
            f"sudo nvidia-smi -i {self.uuid} -rgc", "unlocking the SM clock", "nvmlDeviceResetGpuLockedClocks"
        )

    def _call(self, action: str, function: str, *arguments: object) -> Any:
        return self._session.call(self.uuid, action, function, *arguments)

    def _control(self, command: str, action: str, function: str, *arguments: object) -> None:
        """Call a function that changes the hardware; `command` does the same from an admin's shell."""
        try:
            self._call(action, function, *arguments)
        except PermissionDeniedError as error:
            raise PermissionDeniedError(
                f"{error}; run with that right (in a container: --cap-add=SYS_ADMIN), or let an admin do it: {command}"
            ) from error

    def _read_instant_power_again_watts(self) -> float:
        (field,) = self._call("reading the instant power", "nvmlDeviceGetFieldValues", [_POWER_INSTANT_FIELD])
        if field.nvmlReturn != 0:
            raise device_error(field.nvmlReturn, f"reading the instant power of {self.uuid}")
        return watts_from_milliwatts(field.value.uiVal)

    def _find_instant_power(self) -> bool:
        try:
            (field,) = self._call("looking for the instant power", "nvmlDeviceGetFieldValues", [_POWER_INSTANT_FIELD])
        except DeviceError:
            return False
        return field.nvmlReturn not in _FIELD_UNKNOWN

    def _find_architecture(self) -> int:
        try:
            return int(self._call("reading the architecture", "nvmlDeviceGetArchitecture"))
        except DeviceError:
            return _VOLTA if "V100" in self.name else _AMPERE


def _read_mig_uuids(handle: Any) -> list[str]:
    """The UUIDs of a GPU's MIG devices; none where it is not partitioned."""
    import pynvml

    uuids: list[str] = []
    try:
        for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            uuids.append(str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))))
    except pynvml.NVMLError:
        pass  # behind the last one, or not a GPU that can be partitioned
    return uuids
