"""The base class of all GPUs and other accelerators. It refuses what the class of a vendor does not add."""

import platform
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from typing import NamedTuple, Protocol, TypeVar

from zeus_core._identity import THIS_MACHINE
from zeus_core._sysfs import is_place
from zeus_core.errors import DeviceError, NotSupportedError, UsageError
from zeus_core.validate import shown

_Answer = TypeVar("_Answer")

SIMULATED_GPUS_VARIABLE = "ZEUS_SIMULATED_GPUS"
"""The environment variable that asks for simulated GPUs."""

OF_DAEMON = "daemon"
"""Its value for the simulated GPUs of a daemon."""


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


class IndexDoubt(NamedTuple):
    """A doubt which GPU an index means.

    Attributes:
        among: The UUIDs of the GPUs that it may mean.
        because: The reason, with the remedy.
    """

    among: frozenset[str]
    because: str


class StepLoad(Protocol):
    """The work that a simulated GPU does in each step of a loop which computes elsewhere."""

    def begin(self) -> None:
        """Begin a step; nothing if one is under way."""
        ...

    def end(self) -> None:
        """End the step, once its work is done; nothing if none is under way."""
        ...

    def rows(self) -> dict[str, str]:
        """Return a labelled line on this for people; nothing where a program submits all work itself."""
        ...


class Gpu:
    """One physical GPU or other accelerator. It knows nothing of training, windows or policies.

    This base class refuses: each method raises what `refusal` returns. A class for the boards of a vendor sets `uuid`
    and `name`, and overrides what these boards can do.

    Methods raise `UsageError` and `DeviceError` with its subclasses only: `NotSupportedError` if the device lacks a
    function, `PermissionDeniedError` if this process may not use it. Several threads may use one GPU at once. Every
    class passes the tests of `GpuContract`.
    """

    uuid: str
    """The identity of the device, `GPU-...`; indices are for people."""
    name: str
    """The product name. That of a simulated device says that it is simulated."""
    is_simulated: bool = False
    """Whether the numbers come from a model rather than from hardware."""
    energy_counter_period_seconds: float = 0.1
    """The longest time between two updates of the energy counter."""
    power_average_seconds: float = 0.0
    """The time over which `read_power_watts` averages; 0 if it reads the power of the moment."""
    peak_watts: float | None = None
    """The most that it can draw; None where that follows from its highest power limit."""
    no_power_because: str | None = None
    """Why neither its power nor its energy can be read; None if they can, or if the reason is not known."""
    driver: str | None = None
    """The driver by which other processes reach it: "nvml", or the kernel's. None if its settings end with this one."""
    limit_path: str | None = None
    """The file in which its power limit is set; None if it is set by calls."""
    pci_addresses: Collection[str] = ()
    """Its PCI addresses without the function, "0000:c1:00", one for each die; none if they are not known."""
    index_doubt: IndexDoubt | None = None
    """Why its index may mean another GPU; None if it does not."""
    step_load: StepLoad | None = None
    """Work that a model does in each step of a loop that computes elsewhere; None for hardware."""

    def refusal(self, what: str) -> DeviceError:
        """Return the error of a method that this GPU does not have.

        Args:
            what: The thing that is asked for, such as "power limit".
        """
        return NotSupportedError(f"{self.name} has no {what}: its driver offers none; leave out what needs it")

    def read_energy_counter_joules(self) -> float:
        """Read the energy since the driver was loaded, as of the counter's latest update."""
        raise self.refusal("energy counter")

    def read_power_watts(self) -> float:
        """Read the power drawn at this moment, as closely as the sensor knows."""
        raise self.refusal("power sensor")

    def read_power_limit_watts(self) -> float:
        """Read the power limit requested last."""
        raise self.refusal("power limit")

    def read_enforced_power_limit_watts(self) -> float:
        """Read the limit in force, which other limiters may hold below the requested one; this one, if none does."""
        return self.read_power_limit_watts()

    def read_default_power_limit_watts(self) -> float:
        """Read the limit the board has after the driver is loaded."""
        raise self.refusal("power limit")

    def read_power_limit_range_watts(self) -> PowerRange:
        """Read the range that `set_power_limit` accepts."""
        raise self.refusal("power limit")

    def set_power_limit(self, limit_watts: float) -> None:
        """Request a power limit. Raises `UsageError` outside the range of the board."""
        raise self.refusal("power limit")

    def read_sm_clock_mhz(self) -> int:
        """Read the present SM clock."""
        raise self.refusal("SM clock")

    def read_supported_sm_clocks_mhz(self) -> tuple[int, ...]:
        """Read the SM clocks that can be locked, highest first."""
        raise self.refusal("SM clock")

    def lock_sm_clock(self, clock_mhz: int) -> None:
        """Hold the SM clock at or below a supported clock. Raises `UsageError` for any other."""
        raise self.refusal("SM clock")

    def unlock_sm_clock(self) -> None:
        """Let the SM clock move freely again."""
        raise self.refusal("SM clock")

    def read_driver_version(self) -> str:
        """Read the version of the driver."""
        raise self.refusal("version of its driver")

    def read_temperature_celsius(self) -> float:
        """Read the temperature of the chip."""
        raise self.refusal("temperature")

    def read_utilization(self) -> float:
        """Read the share of the latest second or so in which it computed, 0 to 1."""
        raise self.refusal("utilization")

    def read_memory_bytes(self) -> tuple[int, int]:
        """Read how much of its memory is in use, and how much it has."""
        raise self.refusal("memory counter")

    def read_persistence_mode(self) -> bool:
        """Read whether the driver keeps it ready while no program uses it."""
        raise self.refusal("persistence mode")

    def read_process_ids(self) -> list[int]:
        """Read which processes compute on it, as the driver numbers them."""
        raise self.refusal("list of processes")

    def read_other_mig_processes(self, process_id: int) -> Sequence[object] | None:
        """Read the processes that compute on other instances of the board than a process does; None without MIG."""
        return None


class SilentGpu(Gpu):
    """A GPU that did not answer when the GPUs were counted: it refuses every call, and keeps its index.

    Args:
        name: The name for people, such as "GPU 1".
        fault: The reason why it did not answer.
    """

    def __init__(self, name: str, fault: DeviceError) -> None:
        self.name: str = f"{name} (does not answer)"
        self.uuid: str = f"unknown: {name}"
        self.fault: DeviceError = type(fault)(
            f"{name} does not answer, and no other takes its index: {fault}; try again, or name the GPUs to use by "
            "UUID in CUDA_VISIBLE_DEVICES (`nvidia-smi -L` lists them)"
        )
        """The error of every call."""

    def refusal(self, what: str) -> DeviceError:
        """Return the reason why it does not answer, whatever is asked for."""
        return self.fault


def read_or_none(read: Callable[[], _Answer]) -> _Answer | None:
    """Return what a method reads; None where it is not known. Raises no `DeviceError`."""
    try:
        return read()
    except DeviceError:
        return None


class StepLoads:
    """The loads of those of some GPUs that have one.

    Args:
        gpus: The GPUs.
    """

    def __init__(self, gpus: Iterable[Gpu]) -> None:
        self._loads = [gpu.step_load for gpu in gpus if gpu.step_load is not None]

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


def index_doubt_of(gpus: Iterable[Gpu]) -> str | None:
    """Return why the program may compute on other GPUs than these; None if it does not, or these are all there are."""
    gpus = list(gpus)
    uuids = {gpu.uuid for gpu in gpus}
    doubts = [gpu.index_doubt for gpu in gpus if gpu.index_doubt is not None]
    return next((doubt.because for doubt in doubts if not doubt.among <= uuids), None)


@cache
def machine_name() -> str:
    """Name this machine by its latest boot: the ranks of a job may run in containers, which choose their host names."""
    try:
        return f"node-{THIS_MACHINE.boot_id()[:8]}"
    except OSError:
        return platform.node()


def uuid_in_job(gpu: Gpu) -> str:
    """Return a UUID that no GPU of another node has: with the machine, for a board that is known by its place in it."""
    return f"{machine_name()}/{gpu.uuid}" if is_place(gpu.uuid) else gpu.uuid
