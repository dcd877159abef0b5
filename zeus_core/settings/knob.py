"""The interface of all knobs; and the knob that turns several GPUs alike, for any kind of setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

from zeus_core.device import Gpu
from zeus_core.device.gpu import index_doubt_of
from zeus_core.device.retry import retried
from zeus_core.errors import DeviceError, DriverFaultError, NotSupportedError, UsageError
from zeus_core.kinds import Kind
from zeus_core.process.deadline import CALL_SECONDS
from zeus_core.process.parallel import ParallelCalls
from zeus_core.process.restore_registry import restore_registry
from zeus_core.settings.holders import read_original
from zeus_core.settings.lease import Lease
from zeus_core.settings.restoration import Restoration

_Answer = TypeVar("_Answer")


class NotEnforcedError(DeviceError):
    """A board does not keep to a setting that was requested, or refuses it: others may work."""


class Knob(Protocol):
    """A finite set of settings of some hardware, which is restored when the knob is no longer used.

    The original settings are restored by `restore`, and at the latest when the knob is garbage-collected or the process
    ends. The knobs of this package are restored however it ends, by another process if need be.
    """

    @property
    def settings(self) -> tuple[int, ...]:
        """The settings that can be applied; the first is the baseline."""
        ...

    def apply(self, setting: int) -> None:
        """Change the hardware.

        Raises:
            UsageError: There is no such setting.
            DeviceError: The hardware refuses, and some of it may have changed; or it has been restored for good.
        """
        ...

    def restore(self) -> bool:
        """Restore the original setting for good. Never raises; logs and returns False if some hardware refuses.

        It may be called again, from any thread and from signal handlers. In a forked child it does nothing: the
        hardware is the parent's, unless the child has applied a setting itself.
        """
        ...


class CommonKnob:
    """One setting for several GPUs, which notices when somebody else turns them.

    The original setting is the baseline and the highest: a site may have lowered it on purpose. If the GPUs have
    different original settings or ranges, each GPU is kept within its own.

    Args:
        kind: The kind of setting.
        gpus: At least one GPU. Their settings are read here, and nothing is changed.

    Raises:
        UsageError: An argument is wrong; the message names it.
        NotSupportedError: A GPU has no such setting.
        DeviceError: A setting cannot be read, or the driver does not answer.
    """

    def __init__(self, kind: Kind, gpus: Sequence[Gpu]) -> None:
        self._kind = kind
        self._gpus = list(gpus)
        if not self._gpus:
            raise UsageError("gpus is []; it must be at least one Gpu object, such as discover_gpus()")
        calls = ParallelCalls()
        self._usable = [
            calls.call_one_within(CALL_SECONDS, number, partial(_usable, gpu, kind))
            for number, gpu in enumerate(self._gpus)
        ]
        self._leases = [
            Lease(gpu, kind, usable[0] if kind.is_readable else kind.original)
            for gpu, usable in zip(self._gpus, self._usable, strict=True)
        ]
        self._restoration = Restoration(self, self._leases, calls)
        self.settings: tuple[int, ...] = kind.common_settings(self._usable)
        """The settings, highest first. The first one is the original state."""
        self._in_force: int = self.settings[0]
        self.taken: list[float] = []
        """The settings that the GPUs took at the latest `apply`: within their ranges, and rounded as boards do."""
        self._enforced: dict[int, float] = {}  # by GPU: the value that it was seen to enforce, where that counts

    def apply(self, setting: int) -> None:
        """Set every GPU.

        Raises:
            UsageError: There is no such setting.
            NotEnforcedError: A GPU does not keep to this one, which counts only then. The original always counts.
            DeviceError: A GPU refuses or does not answer in time, or `restore` was called before, or by a signal
                handler meanwhile.
        """
        self._check(setting)
        restore_registry.catch_signals()  # the program may have replaced its handlers since the first change
        in_force = []  # the setting of each GPU
        self.taken.clear()
        self._enforced.clear()
        for number, usable in enumerate(self._usable):
            value = self._kind.value_of(setting, usable)
            self._set_enforced(number, value)
            shown = self._leases[number].shown
            self.taken.append(value if shown is None else shown)
            in_force.append(setting if shown is None or self._kind.is_same(shown, value) else round(shown))
        self._in_force = setting if setting == self.settings[0] else max(in_force)

    def _check(self, setting: int) -> None:
        """Check that there is this setting, and that the program computes on these GPUs: no other one is changed.

        Raises:
            UsageError: There is no such setting.
            NotSupportedError: It may compute on others.
        """
        self._kind.check(setting, self.settings)
        if (doubt := index_doubt_of(self._gpus)) is not None:
            raise NotSupportedError(doubt)

    def _set_enforced(self, number: int, value: float) -> None:
        """Set one GPU; check that the board keeps to a value that is not the original, where it counts only then."""
        kind, gpu = self._kind, self._gpus[number]
        if not kind.needs_enforcement or value == self._usable[number][0]:
            self._set(number, value)
            return
        words = f"{gpu.name} ({gpu.uuid}) does not enforce {kind.text(value)}"
        try:
            self._set(number, value)
        except (NotSupportedError, DriverFaultError) as error:
            raise NotEnforcedError(f"{words}: {error}") from error
        enforced = self._read_enforced(number)
        if enforced is None or not kind.is_enforced(value, enforced):
            shown = "it does not report what" if enforced is None else kind.text(enforced)
            raise NotEnforcedError(f"{words}, but {shown}")
        self._enforced[number] = value

    def _read_enforced(self, number: int) -> float | None:
        return self._restoration.look(partial(self._kind.read_enforced, self._gpus[number]), number)

    def _set(self, number: int, value: float) -> None:
        """Set one GPU, by its number."""
        self._restoration.change(partial(self._leases[number].set, value), number)

    def ask(self, question: Callable[[Gpu], _Answer]) -> list[_Answer]:
        """Ask each GPU something that changes nothing.

        Raises:
            DeviceError: The driver does not answer in time.
            Exception: The question raised it.
        """
        return [self._restoration.look(partial(question, gpu), number) for number, gpu in enumerate(self._gpus)]

    @property
    def in_force(self) -> int | None:
        """The setting that the boards took at the latest `apply`; None once the original was restored for good.

        Some boards round, and some take none below one of their own. The baseline counts as taken.
        """
        return None if self._restoration.is_final else self._in_force

    def is_undisturbed(self) -> bool:
        """Return whether the settings have had their effect since the latest `apply`, as far as it can be read.

        Raises:
            DeviceHeldError: Somebody else has set another one, which stays. Nothing can be changed any more.
            DeviceError: The driver does not answer in time.
        """
        are_in_force = [self._restoration.look(lease.check, number) for number, lease in enumerate(self._leases)]
        for number, value in self._enforced.items():
            enforced = self._read_enforced(number)
            are_in_force.append(enforced is None or self._kind.is_enforced(value, enforced))
        return all(are_in_force)

    def restore(self) -> bool:
        """Restore the original setting of each GPU for good. Never raises; logs and returns False if one refuses."""
        return self._restoration.restore()

    @property
    def unrestored(self) -> Mapping[str, str]:
        """The commands for the GPUs that `restore` is not known to have restored, each with the reason.

        It is "failed" if the driver refused, "replaced" if somebody else has set a value, which stays, and "unknown" if
        the driver has not answered.
        """
        return self._restoration.unrestored


def _usable(gpu: Gpu, kind: Kind) -> tuple[float, ...]:
    """Return the values that can be set on a GPU, up to the original, after residue was restored."""
    try:
        accepted = retried(partial(kind.read_accepted, gpu))
        return kind.usable(gpu.name, accepted, read_original(gpu, kind))
    except NotSupportedError as error:
        raise NotSupportedError(f"{gpu.name} has no {kind.words} to set: {error}") from error
