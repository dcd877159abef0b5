"""A GPU that did not answer when the GPUs were counted. It keeps its index, so that no other GPU gets it."""

from __future__ import annotations

from typing import NoReturn

from zeus_core.errors import DeviceError


class SilentGpu:
    """A `Gpu` that refuses every call, by the name it was made with.

    Args:
        name: The name for people, such as "GPU 1".
        fault: The reason why it did not answer.
    """

    is_simulated = False
    energy_counter_period_seconds: float = 0.1
    power_average_seconds: float = 0.0

    def __init__(self, name: str, fault: DeviceError) -> None:
        self.name: str = f"{name} (does not answer)"
        self.uuid: str = f"unknown: {name}"
        self.fault: DeviceError = type(fault)(
            f"{name} does not answer, and no other takes its index: {fault}; try again, or name the GPUs to use by "
            "UUID in CUDA_VISIBLE_DEVICES (`nvidia-smi -L` lists them)"
        )
        """The error of every call."""

    def _refuse(self, *_: object) -> NoReturn:
        raise self.fault

    read_energy_counter_joules = _refuse
    read_power_watts = _refuse
    read_power_limit_watts = _refuse
    read_enforced_power_limit_watts = _refuse
    read_default_power_limit_watts = _refuse
    read_power_limit_range_watts = _refuse
    set_power_limit = _refuse
    read_sm_clock_mhz = _refuse
    read_supported_sm_clocks_mhz = _refuse
    lock_sm_clock = _refuse
    unlock_sm_clock = _refuse
