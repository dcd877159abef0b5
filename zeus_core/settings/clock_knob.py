"""Locks, which the driver does not report: one for several GPUs in a search, and the SM clock of one in a pipeline."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial

from zeus_core.device import Gpu
from zeus_core.device.gpu import index_doubt_of
from zeus_core.device.retry import retried
from zeus_core.errors import DeviceError, DeviceHeldError, NotSupportedError, UsageError
from zeus_core.kinds import POWER_LIMIT, SM_CLOCK, Kind
from zeus_core.process.deadline import CALL_SECONDS
from zeus_core.process.parallel import ParallelCalls
from zeus_core.process.restore_registry import restore_registry
from zeus_core.settings.holders import restore_residue
from zeus_core.settings.knob import CommonKnob
from zeus_core.settings.lease import Lease
from zeus_core.settings.restoration import Restoration
from zeus_core.settings.restoring import read_surely
from zeus_core.validate import checked_whole_number

# A locked GPU runs at its value or below, at the latest after some tens of milliseconds.
_LOCK_SECONDS = 0.1
_LOCK_POLL_SECONDS = 0.005


class LockKnob(CommonKnob):
    """One lock for several GPUs, such as that of their SM clocks: a value that the driver does not report once set.

    The baseline is the original state: the value that the user says the GPUs were locked at, and else no lock. It is
    named by the highest value of the GPUs. The other settings are the lower ones that all GPUs support. Power limits
    stay as they are: the original ones are the ceiling.

    Args:
        kind: The kind of setting, with the original that the user knows.
        gpus: At least one GPU. Nothing is changed here.

    Raises:
        UsageError: An argument is wrong; the message names it.
        NotSupportedError: A GPU cannot be locked.
        DeviceError: The values that GPUs accept cannot be read, or the driver does not answer.
    """

    def __init__(self, kind: Kind, gpus: Sequence[Gpu]) -> None:
        super().__init__(kind, gpus)
        self._locked: dict[int, float] = {}  # by number of the GPU: the highest it may run at; none if not locked
        self._enforced_watts: dict[int, float] = {}  # the power limit by number of the GPU, at the latest change
        self._has_locked = False

    def apply(self, setting: int) -> None:
        """Lock every GPU; or restore the original state, for the baseline.

        The first change locks each GPU, in any case, so that a lack of rights is known before anything is measured.

        Raises:
            UsageError: It is not one of `settings`.
            DeviceError: A GPU refuses or does not answer in time, or `restore` was called before, or by a signal
                handler meanwhile.
        """
        self._check(setting)
        restore_registry.catch_signals()  # the program may have replaced its handlers since the first change
        is_free = setting == self.settings[0] and self._kind.original is None
        if not (is_free and self._has_locked):
            for number, usable in enumerate(self._usable):
                value = float(min(setting, usable[0]))
                self._set(number, value)
                self._locked[number] = value
            until = time.monotonic() + _LOCK_SECONDS  # for all of them together
            for number, value in self._locked.items():
                taken = partial(self._taken, number, value, until)
                self._locked[number] = self._restoration.look(taken, number)
            self._has_locked = True
        self.taken: list[float] = [*self._locked.values()] or [setting]
        if is_free:
            self._restoration.restore_for_now()
            self._locked = {}
        above = [round(value) for value in self._locked.values() if value > setting]
        self._in_force = setting if setting == self.settings[0] else max(above, default=setting)
        self._enforced_watts = self._read_enforced_watts()

    def is_undisturbed(self) -> bool:
        """Return whether the GPUs are as they were locked, and the enforced power limits as at the latest `apply`.

        Both as far as they can be read, and if the daemon that has locked the GPUs has not ended since.

        Raises:
            DeviceHeldError: A GPU runs above the value it was locked at: somebody else has changed it.
            DeviceError: The driver does not answer in time.
        """
        if not all(self._restoration.look(lease.check, number) for number, lease in enumerate(self._leases)):
            return False
        for number, locked in self._locked.items():
            highest = locked + self._kind.tolerance
            read = partial(self._read_running, number)
            running = self._restoration.look(partial(read_surely, read, highest.__ge__), number)
            if running > highest:
                gpu, kind = self._gpus[number], self._kind
                raise DeviceHeldError(
                    f"somebody else has changed the {kind.words} of {gpu.name} ({gpu.uuid}), which was locked at "
                    f"{kind.text(locked)} and runs at {kind.text(running)}"
                )
        return self._is_as_before(read_surely(self._read_enforced_watts, self._is_as_before))

    def _is_as_before(self, enforced_watts: Mapping[int, float]) -> bool:
        return all(
            POWER_LIMIT.is_same(watts, self._enforced_watts.get(number, watts))
            for number, watts in enforced_watts.items()
        )

    def restore(self) -> bool:
        """Restore the original state of each GPU for good. Never raises; logs and returns False if one refuses."""
        self._locked = {}
        return self._restoration.restore()

    def _taken(self, number: int, value: float, until: float) -> float:
        """Return the value that a GPU was locked at: the one it runs at, if that stays above the one asked for."""
        while (running := self._read_running(number)) > value + self._kind.tolerance:
            if time.monotonic() > until:
                return running
            time.sleep(_LOCK_POLL_SECONDS)
        return value

    def _read_running(self, number: int) -> float:
        """Read the value at which a GPU runs; 0 where it is not known, which says nothing about others."""
        try:
            return self._kind.read_running(self._gpus[number]) or 0.0
        except DeviceError:
            return 0.0

    def _read_enforced_watts(self) -> dict[int, float]:
        watts: dict[int, float] = {}
        for number, gpu in enumerate(self._gpus):
            try:
                enforced_watts = self._restoration.look(partial(POWER_LIMIT.read_enforced, gpu), number)
            except DeviceError:
                continue
            if enforced_watts is not None:  # a board that does not report it is trusted
                watts[number] = enforced_watts
        return watts


class SmClockKnob:
    """The SM clock of one GPU, in MHz.

    The driver reports the clock a GPU runs at, but not whether, or where, it is locked. A GPU is assumed to have been
    unlocked originally, unless the user gives the clock it was locked at.

    Args:
        gpu: The GPU. Nothing is changed here.
        original_mhz: The clock in MHz that the GPU was locked at before; None if it was not locked.

    Raises:
        UsageError: The GPU does not support `original_mhz`.
        DeviceError: Its clocks cannot be read, or the driver does not answer.
    """

    def __init__(self, gpu: Gpu, original_mhz: int | None = None) -> None:
        self._gpu = gpu
        if original_mhz is not None:
            original_mhz = checked_whole_number("original_clock_mhz", original_mhz, 1)
        calls = ParallelCalls()
        usable = calls.call_one_within(CALL_SECONDS, 0, partial(_usable_clocks_mhz, gpu, original_mhz))
        calls.call_one_within(CALL_SECONDS, 0, partial(restore_residue, gpu))
        self._lease = Lease(gpu, SM_CLOCK, original_mhz)
        self._restoration = Restoration(self, [self._lease], calls)
        self.settings: tuple[int, ...] = usable
        """The clocks in MHz, highest first: those the GPU supports, up to the one it was locked at before. Empty where
        clocks cannot be set at all."""

    def apply(self, setting: int) -> None:
        """Lock the clock, in MHz.

        Raises:
            UsageError: It is not one of `settings`.
            NotSupportedError: There are no settings, or the program may compute on another GPU than this one.
            DeviceError: The driver refuses or does not answer in time, or `restore` was called before.
        """
        if not self.settings:
            raise NotSupportedError(f"the SM clock of {self._gpu.name} cannot be set")
        if setting not in self.settings:
            raise UsageError(
                f"clock_mhz is {setting!r}; {self._gpu.name} accepts clocks from {self.settings[0]} down to "
                f"{self.settings[-1]} MHz"
            )
        if (doubt := index_doubt_of([self._gpu])) is not None:
            raise NotSupportedError(doubt)
        self._restoration.change(partial(self._lease.set, setting))

    def restore_for_now(self) -> None:
        """Restore the original clock until the next `apply`.

        Raises:
            DeviceError: The driver refuses.
        """
        self._restoration.restore_for_now()

    def restore(self) -> bool:
        """Restore the original clock for good. Never raises; logs and returns False if the driver refuses."""
        return self._restoration.restore()


def _usable_clocks_mhz(gpu: Gpu, original_mhz: int | None) -> tuple[int, ...]:
    try:
        usable = SM_CLOCK.usable(gpu.name, retried(gpu.read_supported_sm_clocks_mhz), original_mhz)
        return tuple(map(int, usable))
    except NotSupportedError:
        return ()
