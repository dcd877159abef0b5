"""One SM clock for several GPUs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from zeus_core._process.deadline import CALL_SECONDS
from zeus_core._process.parallel import ParallelCalls
from zeus_core._process.restore import restore_registry
from zeus_core._validate import checked_whole_number, shown
from zeus_core.device import Gpu
from zeus_core.device._gpu import checked_gpus
from zeus_core.device._retry import retried
from zeus_core.errors import DeviceError, DeviceHeldError, NotSupportedError, UsageError
from zeus_core.knobs._lease import Lease
from zeus_core.knobs._residue import restore_residue
from zeus_core.knobs._restoration import Restoration
from zeus_core.leases._restoring import SAME_CLOCK_MHZ, is_same_limit

__all__ = ["CommonClockKnob", "check_clock", "common_clocks"]

# A locked GPU runs at its clock or below, at the latest after some tens of milliseconds.
_LOCK_SECONDS = 0.1
_LOCK_POLL_SECONDS = 0.005


class CommonClockKnob:
    """One locked SM clock for several GPUs, in MHz.

    The baseline is the original state: the clock that the user says the GPUs were locked at, and else no lock. It is
    named by the highest clock of the GPUs. The other settings are the lower clocks that all GPUs support. Power limits
    stay as they are: the original ones are the ceiling.

    Args:
        gpus: At least one GPU. Nothing is changed here.
        original_mhz: The clock in MHz that the GPUs were locked at before; None if they were not locked.

    Raises:
        UsageError: An argument is wrong; the message names it.
        NotSupportedError: The clock of a GPU cannot be set.
        DeviceError: Clocks cannot be read, or the driver does not answer.
    """

    def __init__(self, gpus: Sequence[Gpu], original_mhz: int | None = None) -> None:
        if original_mhz is not None:
            original_mhz = checked_whole_number("original_clock_mhz", original_mhz, 1)
        self._original_mhz = original_mhz
        self._gpus = checked_gpus("gpus", gpus, minimum=1)
        calls = ParallelCalls()
        self._clocks_mhz = [
            calls.call_one_within(CALL_SECONDS, number, partial(_usable_clocks_mhz, gpu, original_mhz))
            for number, gpu in enumerate(self._gpus)
        ]
        self._leases = [Lease(gpu, "sm_clock", original_mhz) for gpu in self._gpus]
        self._restoration = Restoration(self, self._leases, calls)
        self._locked_mhz: dict[int, int] = {}  # by number of the GPU: the highest it may run at; none if not locked
        self._enforced_watts: dict[int, float] = {}  # the power limit by number of the GPU, at the latest change
        self._has_locked = False
        self.settings: tuple[int, ...] = common_clocks(self._clocks_mhz)
        """The clocks in MHz, highest first. The first one is the original state."""
        self._in_force: int = self.settings[0]

    def apply(self, setting: int) -> None:
        """Lock the clock of every GPU, in MHz; or restore the original state, for the baseline.

        The first change locks each GPU, in any case, so that a lack of rights is known before anything is measured.

        Raises:
            UsageError: It is not one of `settings`.
            DeviceError: A GPU refuses or does not answer in time, or `restore` was called before, or by a signal
                handler meanwhile.
        """
        check_clock(setting, self.settings)
        restore_registry.catch_signals()  # the program may have replaced its handlers since the first change
        is_free = setting == self.settings[0] and self._original_mhz is None
        if not (is_free and self._has_locked):
            for number, (lease, clocks_mhz) in enumerate(zip(self._leases, self._clocks_mhz, strict=True)):
                clock_mhz = min(setting, clocks_mhz[0])
                self._restoration.change(partial(lease.set, clock_mhz), number)
                self._locked_mhz[number] = clock_mhz
            until = time.monotonic() + _LOCK_SECONDS  # for all of them together
            for number, clock_mhz in self._locked_mhz.items():
                taken = partial(_taken_mhz, self._gpus[number], clock_mhz, until)
                self._locked_mhz[number] = self._restoration.look(taken, number)
            self._has_locked = True
        if is_free:
            self._restoration.restore_for_now()
            self._locked_mhz = {}
        above = [clock for clock in self._locked_mhz.values() if clock > setting]
        self._in_force = setting if setting == self.settings[0] else max(above, default=setting)
        self._enforced_watts = self._read_enforced_watts()

    @property
    def in_force(self) -> int | None:
        """The setting that the boards took at the latest `apply`; None once the original was restored for good."""
        return None if self._restoration.is_final else self._in_force

    def is_undisturbed(self) -> bool:
        """Tell whether the power limits that are enforced are those at the latest `apply`, as far as they can be read.

        Raises:
            DeviceHeldError: A GPU runs above the clock it was locked at: somebody else has changed it.
            DeviceError: The driver does not answer in time.
        """
        for lease in self._leases:
            lease.check()  # whether another object has taken it over
        for number, locked_mhz in self._locked_mhz.items():
            clock_mhz = self._restoration.look(partial(_read_clock_mhz, self._gpus[number]), number)
            if clock_mhz > locked_mhz + SAME_CLOCK_MHZ:
                gpu = self._gpus[number]
                raise DeviceHeldError(
                    f"somebody else has changed the SM clock of {gpu.name} ({gpu.uuid}), which was locked at "
                    f"{locked_mhz} MHz and runs at {clock_mhz} MHz"
                )
        enforced_watts = self._read_enforced_watts()
        return all(
            is_same_limit(watts, self._enforced_watts.get(number, watts)) for number, watts in enforced_watts.items()
        )

    def restore(self) -> bool:
        """Restore the original state of each GPU for good. Never raises; logs and returns False if one refuses."""
        self._locked_mhz = {}
        return self._restoration.restore()

    @property
    def unrestored(self) -> Mapping[str, str]:
        """The commands for the GPUs that `restore` is not known to have restored, each with the reason."""
        return self._restoration.unrestored

    def _read_enforced_watts(self) -> dict[int, float]:
        watts: dict[int, float] = {}
        for number, gpu in enumerate(self._gpus):
            try:
                watts[number] = self._restoration.look(gpu.read_enforced_power_limit_watts, number)
            except DeviceError:  # a board that does not report it is trusted
                continue
        return watts


def common_clocks(clocks_mhz: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Return the settings for some GPUs or ranks: the highest clock of any, and the lower ones that all support."""
    each = list(clocks_mhz)
    highest = max(clocks[0] for clocks in each)
    shared = set(each[0]).intersection(*each[1:])
    return (highest, *sorted((clock for clock in shared if clock < highest), reverse=True))


def check_clock(clock_mhz: int, settings: Sequence[int]) -> None:
    """Raise `UsageError` for a clock that is none of some settings, which are sorted with the highest first."""
    if clock_mhz not in settings:
        raise UsageError(
            f"an SM clock of {shown(clock_mhz)} MHz is none of the settings, which run from {settings[0]} down to "
            f"{settings[-1]} MHz: choose one that the GPUs support"
        )


def _usable_clocks_mhz(gpu: Gpu, original_mhz: int | None) -> tuple[int, ...]:
    """Return the clocks that a GPU supports, up to the one it was locked at, after residue was restored."""
    supported = retried(gpu.read_supported_sm_clocks_mhz)
    if not supported:
        raise NotSupportedError(f"the SM clock of {gpu.name} cannot be set")
    if original_mhz is not None and original_mhz not in supported:
        raise UsageError(
            f"original_clock_mhz is {original_mhz!r}; {gpu.name} supports {supported[0]} down to {supported[-1]} MHz"
        )
    restore_residue(gpu)
    return tuple(clock for clock in supported if original_mhz is None or clock <= original_mhz)


def _taken_mhz(gpu: Gpu, clock_mhz: int, until: float) -> int:
    """Return the clock that a GPU was locked at: the one it runs at, if that stays above the one that was asked for."""
    while (runs_at_mhz := _read_clock_mhz(gpu)) > clock_mhz + SAME_CLOCK_MHZ:
        if time.monotonic() > until:
            return runs_at_mhz
        time.sleep(_LOCK_POLL_SECONDS)
    return clock_mhz


def _read_clock_mhz(gpu: Gpu) -> int:
    try:
        return gpu.read_sm_clock_mhz()
    except DeviceError:
        return 0  # it says nothing about others
