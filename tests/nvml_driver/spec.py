"""The description of a device when the driver starts."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from tests.nvml_driver.physics import milliwatts, nanoseconds, picojoules
from tests.nvml_driver.state import NEVER, DeviceRecord

__all__ = ["DeviceSpec", "fill_record"]

_HOPPER = 9


@dataclass(frozen=True)
class DeviceSpec:
    """A device when the driver starts. The defaults are an idle H200 that lacks nothing.

    Attributes:
        name: Product name.
        uuid: Made from the index if None.
        architecture: nvmlDeviceArchitecture_t: 5 Volta, 7 Ampere, 9 Hopper.
        pci_bus: Made from the index if None.
        lowest_limit_watts: The lowest power limit.
        highest_limit_watts: The highest power limit.
        default_limit_watts: The highest if None.
        power_limit_watts: The original limit; the default if None.
        enforced_cap_watts: The highest enforced limit; the one requested is enforced if None.
        has_power_limit: Whether the board has power limits at all.
        limit_scopes: What they limit: "board"; "gpu and module", as on boards with a CPU in the module, where functions
            without a scope mean the module; or "module" alone.
        module_limit_watts: The limit of the module.
        rest_of_module_watts: What the rest of the module draws, which the energy counter counts too.
        follows_limit: Whether the device draws no more than the enforced limit.
        idle_watts: Power before the first load.
        has_energy_counter: Volta and later have one.
        counter_start_joules: Value of the counter when the driver starts.
        counter_period_seconds: Time between two updates of the counter; 0 for a counter that is always current.
        counter_phase_seconds: Time of the updates after the multiples of the period.
        counter_jitter_seconds: How far each update can be from its time.
        counter_wander_seconds: How far all updates together can be from it, back and forth within 20 s.
        counter_age_seconds: How much earlier than an update the energy is that it shows.
        has_instant_power: Whether the fields 185 and 186 exist.
        missing_field_code: The code of these fields if not: 3 (not supported), or 2 as of some older drivers.
        power_gain: What the power sensor shows, of what is drawn.
        power_average_seconds: Time that `nvmlDeviceGetPowerUsage` averages over; 0 for none.
        sm_clocks_mhz: Highest first; the device runs at the highest one it may. Empty: no clock can be locked.
        memory_clocks_mhz: Highest first.
        is_control_denied: Whether every process lacks the right to change anything.
        needs_root: Whether processes of other users than root lack it.
        persistence_mode: 0 or 1.
        has_mig: Whether the device could be partitioned.
        mig_uuids: One per MIG device; MIG mode is on if there is any.
        processes_need_root: Whether, in MIG mode, root alone can read the processes of the whole device.
        temperature_celsius: That of the chip; 0 if it is not known.
        utilization_percent: The share of time in which it computes.
        profiles: The workload power profiles that the board supports, bit i for the id i; 0 if it has none.
        requested_profiles: Those that are requested when the driver starts.
        has_profile_update: Whether the driver has the function that overwrites them, as from 590 on.
    """

    name: str = "NVIDIA H200"
    uuid: str | None = None
    architecture: int = _HOPPER
    pci_bus: int | None = None
    lowest_limit_watts: float = 200.0
    highest_limit_watts: float = 700.0
    default_limit_watts: float | None = None
    power_limit_watts: float | None = None
    enforced_cap_watts: float | None = None
    has_power_limit: bool = True
    limit_scopes: str = "board"
    module_limit_watts: float = 900.0
    rest_of_module_watts: float = 0.0
    follows_limit: bool = True
    idle_watts: float = 75.0
    has_energy_counter: bool = True
    counter_start_joules: float = 1000.0
    counter_period_seconds: float = 0.1
    counter_phase_seconds: float = 0.0
    counter_jitter_seconds: float = 0.0
    counter_wander_seconds: float = 0.0
    counter_age_seconds: float = 0.0
    has_instant_power: bool = True
    missing_field_code: int = 3
    power_gain: float = 1.0
    power_average_seconds: float = 1.0
    sm_clocks_mhz: Sequence[int] = tuple(range(1980, 330, -15))
    memory_clocks_mhz: Sequence[int] = (3201, 1593)
    is_control_denied: bool = False
    needs_root: bool = False
    persistence_mode: int = 1
    has_mig: bool = True
    mig_uuids: Sequence[str] = ()
    processes_need_root: bool = False
    temperature_celsius: int = 45
    utilization_percent: int = 100
    profiles: int = 0
    requested_profiles: int = 0
    has_profile_update: bool = True


def fill_record(record: DeviceRecord, index: int, spec: DeviceSpec) -> None:
    """Fill the record of a device from its description."""
    device_uuid = spec.uuid or f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'zeus-core test GPU {index}')}"
    default_watts = spec.highest_limit_watts if spec.default_limit_watts is None else spec.default_limit_watts
    limit_watts = default_watts if spec.power_limit_watts is None else spec.power_limit_watts
    record.name, record.uuid = spec.name.encode(), device_uuid.encode()
    record.pci_bus = 0x10 + index if spec.pci_bus is None else spec.pci_bus
    for name in (
        "architecture",
        "has_power_limit",
        "follows_limit",
        "has_energy_counter",
        "has_instant_power",
        "missing_field_code",
        "is_control_denied",
        "needs_root",
        "persistence_mode",
        "has_mig",
        "processes_need_root",
        "temperature_celsius",
        "utilization_percent",
    ):
        setattr(record, name, getattr(spec, name))
    record.supported_profiles, record.requested_profiles = spec.profiles, spec.requested_profiles
    record.lacks_profile_update = not spec.has_profile_update
    record.limit_scopes = ("board", "gpu and module", "module").index(spec.limit_scopes)
    record.module_limit_milliwatts = milliwatts(spec.module_limit_watts)
    record.rest_of_module_milliwatts = milliwatts(spec.rest_of_module_watts)
    record.power_gain_permille = round(1000 * spec.power_gain)
    record.lowest_limit_milliwatts = milliwatts(spec.lowest_limit_watts)
    record.highest_limit_milliwatts = milliwatts(spec.highest_limit_watts)
    record.default_limit_milliwatts = milliwatts(default_watts)
    record.limit_milliwatts = milliwatts(limit_watts)
    record.enforced_cap_milliwatts = milliwatts(spec.enforced_cap_watts or 0.0)
    record.idle_milliwatts = milliwatts(spec.idle_watts)
    record.power_average_nanoseconds = nanoseconds(spec.power_average_seconds)
    record.counter_period_nanoseconds = nanoseconds(spec.counter_period_seconds)
    record.counter_phase_nanoseconds = nanoseconds(spec.counter_phase_seconds)
    record.counter_jitter_nanoseconds = nanoseconds(spec.counter_jitter_seconds)
    record.counter_wander_nanoseconds = nanoseconds(spec.counter_wander_seconds)
    record.counter_age_nanoseconds = nanoseconds(spec.counter_age_seconds)
    record.counter_offset_picojoules = picojoules(spec.counter_start_joules)
    record.lost_nanoseconds = record.counter_stuck_nanoseconds = NEVER
    _fill_array(record, "clocks_mhz", "clock_count", spec.sm_clocks_mhz)
    _fill_array(record, "memory_clocks_mhz", "memory_clock_count", spec.memory_clocks_mhz)
    record.mig_count = len(spec.mig_uuids)
    for i, mig_uuid in enumerate(spec.mig_uuids):
        record.mig_uuids[i].value = mig_uuid.encode()


def _fill_array(record: DeviceRecord, name: str, count_name: str, values: Sequence[int]) -> None:
    setattr(record, count_name, len(values))
    getattr(record, name)[: len(values)] = list(values)
