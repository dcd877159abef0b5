"""One device of the driver, as a test describes it, changes it and knows the truth about it."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tests.nvml_driver.physics import Regime, Segment, milliwatts, nanoseconds, picojoules
from tests.nvml_driver.spec import DeviceSpec, fill_record
from tests.nvml_driver.state import ANY, FOREVER, NEVER, DeviceRecord, RegimeRecord, State

__all__ = ["NvmlDevice", "StateFile"]


class StateFile:
    """The mapped state and the functions that change it, for the parts of the Python side.

    Args:
        library: The opened driver.
        state: Mapped from the file.
    """

    def __init__(self, library: ctypes.CDLL, state: State) -> None:
        self.library = library
        self.state = state

    @contextmanager
    def locked(self) -> Iterator[State]:
        """The state, while no other process or thread uses it."""
        self.library.zeus_test_nvml_lock(self.state)
        try:
            yield self.state
        finally:
            self.library.zeus_test_nvml_unlock(self.state)

    @property
    def now_nanoseconds(self) -> int:
        """The driver's time."""
        return int(self.state.clock_nanoseconds) or time.monotonic_ns()

    def add_fault(self, function: str | None, device_index: int, code: int, times: int | None) -> None:
        """Put a fault behind those that are still to happen, unless it is there already and stays for good."""
        remaining = FOREVER if times is None else times
        fault = (self.function_number(function), device_index, code, remaining)
        with self.locked() as state:
            faults = [(f.function, f.device, f.code, f.remaining) for f in state.faults if f.remaining]
            if fault in faults and remaining == FOREVER:
                return
            for i, values in enumerate([*faults, fault]):
                state.faults[i] = values
            for i in range(len(faults) + 1, len(state.faults)):
                state.faults[i].remaining = 0

    def function_number(self, function: str | None) -> int:
        """The number of a function by its name in pynvml; None is any of them."""
        if function is None:
            return ANY
        names = self.read_function_names()
        if function not in names:
            raise ValueError(f"the NVML driver for tests has no function {function!r}; it has {', '.join(names)}")
        return names.index(function)

    def read_function_names(self) -> list[str]:
        """Names as in pynvml, by number."""
        count = len(self.state.latency_microseconds)
        return [name.decode() for i in range(count) if (name := self.library.zeus_test_nvml_function(i))]


class NvmlDevice:
    """A device as a test sees it. Moments are seconds of the driver's time: `time.monotonic()`, unless it has a clock.

    Args:
        file: The state that holds the device.
        index: The number of the device.
        spec: Its description.
    """

    def __init__(self, file: StateFile, index: int, spec: DeviceSpec) -> None:
        self.index = index
        self.spec = spec
        self._file = file
        self._record: DeviceRecord = file.state.devices[index]
        fill_record(self._record, index, spec)
        self.uuid: str = self._record.uuid.decode()
        self.name = spec.name
        self.set_load(spec.idle_watts)

    # What it draws

    def set_load(
        self, load: float | Iterable[tuple[float, float]], *, repeat: bool = False, start_seconds: float | None = None
    ) -> None:
        """Give the device something to do from now on.

        Args:
            load: Watts, or segments (seconds, watts), one after the other. The last one is held.
            repeat: Instead, begin again after the last segment, for ever.
            start_seconds: Where the script starts; what lies before now is skipped, and until a start in the future
                the device idles. None: now.
        """
        segments = [(1.0, load)] if isinstance(load, int | float) else list(load)
        record = RegimeRecord(
            start_nanoseconds=self._file.now_nanoseconds if start_seconds is None else nanoseconds(start_seconds),
            repeats=repeat,
            segment_count=len(segments),
        )
        if not 1 <= len(segments) <= len(record.segments):
            raise ValueError(f"load has {len(segments)} segments; 1 to {len(record.segments)} are possible")
        for i, (duration_seconds, power_watts) in enumerate(segments):
            if duration_seconds <= 0 or power_watts < 0:
                raise ValueError(f"load has the segment {(duration_seconds, power_watts)}; use (0.5, 300.0)")
            record.segments[i] = (nanoseconds(duration_seconds), milliwatts(power_watts))
        self._file.library.zeus_test_nvml_set_load(self._file.state, self.index, record)

    def true_energy_joules(self, begin_seconds: float, end_seconds: float) -> float:
        """The energy drawn between two moments, whatever the counter says."""
        begin, end = nanoseconds(begin_seconds), nanoseconds(end_seconds)
        return (self.true_energy_picojoules_until(end) - self.true_energy_picojoules_until(begin)) / 1e12

    def true_energy_until(self, moment_seconds: float) -> float:
        """The joules drawn since the driver started, whatever the counter says."""
        return self.true_energy_picojoules_until(nanoseconds(moment_seconds)) / 1e12

    def true_power_watts(self, moment_seconds: float) -> float:
        """The power drawn at a moment."""
        moment = nanoseconds(moment_seconds)
        return (self.true_energy_picojoules_until(moment + 1) - self.true_energy_picojoules_until(moment)) / 1e3

    def true_energy_picojoules_until(self, moment_nanoseconds: int) -> int:
        """The same to the picojoule; moments in the future assume that nothing changes any more."""
        return self.read_regime_at(moment_nanoseconds).energy_until(moment_nanoseconds)

    def computed_in_c_picojoules_until(self, moment_nanoseconds: int) -> int:
        """The true energy once more, as the library that answers the calls computes it."""
        energy = self._file.library.zeus_test_nvml_energy_until(self._file.state, self.index, moment_nanoseconds)
        return int(energy)

    def read_regime_at(self, moment_nanoseconds: int) -> Regime:
        """The load and limit in force at a moment; before the start of the driver, the first.

        Raises:
            ValueError: The load or limit has been changed so often since that this is forgotten.
        """
        with self._file.locked():
            count, kept = self._record.regime_count, len(self._record.regimes)
            for i in range(count - 1, max(0, count - kept) - 1, -1):
                record = self._record.regimes[i % kept]
                if record.begin_nanoseconds <= moment_nanoseconds or i == 0:
                    return _read_regime(record, self._record.idle_milliwatts)
        raise ValueError(f"{kept} changes of load or limit are kept; those of {moment_nanoseconds} ns are forgotten")

    def move_history_to(self, moment_nanoseconds: int) -> None:
        """Let the latest change of load or limit be at this moment, and all before as long before it as it was."""
        with self._file.locked():
            count, regimes = self._record.regime_count, self._record.regimes
            shift = moment_nanoseconds - regimes[(count - 1) % len(regimes)].begin_nanoseconds
            self._record.start_nanoseconds += shift
            for regime in regimes[: min(count, len(regimes))]:
                regime.begin_nanoseconds += shift
                regime.start_nanoseconds += shift

    # Its energy counter

    def counter_joules_at(self, moment_seconds: float) -> float:
        """Return the energy counter's value at a moment, in its present mode."""
        return self.counter_millijoules_at(nanoseconds(moment_seconds)) / 1e3

    def counter_millijoules_at(self, moment_nanoseconds: int) -> int:
        """The same, to the millijoule."""
        counted_until: int = self._file.library.zeus_test_nvml_counted_until(
            self._file.state, self.index, moment_nanoseconds
        )
        offset: int = self._record.counter_offset_picojoules
        return max(0, self._module_picojoules_until(counted_until) + offset) // 10**9

    def stick_counter(self, since_seconds: float | None = None) -> None:
        """Let the counter stand still from a moment on, for good unless it is released. None: now."""
        self._write(counter_stuck_nanoseconds=self._moment(since_seconds))

    def release_counter(self) -> None:
        """Let a counter that was stuck jump to the true energy and go on."""
        self._write(counter_stuck_nanoseconds=NEVER)

    def release_counter_with_a_loss(self) -> None:
        """Let a counter that was stuck go on from what it shows: the energy since is lost."""
        shown = self.counter_millijoules_at(self._file.now_nanoseconds)
        self._write(counter_stuck_nanoseconds=NEVER)
        missing = self.counter_millijoules_at(self._file.now_nanoseconds) - shown
        self._write(counter_offset_picojoules=self._record.counter_offset_picojoules - missing * 10**9)

    def reset_counter(self, to_joules: float = 0.0) -> None:
        """Let the counter start again at a value, as after a reload of the driver."""
        now = self._file.now_nanoseconds
        offset = picojoules(to_joules) - self._module_picojoules_until(now)
        self._write(counter_offset_picojoules=offset)

    def shift_counter(self, by_joules: float) -> None:
        """Let the counter show so much more, or less but not below 0."""
        self._write(counter_offset_picojoules=self._record.counter_offset_picojoules + picojoules(by_joules))

    def remove_counter(self) -> None:
        """Take the energy counter away: it is not supported from now on."""
        self._write(has_energy_counter=False)

    def remove_instant_power(self) -> None:
        """Take the fields of average and instant power away."""
        self._write(has_instant_power=False)

    # Its power sensor

    def scale_power(self, gain: float) -> None:
        """Let every reading of the power show so many times what is drawn. The counter stays right."""
        self._write(power_gain_permille=round(1000 * gain))

    def spike_power(self, watts: float, times: int | None = 1, every: int = 1) -> None:
        """Let readings of the power show garbage.

        Args:
            watts: What they show.
            times: How many readings; None: without an end. 0 ends it.
            every: One in so many, the first after so many.
        """
        left = FOREVER if times is None else times
        self._write(spike_milliwatts=milliwatts(watts), spike_every=every, spikes_left=left, power_readings=0)

    # Its settings

    @property
    def power_limit_watts(self) -> float:
        """The limit requested last. Setting it here is what an admin does from elsewhere: allowed, not logged."""
        return float(self._record.limit_milliwatts) / 1e3

    @power_limit_watts.setter
    def power_limit_watts(self, limit_watts: float) -> None:
        self._set_limit(milliwatts(limit_watts), self._record.enforced_cap_milliwatts)

    @property
    def enforced_cap_watts(self) -> float | None:
        """The enforced limit is no higher than this; None: it is the one requested."""
        return self._record.enforced_cap_milliwatts / 1e3 or None

    @enforced_cap_watts.setter
    def enforced_cap_watts(self, cap_watts: float | None) -> None:
        self._set_limit(self._record.limit_milliwatts, milliwatts(cap_watts or 0.0))

    @property
    def module_limit_watts(self) -> float:
        """The limit of the whole module, on a board that has one."""
        return float(self._record.module_limit_milliwatts) / 1e3

    @property
    def locked_clock_mhz(self) -> int | None:
        """The highest SM clock allowed by a lock, None without a lock. Setting it is what an admin does, not logged."""
        return int(self._record.locked_highest_mhz) or None

    @locked_clock_mhz.setter
    def locked_clock_mhz(self, clock_mhz: int | None) -> None:
        self._write(locked_lowest_mhz=clock_mhz or 0, locked_highest_mhz=clock_mhz or 0)

    def set_temperature(self, celsius: int) -> None:
        """Let the chip have a temperature from now on."""
        self._write(temperature_celsius=celsius)

    @property
    def requested_profiles(self) -> int:
        """The workload power profiles requested last. Setting them here is what an admin does, not logged."""
        return int(self._record.requested_profiles)

    @requested_profiles.setter
    def requested_profiles(self, mask: int) -> None:
        self._write(requested_profiles=mask)

    def block_profiles(self, mask: int) -> None:
        """Let the board enforce none of these, from now on, whatever is requested."""
        self._write(blocked_profiles=mask)

    def refuse_profiles(self, mask: int) -> None:
        """Let requests of these fail."""
        self._write(refused_profiles=mask)

    def let_conflict(self, one: int, other: int) -> None:
        """Let the board drop the second of two profiles, by their ids, while the first is enforced."""
        self._record.profile_conflicts[other] |= 1 << one

    def take_limits(self, step_watts: float = 0.0, floor_watts: float = 0.0, offset_watts: float = 0.0) -> None:
        """Let the device take other limits than those requested, without an error. Without arguments, the same ones.

        Args:
            step_watts: Limits are rounded to a multiple of this: down, unless `round_up` was called.
            floor_watts: Lower limits are raised to this.
            offset_watts: So much less is taken.
        """
        self._write(
            limit_step_milliwatts=milliwatts(step_watts),
            limit_floor_milliwatts=milliwatts(floor_watts),
            limit_offset_milliwatts=milliwatts(offset_watts),
        )

    def take_clocks(self, step_mhz: int = 0, floor_mhz: int = 0) -> None:
        """Let the device lock other clocks than those requested, as `take_limits` does with limits."""
        self._write(clock_step_mhz=step_mhz, clock_floor_mhz=floor_mhz)

    def round_up(self) -> None:
        """Let the device round limits and clocks up."""
        self._write(rounds_up=True)

    def ignore_settings(self, is_ignoring: bool = True) -> None:
        """Let calls that set a limit or a clock succeed without an effect."""
        self._write(ignores_settings=is_ignoring)

    def refuse_module_limit(self) -> None:
        """Give the device a limit of its own beside that of its module, which calls without a scope may not set."""
        self._write(limit_scopes=1)
        self.fail("nvmlDeviceSetPowerManagementLimit", 4)  # NVML_ERROR_NO_PERMISSION

    @property
    def persistence_mode(self) -> int:
        """0 or 1."""
        return int(self._record.persistence_mode)

    # Those that use it

    def set_processes(self, *processes: tuple[int, int, int]) -> None:
        """Let processes compute on the device from now on, and no others.

        Args:
            *processes: The id of the process, the GPU instance and the compute instance. Those of the MIG device i are
                i + 1 and 0; without MIG mode, both are 2**32 - 1.
        """
        with self._file.locked():
            self._record.process_count = len(processes)
            self._record.processes[: len(processes)] = list(processes)

    # Its faults

    def fail(self, function: str | None, code: int, times: int | None = None) -> None:
        """Let calls on this device return an NVML error.

        Args:
            function: Name in pynvml, `nvmlDeviceGetPowerUsage`; None: every function.
            code: nvmlReturn_t.
            times: How many calls fail; None: all of them, until `NvmlDriver.clear_faults`.
        """
        self._file.add_fault(function, self.index, code, times)

    def lose(self, since_seconds: float | None = None) -> None:
        """Let the device fall off the bus: from this moment on every call says GPU_IS_LOST. None: now."""
        self._write(lost_nanoseconds=self._moment(since_seconds))

    def hang(self, function: str | None) -> None:
        """Let calls of a function on this device, or of all for None, not return until `release`."""
        number = self._file.function_number(function)
        self._write(hung_functions=2**64 - 1 if number == ANY else self._record.hung_functions | 1 << number)

    def release(self) -> None:
        """Let the calls that hang go on, as those that follow."""
        self._write(hung_functions=0)

    def recover(self) -> None:
        """Put a lost device back on the bus."""
        self._write(lost_nanoseconds=NEVER)

    def deny_control(self) -> None:
        """Let calls that change the device return NO_PERMISSION."""
        self._write(is_control_denied=True)

    def allow_control(self) -> None:
        """Let calls that change the device work, of every user."""
        self._write(is_control_denied=False, needs_root=False)

    def _set_limit(self, limit_milliwatts: int, cap_milliwatts: int) -> None:
        self._file.library.zeus_test_nvml_set_limit(self._file.state, self.index, limit_milliwatts, cap_milliwatts)

    def _module_picojoules_until(self, moment_nanoseconds: int) -> int:
        """What the counter counts: the GPU, and the rest of its module."""
        rest: int = self._record.rest_of_module_milliwatts * (moment_nanoseconds - self._record.start_nanoseconds)
        return self.true_energy_picojoules_until(moment_nanoseconds) + rest

    def _moment(self, seconds: float | None) -> int:
        return self._file.now_nanoseconds if seconds is None else nanoseconds(seconds)

    def _write(self, **fields: int) -> None:
        with self._file.locked():
            for name, value in fields.items():
                setattr(self._record, name, value)


def _read_regime(record: RegimeRecord, idle_milliwatts: int) -> Regime:
    return Regime(
        begin_nanoseconds=record.begin_nanoseconds,
        begin_picojoules=record.begin_picojoules,
        start_nanoseconds=record.start_nanoseconds,
        cap_milliwatts=record.cap_milliwatts,
        idle_milliwatts=idle_milliwatts,
        repeats=bool(record.repeats),
        segments=tuple(
            Segment(segment.duration_nanoseconds, segment.power_milliwatts)
            for segment in record.segments[: record.segment_count]
        ),
    )
