"""The interface of all GPUs."""

import math
import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple, Protocol

from zeus_core._identity import THIS_MACHINE
from zeus_core._sysfs import is_place
from zeus_core.errors import DeviceError, UsageError
from zeus_core.validate import shown

SIMULATED_GPUS_VARIABLE = "ZEUS_SIMULATED_GPUS"
"""The environment variable that asks for simulated GPUs."""

OF_DAEMON = "daemon"
"""Its value for the simulated GPUs of a daemon."""

# Between two looks at whose processes compute on a GPU, which take the driver milliseconds. Until ours are seen it is
# less at first, and doubles: in many containers they never are.
_LOOK_SECONDS, _FIRST_LOOK_SECONDS = 10.0, 1.0


class PowerRange(NamedTuple):
    """The lowest and the highest power limit a board accepts, in watts."""

    lowest_watts: float
    highest_watts: float

    def checked(self, limit_watts: float, gpu_name: str) -> float:
        """Return a limit the board accepts. Raises `UsageError` for any other, NaN included."""
        try:
            is_accepted = bool(self.lowest_watts <= limit_watts <= self.highest_watts)
        except Exception:  # it is no number
            is_accepted = False
        if not is_accepted:
            raise UsageError(
                f"limit_watts is {shown(limit_watts)}; {gpu_name} accepts {self.lowest_watts:g} to "
                f"{self.highest_watts:g} W"
            )
        return float(limit_watts)


class Gpu(Protocol):
    """One physical GPU. It knows nothing of training, windows or policies.

    Implementations raise `UsageError` and `DeviceError` with its subclasses only: `NotSupportedError` if the device
    lacks a function, `PermissionDeniedError` if this process lacks the right. Several threads may use one GPU at once.
    Every implementation passes the tests of `GpuContract`.
    """

    @property
    def uuid(self) -> str:
        """The identity of the device, `GPU-...`; indices are for people."""
        ...

    @property
    def name(self) -> str:
        """The product name. That of a simulated device says that it is simulated."""
        ...

    @property
    def is_simulated(self) -> bool:
        """Whether the numbers come from a model rather than from hardware."""
        ...

    @property
    def energy_counter_period_seconds(self) -> float:
        """The longest time between two updates of the energy counter."""
        ...

    @property
    def power_average_seconds(self) -> float:
        """The time over which `read_power_watts` averages; 0 if it reads the power of the moment."""
        ...

    def read_energy_counter_joules(self) -> float:
        """Read the energy since the driver was loaded, as of the counter's latest update."""
        ...

    def read_power_watts(self) -> float:
        """Read the power drawn at this moment, as closely as the sensor knows."""
        ...

    def read_power_limit_watts(self) -> float:
        """Read the power limit requested last."""
        ...

    def read_enforced_power_limit_watts(self) -> float:
        """Read the limit in force, which other limiters of the machine may hold below the requested one."""
        ...

    def read_default_power_limit_watts(self) -> float:
        """Read the limit the board has after the driver is loaded."""
        ...

    def read_power_limit_range_watts(self) -> PowerRange:
        """Read the range that `set_power_limit` accepts."""
        ...

    def set_power_limit(self, limit_watts: float) -> None:
        """Request a power limit. Raises `UsageError` outside the range of the board."""
        ...

    def read_sm_clock_mhz(self) -> int:
        """Read the present SM clock."""
        ...

    def read_supported_sm_clocks_mhz(self) -> tuple[int, ...]:
        """Read the SM clocks that can be locked, highest first."""
        ...

    def lock_sm_clock(self, clock_mhz: int) -> None:
        """Hold the SM clock at or below a supported clock. Raises `UsageError` for any other."""
        ...

    def unlock_sm_clock(self) -> None:
        """Let the SM clock move freely again."""
        ...


# What only some GPUs have, as optional attributes: a GPU need not have them to be a `Gpu`.


class StepLoad(Protocol):
    """The work that a simulated GPU does in each step of a loop which computes elsewhere: its `step_load`."""

    def begin(self) -> None:
        """Begin a step; nothing if one is under way."""
        ...

    def end(self) -> None:
        """End the step, once its work is done; nothing if none is under way."""
        ...

    def rows(self) -> dict[str, str]:
        """Return a labelled line on this for people; nothing where a program submits all work itself."""
        ...


class StepLoads:
    """The loads of those of some GPUs that have one.

    Args:
        gpus: The GPUs.
    """

    def __init__(self, gpus: Iterable[Gpu]) -> None:
        loads: list[StepLoad | None] = [getattr(gpu, "step_load", None) for gpu in gpus]
        self._loads = [load for load in loads if load is not None]

    def __bool__(self) -> bool:
        return bool(self._loads)

    def begin(self) -> None:
        """Begin a step on all."""
        for load in self._loads:
            load.begin()

    def end(self) -> None:
        """End it on all."""
        for load in self._loads:
            load.end()

    def rows(self) -> dict[str, str]:
        """Return the labelled line of the first one."""
        return self._loads[0].rows() if self._loads else {}


def driver_of(gpu: Gpu) -> str | None:
    """Return the name of the driver by which other processes reach a GPU, "nvml" or that of the kernel.

    None if they cannot: its settings end with this process, such as those of a simulated GPU.
    """
    return getattr(gpu, "driver", None)


class IndexDoubt(NamedTuple):
    """A doubt which GPU an index means.

    Attributes:
        among: The UUIDs of the GPUs that it may mean.
        because: The reason, with the remedy.
    """

    among: frozenset[str]
    because: str


def index_doubt_of(gpus: Iterable[Gpu]) -> str | None:
    """Return why the program may compute on other GPUs than these; None if it does not, or these are all there are."""
    gpus = list(gpus)
    uuids = {gpu.uuid for gpu in gpus}
    doubts: list[IndexDoubt | None] = [getattr(gpu, "index_doubt", None) for gpu in gpus]
    return next((doubt.because for doubt in doubts if doubt is not None and not doubt.among <= uuids), None)


@cache
def machine_name() -> str:
    """Name this machine by its latest boot: the ranks of a job may run in containers, which choose their host names."""
    try:
        return f"node-{THIS_MACHINE.boot_id()[:8]}"
    except OSError:
        import platform

        return platform.node()


def uuid_in_job(gpu: Gpu) -> str:
    """Return a UUID that no GPU of another node has: with the machine, for a board that is known by its place in it."""
    return f"{machine_name()}/{gpu.uuid}" if is_place(gpu.uuid) else gpu.uuid


def pci_addresses_of(gpu: Gpu) -> Collection[str]:
    """Return the PCI addresses of a GPU without the function, "0000:c1:00", one for each die; none if unknown."""
    addresses: Collection[str] = getattr(gpu, "pci_addresses", ())
    return addresses


def read_limit_watts(gpu: Gpu) -> float | None:
    """Read the power limit requested last; None where it is not known. Never raises."""
    watts: float | None = _optional(gpu, "read_power_limit_watts")
    return watts


def read_driver_version(gpu: Gpu) -> str | None:
    """Read the version of a GPU's driver; None if it is unknown."""
    version: str | None = _optional(gpu, "read_driver_version")
    return version


def read_temperature_celsius(gpu: Gpu) -> float | None:
    """Read the temperature of a GPU's chip; None where it is not known. Never raises."""
    celsius: float | None = _optional(gpu, "read_temperature_celsius")
    return celsius


def read_utilization(gpu: Gpu) -> float | None:
    """Read the share of the latest second or so in which a GPU computed; None where it is not known. Never raises."""
    share: float | None = _optional(gpu, "read_utilization")
    return share


def read_memory_bytes(gpu: Gpu) -> tuple[int, int] | None:
    """Read how much of a GPU's memory is in use, and how much it has; None where it is not known. Never raises."""
    used_and_all: tuple[int, int] | None = _optional(gpu, "read_memory_bytes")
    return used_and_all


def read_persistence_mode(gpu: Gpu) -> bool | None:
    """Read whether the driver keeps a GPU ready while no program uses it; None where it is not known. Never raises."""
    is_on: bool | None = _optional(gpu, "read_persistence_mode")
    return is_on


def read_process_ids(gpu: Gpu) -> list[int] | None:
    """Read which processes compute on a GPU; None where it is not known. Never raises."""
    process_ids: list[int] | None = _optional(gpu, "read_process_ids")
    return process_ids


def identities_on(gpu: Gpu) -> set[tuple[int, int]] | None:
    """Return the processes on a GPU, each with when it began; None where the driver does not say."""
    process_ids = read_process_ids(gpu)
    if process_ids is None:
        return None
    found = set()
    for process_id in process_ids:
        with suppress(OSError, ValueError, IndexError):  # it has ended
            found.add((process_id, THIS_MACHINE.start_ticks(process_id)))
    return found


def count_others(gpu: Gpu, is_rank: bool = False) -> int | None:
    """Count the processes that compute on a GPU beside this one and those that it has begun. Never raises.

    Args:
        gpu: The GPU.
        is_rank: Whether this process is one of several ranks of this machine: the others of its parent are its job's.

    Returns:
        None where it is not known: the driver does not say, or it lists no process of ours, as before we compute, or
        in a container, where processes may have other ids.
    """
    roots = {os.getpid(), os.getppid()} if is_rank else {os.getpid()}
    process_ids = set(read_process_ids(gpu) or ())
    ours = {process_id for process_id in process_ids if _is_below(process_id, roots)}
    return len(process_ids - ours) if ours else None


class Sharing:
    """Looks now and then how many other processes compute on a GPU.

    Args:
        gpu: The GPU.
        is_rank: Whether this process is one of several ranks of this machine; see `count_others`.
    """

    def __init__(self, gpu: Gpu, is_rank: bool = False) -> None:
        self._gpu, self._is_rank = gpu, is_rank
        self._most = 0  # seen at once
        self._look_at, self._wait_seconds = -math.inf, _FIRST_LOOK_SECONDS

    def look(self, now: float) -> None:
        """Look, if that is due at this time in seconds. Never raises."""
        if self._look_at <= now:
            others = count_others(self._gpu, self._is_rank)
            self._look_at = now + (self._wait_seconds if others is None else _LOOK_SECONDS)
            self._wait_seconds = min(2 * self._wait_seconds, _LOOK_SECONDS)
            self._most = max(self._most, others or 0)

    @property
    def remark(self) -> str | None:
        """Say to people that the GPU was shared; None if no others were seen."""
        if self._most == 0:
            return None
        others = "another process" if self._most == 1 else f"{self._most} other processes"
        return f"{others} computed on it meanwhile, and the energy is that of all"


def _is_below(process_id: int, roots: Collection[int]) -> bool:
    """Return whether a process is one of some, or was begun by one of them."""
    try:
        while process_id > 1 and process_id not in roots:
            process_id = THIS_MACHINE.parent(process_id)
    except (OSError, ValueError, IndexError):  # it has ended, or this system has no /proc
        return False
    return process_id in roots


def _optional(gpu: Gpu, name: str) -> Any:
    read = getattr(gpu, name, None)
    try:
        return None if read is None else read()
    except DeviceError:
        return None
