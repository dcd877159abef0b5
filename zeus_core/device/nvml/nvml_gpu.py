"""One NVIDIA GPU, read and controlled through NVML."""

from __future__ import annotations

from typing import Any

from zeus_core.device.gpu import Gpu, PowerRange
from zeus_core.device.nvml._energy_counter import compare_counter, may_be_of_module, watch_counter_period_seconds
from zeus_core.device.nvml._mig import MigProcess, read_other_processes
from zeus_core.device.nvml.board_settings import (
    LimitScope,
    PowerProfiles,
    find_limit_scope,
    read_limit,
    read_profiles,
    set_limit,
    set_profiles,
)
from zeus_core.device.nvml.nvml_session import FieldReader, NvmlSession, Question
from zeus_core.device.nvml.return_codes import device_error
from zeus_core.device.retry import retried
from zeus_core.errors import DeviceError, NotSupportedError, PermissionDeniedError, UsageError
from zeus_core.kinds import POWER_LIMIT, POWER_PROFILE, SM_CLOCK
from zeus_core.units import joules_from_millijoules, milliwatts_from_watts, watts_from_milliwatts

_VOLTA, _AMPERE = 5, 7  # nvmlDeviceArchitecture_t
_JETSON = ("(nvgpu)", "Tegra", "Xavier", "Orin", "Thor")
_GA100 = ("A100", "A30", "A800")
_POWER_INSTANT_FIELD = 186  # NVML_FI_DEV_POWER_INSTANT: power without the one-second average of Ampere and later
_MODULE_SCOPE = 1  # nvmlPowerScopeType_t
_FIELD_UNKNOWN = frozenset({2, 3, 13})  # an older driver may call a field it does not know an invalid argument
# For a counter that cannot be watched: the usual periods of V100 and of later GPUs, as published for their power
# readings (Yang et al., "Part-time Power Measurements: nvidia-smi's Lack of Attention", SC24).
_VOLTA_PERIOD_SECONDS = 0.02
_PERIOD_SECONDS = 0.1


class NvmlGpu(Gpu):
    """An NVIDIA GPU. The docstrings of its methods name the NVML function each one calls.

    Args:
        session: The connection, shared by the GPUs of one discovery.
        uuid: The UUID of the GPU.

    Raises:
        DeviceError: The GPU does not answer.
    """

    driver: str | None = "nvml"

    def __init__(self, session: NvmlSession, uuid: str) -> None:
        import pynvml

        self.uuid = uuid
        self._session = session
        # The two calls at the edges of every window go to the binding directly: by the session a window takes 2.4 times
        # as long as its bare calls, and directly 1.9 (benchmarks/window_overhead.py, 2026-11-28). If one fails, it is
        # made again through the session, which handles forks and errors.
        self._nvml_error = pynvml.NVMLError
        self._get_energy = pynvml.nvmlDeviceGetTotalEnergyConsumption
        self._power_field = FieldReader(_POWER_INSTANT_FIELD)
        # Read once, by the first who needs them: `cached_property` has one lock for all objects before Python 3.12, so
        # that all GPUs would wait for one that hangs.
        self._counter_period_seconds: float | None = None
        self._is_counter_used = False
        self.no_counter_because: str | None = None
        """Why the energy counter is not used, once it has been read; None if it is used, or there is none."""
        self._limit_scope: LimitScope | None = None
        # The ranges that the board accepts never change, and reading them before each change would take long.
        self._power_range: PowerRange | None = None
        self._supported_clocks_mhz: tuple[int, ...] | None = None
        self.name: str = str(retried(lambda: self._call("reading the name", "nvmlDeviceGetName")))
        self._architecture = self._find_architecture()
        self._has_instant_power = self._find_instant_power()
        # Without that field, NVML documents its power usage as a mean of 1 s from Ampere on, except GA100.
        is_of_the_moment = self._architecture < _AMPERE or any(word in self.name for word in _GA100)
        self.power_average_seconds: float = 0.0 if self._has_instant_power or is_of_the_moment else 1.0
        if any(word in self.name for word in _JETSON):
            self.no_power_because: str | None = (
                "power is not reported through NVML on Jetson: the sensors of the board show it, see `jtop`"
            )

    @property
    def energy_counter_period_seconds(self) -> float:  # type: ignore[override]  # found when it is first needed
        """Measured by watching the counter, for half a second at most, when it is read first."""
        if self._counter_period_seconds is None:
            self._counter_period_seconds = self._watch_counter_period_seconds()
        return self._counter_period_seconds

    def read_driver_version(self) -> str:
        """Read the version of the driver."""
        return self._session.read_driver_version()

    def read_energy_counter_joules(self) -> float:
        """Call `nvmlDeviceGetTotalEnergyConsumption`; Volta and later have it, where it does not cover a module."""
        if not self._is_counter_used:
            self._compare_counter()
        try:
            energy_millijoules = self._get_energy(self._session.handle(self.uuid))
        except self._nvml_error:
            energy_millijoules = self._call("reading the energy counter", "nvmlDeviceGetTotalEnergyConsumption")
        return joules_from_millijoules(energy_millijoules)

    def read_power_watts(self) -> float:
        """Read the instant-power field if the driver has it; otherwise call `nvmlDeviceGetPowerUsage`."""
        if self._has_instant_power:
            try:
                code, power_milliwatts = self._power_field.read(self._session.handle(self.uuid))
            except self._nvml_error as error:
                code, power_milliwatts = error.value, 0
            if code == 0:
                return watts_from_milliwatts(power_milliwatts)
            return self._read_instant_power_again_watts()
        return watts_from_milliwatts(self._call("reading the power", "nvmlDeviceGetPowerUsage"))

    def read_temperature_celsius(self) -> float:
        """Call `nvmlDeviceGetTemperature` of the chip."""
        return float(self._call("reading the temperature", "nvmlDeviceGetTemperature", 0))

    def read_utilization(self) -> float:
        """Call `nvmlDeviceGetUtilizationRates`."""
        return float(self._call("reading the utilization", "nvmlDeviceGetUtilizationRates").gpu) / 100

    def read_memory_bytes(self) -> tuple[int, int]:
        """Call `nvmlDeviceGetMemoryInfo`."""
        memory = self._call("reading the memory", "nvmlDeviceGetMemoryInfo")
        return int(memory.used), int(memory.total)

    def read_persistence_mode(self) -> bool:
        """Call `nvmlDeviceGetPersistenceMode`."""
        return bool(self._call("reading the persistence mode", "nvmlDeviceGetPersistenceMode"))

    def read_process_ids(self) -> list[int]:
        """Call `nvmlDeviceGetComputeRunningProcesses`."""
        found = self._call("reading the processes", "nvmlDeviceGetComputeRunningProcesses_v3")
        return [int(one.pid) for one in found]

    def read_power_limit_watts(self) -> float:
        """Call `nvmlDeviceGetPowerManagementLimit`."""
        return self._read_limit_watts("requested", "reading the power limit")

    def read_enforced_power_limit_watts(self) -> float:
        """Call `nvmlDeviceGetEnforcedPowerLimit`."""
        return self._read_limit_watts("enforced", "reading the enforced power limit")

    def read_default_power_limit_watts(self) -> float:
        """Call `nvmlDeviceGetPowerManagementDefaultLimit`."""
        return self._read_limit_watts("default", "reading the default power limit")

    def read_power_limit_range_watts(self) -> PowerRange:
        """Call `nvmlDeviceGetPowerManagementLimitConstraints`."""
        action = "reading the range of power limits"
        if self._find_limit_scope() is LimitScope.GPU:
            return PowerRange(self._read_limit_watts("lowest", action), self._read_limit_watts("highest", action))
        lowest_milliwatts, highest_milliwatts = self._call(action, "nvmlDeviceGetPowerManagementLimitConstraints")
        return PowerRange(watts_from_milliwatts(lowest_milliwatts), watts_from_milliwatts(highest_milliwatts))

    def set_power_limit(self, limit_watts: float) -> None:
        """Call `nvmlDeviceSetPowerManagementLimit`, which takes some milliseconds and needs root."""
        if self._power_range is None:
            self._power_range = self.read_power_limit_range_watts()
        limit_watts = self._power_range.checked(limit_watts, self.name)
        command, milliwatts = POWER_LIMIT.command([self.uuid], limit_watts), milliwatts_from_watts(limit_watts)
        self._call("setting the power limit", set_limit, self._find_limit_scope(), milliwatts, command=command)

    def read_sm_clock_mhz(self) -> int:
        """Call `nvmlDeviceGetClockInfo` of the SM domain."""
        import pynvml

        return int(self._call("reading the SM clock", "nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM))

    def read_supported_sm_clocks_mhz(self) -> tuple[int, ...]:
        """Read the graphics clocks at the highest memory clock: NVML lists SM and graphics clocks as one."""
        memory_clocks_mhz = self._call("reading the memory clocks", "nvmlDeviceGetSupportedMemoryClocks")
        if not memory_clocks_mhz:
            raise NotSupportedError(f"{self.name} lists no supported clocks")
        clocks_mhz = self._call(
            "reading the supported clocks", "nvmlDeviceGetSupportedGraphicsClocks", max(memory_clocks_mhz)
        )
        return tuple(sorted(clocks_mhz, reverse=True))

    def lock_sm_clock(self, clock_mhz: int) -> None:
        """Call `nvmlDeviceSetGpuLockedClocks`, which takes about 10 ms and needs root."""
        if self._supported_clocks_mhz is None:
            self._supported_clocks_mhz = self.read_supported_sm_clocks_mhz()
        supported = self._supported_clocks_mhz
        if clock_mhz not in supported:
            raise UsageError(f"clock_mhz is {clock_mhz!r}; {self.name} supports {', '.join(map(str, supported))}")
        command = SM_CLOCK.command([self.uuid], clock_mhz)
        self._call("locking the SM clock", "nvmlDeviceSetGpuLockedClocks", clock_mhz, clock_mhz, command=command)

    def unlock_sm_clock(self) -> None:
        """Call `nvmlDeviceResetGpuLockedClocks`."""
        command = SM_CLOCK.command([self.uuid], None)
        self._call("unlocking the SM clock", "nvmlDeviceResetGpuLockedClocks", command=command)

    def read_power_profiles(self) -> PowerProfiles:
        """Call `nvmlDeviceWorkloadPowerProfileGetCurrentProfiles`, which Blackwell and later have."""
        profiles: PowerProfiles = self._call("reading the power profiles", read_profiles)
        return profiles

    def set_power_profiles(self, mask: int) -> None:
        """Call `nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1`, or what older drivers have, which needs root."""
        command = POWER_PROFILE.command([self.uuid], mask)
        self._call("setting the power profiles", set_profiles, mask, command=command)

    def read_other_mig_processes(self, process_id: int) -> list[MigProcess] | None:
        """Call `nvmlDeviceGetComputeRunningProcesses` of a board in MIG mode; see `read_other_processes`."""
        return read_other_processes(self._session, self.uuid, process_id)

    def _watch_counter_period_seconds(self) -> float:
        try:
            watched_seconds = watch_counter_period_seconds(self.read_energy_counter_joules)
        except DeviceError:
            watched_seconds = None
        usual_seconds = _VOLTA_PERIOD_SECONDS if self._architecture == _VOLTA else _PERIOD_SECONDS
        return watched_seconds or usual_seconds

    def _compare_counter(self) -> None:
        """Find out once whether the counter covers more than the GPU. A fault leaves it to the next reading.

        Raises:
            NotSupportedError: It does.
        """
        if self.no_counter_because is not None:
            raise NotSupportedError(self.no_counter_because)
        self._is_counter_used = True
        power_field = FieldReader(_POWER_INSTANT_FIELD, _MODULE_SCOPE)

        def read_module_watts() -> float | None:
            code, power_milliwatts = power_field.read(self._session.handle(self.uuid))
            return watts_from_milliwatts(power_milliwatts) if code == 0 else None

        try:
            has_module_limit = self._find_limit_scope() is not LimitScope.BOARD
            if may_be_of_module(self.name, has_module_limit, self.read_power_watts(), read_module_watts()):
                reason = compare_counter(self.read_energy_counter_joules, self.read_power_watts, read_module_watts)
                if reason is not None:
                    self.no_counter_because = f"{reason}; the energy is that of the GPU, by its power"
        except (DeviceError, self._nvml_error):
            self._is_counter_used = False
        if self.no_counter_because is not None:
            self._is_counter_used = False
            raise NotSupportedError(self.no_counter_because)

    def _read_limit_watts(self, which: str, action: str) -> float:
        return watts_from_milliwatts(self._call(action, read_limit, self._find_limit_scope(), which))

    def _find_limit_scope(self) -> LimitScope:
        if self._limit_scope is None:
            self._limit_scope = self._call("looking for the scope of the power limit", find_limit_scope)
        return self._limit_scope

    def _call(self, action: str, function: str | Question, *arguments: object, command: str | None = None) -> Any:
        """Call a function about this GPU. `command` makes the same change from an admin's shell."""
        try:
            return self._session.call(self.uuid, action, function, *arguments)
        except PermissionDeniedError as error:
            if command is None:
                raise
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
            (field,) = retried(
                lambda: self._call("looking for the instant power", "nvmlDeviceGetFieldValues", [_POWER_INSTANT_FIELD])
            )
        except DeviceError:
            return False
        return field.nvmlReturn not in _FIELD_UNKNOWN

    def _find_architecture(self) -> int:
        try:
            return int(retried(lambda: self._call("reading the architecture", "nvmlDeviceGetArchitecture")))
        except DeviceError:
            return _VOLTA if "V100" in self.name else _AMPERE
