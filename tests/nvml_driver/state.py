"""The structures of nvml_driver.c, which has their documentation. `check_sizes` fails if the two differ."""

import ctypes
from ctypes import c_char, c_int32, c_int64, c_uint32, c_uint64

__all__ = ["ANY", "FOREVER", "NEVER", "NONE", "DeviceRecord", "LogEntry", "RegimeRecord", "State", "check_sizes"]

NONE = ANY = FOREVER = -1
NEVER = 2**63 - 1  # a moment that does not come, a power that is not reached

_TEXT = c_char * 96


class SegmentRecord(ctypes.Structure):
    _fields_ = (("duration_nanoseconds", c_int64), ("power_milliwatts", c_int64))


class RegimeRecord(ctypes.Structure):
    _fields_ = (
        ("begin_nanoseconds", c_int64),
        ("begin_picojoules", c_int64),
        ("start_nanoseconds", c_int64),
        ("cap_milliwatts", c_int64),
        ("repeats", c_int32),
        ("segment_count", c_int32),
        ("segments", SegmentRecord * 64),
    )


class ProcessRecord(ctypes.Structure):
    _fields_ = (("process_id", c_uint32), ("gpu_instance", c_uint32), ("compute_instance", c_uint32))


class DeviceRecord(ctypes.Structure):
    _fields_ = (
        ("name", _TEXT),
        ("uuid", _TEXT),
        ("mig_uuids", _TEXT * 8),
        ("mig_count", c_uint32),
        ("has_mig", c_uint32),
        ("architecture", c_uint32),
        ("pci_bus", c_uint32),
        ("persistence_mode", c_uint32),
        ("is_control_denied", c_uint32),
        ("needs_root", c_uint32),
        ("has_power_limit", c_uint32),
        ("limit_scopes", c_uint32),
        ("module_limit_milliwatts", c_uint32),
        ("follows_limit", c_uint32),
        ("has_energy_counter", c_uint32),
        ("has_instant_power", c_uint32),
        ("missing_field_code", c_uint32),
        ("lowest_limit_milliwatts", c_uint32),
        ("highest_limit_milliwatts", c_uint32),
        ("default_limit_milliwatts", c_uint32),
        ("limit_milliwatts", c_uint32),
        ("enforced_cap_milliwatts", c_uint32),
        ("idle_milliwatts", c_uint32),
        ("locked_lowest_mhz", c_uint32),
        ("locked_highest_mhz", c_uint32),
        ("clock_count", c_uint32),
        ("memory_clock_count", c_uint32),
        ("clocks_mhz", c_uint32 * 256),
        ("memory_clocks_mhz", c_uint32 * 8),
        ("hung_functions", c_uint64),
        ("lost_nanoseconds", c_int64),
        ("power_average_nanoseconds", c_int64),
        ("counter_period_nanoseconds", c_int64),
        ("counter_phase_nanoseconds", c_int64),
        ("counter_jitter_nanoseconds", c_int64),
        ("counter_wander_nanoseconds", c_int64),
        ("counter_age_nanoseconds", c_int64),
        ("counter_stuck_nanoseconds", c_int64),
        ("counter_offset_picojoules", c_int64),
        ("start_nanoseconds", c_int64),
        ("rest_of_module_milliwatts", c_int64),
        ("power_gain_permille", c_uint32),
        ("spike_milliwatts", c_uint32),
        ("spike_every", c_uint32),
        ("spikes_left", c_int32),
        ("power_readings", c_uint32),
        ("limit_step_milliwatts", c_uint32),
        ("limit_floor_milliwatts", c_uint32),
        ("limit_offset_milliwatts", c_uint32),
        ("clock_step_mhz", c_uint32),
        ("clock_floor_mhz", c_uint32),
        ("rounds_up", c_uint32),
        ("ignores_settings", c_uint32),
        ("supported_profiles", c_uint64),
        ("requested_profiles", c_uint64),
        ("blocked_profiles", c_uint64),
        ("refused_profiles", c_uint64),
        ("profile_conflicts", c_uint64 * 32),
        ("temperature_celsius", c_uint32),
        ("utilization_percent", c_uint32),
        ("lacks_profile_update", c_uint32),
        ("processes_need_root", c_uint32),
        ("process_count", c_uint32),
        ("processes", ProcessRecord * 16),
        ("regime_count", c_int64),
        ("regimes", RegimeRecord * 4096),
    )


class FaultRecord(ctypes.Structure):
    _fields_ = (("function", c_int32), ("device", c_int32), ("code", c_int32), ("remaining", c_int32))


class LogEntry(ctypes.Structure):
    _fields_ = (
        ("nanoseconds", c_int64),
        ("argument", c_int64),
        ("process_id", c_int32),
        ("function", c_int32),
        ("device", c_int32),
        ("code", c_int32),
    )


class State(ctypes.Structure):
    _fields_ = (
        ("size", c_uint64),
        ("mutex", c_uint64 * 8),
        ("driver_version", _TEXT),
        ("device_count", c_uint32),
        ("epoch", c_uint32),
        ("clock_nanoseconds", c_int64),
        ("latency_microseconds", c_int64 * 64),
        ("faults", FaultRecord * 64),
        ("call_count", c_int64),
        ("calls", LogEntry * 16384),
        ("devices", DeviceRecord * 16),
    )


def check_sizes(library: ctypes.CDLL) -> None:
    """Raise if a structure here is not as long as its twin in the library."""
    sizes = (c_uint64 * 4)()
    library.zeus_test_nvml_sizes(sizes)
    expected = [ctypes.sizeof(kind) for kind in (State, DeviceRecord, RegimeRecord, LogEntry)]
    if list(sizes) != expected:
        raise RuntimeError(f"state.py has structures of {expected} bytes, nvml_driver.c of {list(sizes)}")
