"""The power limits of GPUs, and who else changes them while training runs."""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Sequence
from functools import partial
from typing import cast

from zeus_core.device import Gpu
from zeus_core.errors import DeviceError, DeviceHeldError
from zeus_core.kinds.power_limit import POWER_LIMIT, PowerLimit
from zeus_core.process.sampler import Sampler
from zeus_core.settings.knob import CommonKnob
from zeus_core.settings.lease import Lease
from zeus_core.settings.restoration import Restoration
from zeus_core.settings.restoring import read_surely
from zeus_core.validate import checked_whole_number

# A check takes the driver 0.1 to 10 ms, in the thread of the GPU. Trials last seconds, and the limits that people and
# board management controllers set last longer than that.
_PERIOD_SECONDS = 1.0

_logger = logging.getLogger(__name__)


class PowerLimitKnob(CommonKnob):
    """One power limit for several GPUs, in whole watts.

    The original limit is the baseline and the highest setting: a site may have lowered it on purpose. The other
    settings go down from it in equal steps to the lowest limit of the boards. If the GPUs have different original
    limits or ranges, each GPU is kept between its own lowest and original limit.

    Args:
        gpus: At least one GPU. Their limits are read here, and nothing is changed.
        step_watts: The distance between two settings, in watts.

    Raises:
        UsageError: An argument is wrong; the message names it.
        DeviceError: A limit cannot be read, or the driver does not answer.
    """

    def __init__(self, gpus: Sequence[Gpu], step_watts: int) -> None:
        super().__init__(PowerLimit(checked_whole_number("step_watts", step_watts, 1)), gpus)
        self._has_warned = False
        self._watch = LimitWatch(self, self._gpus, self._leases, self._restoration)

    def apply(self, setting: int) -> None:
        """Set the limit of every GPU, in watts. See `CommonKnob.apply`."""
        self._check(setting)
        self._watch.begin()
        super().apply(setting)

    def _set(self, number: int, value: float) -> None:
        enforced_watts = self._restoration.change(partial(self._watch.set, number, value), number)
        gpu, shown_watts = self._gpus[number], self._leases[number].shown
        is_taken = shown_watts is None or self._kind.is_same(shown_watts, value)
        if not is_taken and value == self._usable[number][0] and not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "for its original limit of %g W %s takes %g W: that is what the original stands for from now on",
                *(value, gpu.name, cast(float, shown_watts)),
            )
        if abs(enforced_watts - value) > 1 and not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "%s was set to a power limit of %g W, but %g W is enforced", gpu.name, value, enforced_watts
            )

    def is_undisturbed(self) -> bool:
        """Return whether the limits have been in force since the latest `apply`. See `CommonKnob.is_undisturbed`."""
        return self._watch.is_undisturbed()

    def restore(self) -> bool:
        """Restore the original limit of each GPU for good. Never raises; logs and returns False if one refuses."""
        self._watch.end()
        return self._restoration.restore()


class LimitWatch:
    """Compares the limits in force with those that were set, on request and by a thread in the background.

    The thread checks the GPUs that other processes can reach. If the daemon has restored a limit, as after a restart,
    the thread sets it again. Each change is reported once: by the owner of the knob if it asks at the end of each
    trial, else in the log.

    Args:
        knob: The knob. No reference to it is kept: the thread ends when the knob is garbage-collected.
        gpus: Its GPUs.
        leases: One per GPU.
        restoration: Calls each GPU in its thread.
    """

    def __init__(self, knob: object, gpus: Sequence[Gpu], leases: Sequence[Lease], restoration: Restoration) -> None:
        self._gpus, self._leases, self._restoration = gpus, leases, restoration
        self._enforced_watts: dict[int, float] = {}  # by number of the GPU, as of the latest check
        self._disturbed: set[int] = set()  # GPUs whose limit has changed since it was set
        self._lost: set[int] = set()  # GPUs whose limit the daemon has restored
        self._unsaid: dict[int, str] = {}
        self._has_been_asked = False
        self._will_be_asked = False
        self._sampler = Sampler(self._look_at_all, _PERIOD_SECONDS, name="zeus-core power limits")
        weakref.finalize(knob, self._sampler.stop).atexit = False

    def begin(self) -> None:
        """Start the thread, as limits are about to be set."""
        self._will_be_asked = self._has_been_asked
        self._unsaid.clear()
        if not self._sampler.is_running and any(lease.is_shared for lease in self._leases):
            self._sampler.start()

    def set(self, number: int, limit_watts: float) -> float:
        """Set the limit of a GPU, in its thread, and return the one that is enforced.

        Raises:
            DeviceError: See `Lease.set`.
        """
        self._leases[number].set(limit_watts)
        self._note_set(number, limit_watts)
        self._disturbed.discard(number)
        return self._enforced_watts[number]

    def is_undisturbed(self) -> bool:
        """Return whether the limits have been in force since they were set, as far as they can be read.

        Raises:
            DeviceHeldError: Somebody else has set another limit, which stays. Nothing can be changed any more.
            DeviceError: The driver does not answer in time.
        """
        self._has_been_asked, self._will_be_asked = True, False
        self._unsaid.clear()
        for number in range(len(self._gpus)):
            self._restoration.look(partial(self._look, number), number)
        return not self._disturbed

    def end(self) -> None:
        """Stop the thread, as the original limits are about to be restored."""
        self._sampler.stop()
        self._will_be_asked = False
        self._say()

    def _look(self, number: int) -> str | None:
        """Note whether a limit has changed since the last check. Runs in the thread of the GPU. Returns the message.

        Raises:
            DeviceHeldError: Somebody else has set another limit.
        """
        gpu, lease = self._gpus[number], self._leases[number]
        is_in_force = lease.check()
        before_watts = self._enforced_watts.get(number)
        if before_watts is None:
            return None
        now_watts = read_surely(
            partial(self._read_enforced_watts, number, before_watts), partial(POWER_LIMIT.is_same, before_watts)
        )
        if self._restoration.is_final:  # then the original may be in force, as it should
            return None
        if number in self._lost or (is_in_force and POWER_LIMIT.is_same(now_watts, before_watts)):
            return None
        self._enforced_watts[number] = now_watts
        self._disturbed.add(number)
        if is_in_force:
            lease.check()  # somebody may have set the limit between the two readings
            return (
                f"the limit that {gpu.name} ({gpu.uuid}) enforces has changed from {before_watts:g} to {now_watts:g} "
                "W: something else limits it too, such as the controller of the board"
            )
        self._lost.add(number)
        return f"the zeus-core daemon has ended and restored the power limit of {gpu.name} ({gpu.uuid})"

    def _look_at_all(self) -> None:
        """Check all GPUs, in the background. A driver that does not answer says nothing about the limits."""
        for number in sorted(self._enforced_watts):
            with contextlib.suppress(DeviceError):
                try:
                    words = self._restoration.look(partial(self._look, number), number)
                except DeviceHeldError as error:
                    self._enforced_watts.pop(number, None)
                    words = str(error)
                if words is not None:
                    self._unsaid[number] = words
                if number in self._lost:
                    self._restoration.change(partial(self._set_again, number), number)
        if not self._will_be_asked:
            self._say()

    def _set_again(self, number: int) -> None:
        if number in self._lost:
            limit_watts = self._leases[number].set_again()
            self._note_set(number, limit_watts)
            _logger.warning("%g W is set on %s again", limit_watts, self._gpus[number].uuid)

    def _note_set(self, number: int, limit_watts: float) -> None:
        self._lost.discard(number)
        self._enforced_watts[number] = self._read_enforced_watts(number, limit_watts)

    def _say(self) -> None:
        with contextlib.suppress(KeyError):  # there is none, or another thread says it
            while True:
                _logger.warning("%s", self._unsaid.popitem()[1])

    def _read_enforced_watts(self, number: int, default_watts: float) -> float:
        enforced_watts = POWER_LIMIT.read_enforced(self._gpus[number])
        return default_watts if enforced_watts is None else enforced_watts  # a board that does not report it is trusted
