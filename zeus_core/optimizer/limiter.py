"""The setting of the GPUs of one process, during one search."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeus_core.device import Gpu
from zeus_core.device.gpu import read_or_none, uuid_in_job
from zeus_core.errors import DeviceError, DeviceHeldError, NotSupportedError, PermissionDeniedError
from zeus_core.kinds import Kind
from zeus_core.optimizer.gpu_facts import GpuFacts, facts_of_gpu
from zeus_core.settings.holders import KnobUser

if TYPE_CHECKING:
    from zeus_core.settings.knob import CommonKnob


class ReplacedError(DeviceHeldError):
    """Somebody else has set a GPU of some rank during a block. Raised on all ranks at the same time."""


@dataclass(frozen=True)
class Answer:
    """The answer of one rank to a setting.

    Attributes:
        denial: Why it cannot be set: this process lacks the permission, a board has no such setting of its own, or
            another object, process or person controls a GPU. None if it is set.
        is_held: Whether another object or process controls a GPU, so that its setting is not known.
        is_lacking: Whether a board has no such setting to change, whoever asks.
        taken: The setting that the boards took in its place, the highest if GPUs differ; None if they took it.
        refused: Why this setting alone does not count: a board does not enforce it. None if it does.
    """

    denial: str | None = None
    is_held: bool = False
    is_lacking: bool = False
    taken: int | None = None
    refused: str | None = None


class Limiter:
    """Gives some GPUs one setting, and knows which one is in force. The original settings are read here.

    Args:
        gpus: At least one.
        kind: The kind of setting.
        user: The object that the settings are for; the knob itself if None.
        observes: Whether no setting is changed.

    Raises:
        DeviceError: An original setting cannot be read.
    """

    def __init__(self, gpus: Sequence[Gpu], kind: Kind, user: KnobUser | None = None, observes: bool = False) -> None:
        self._gpus = gpus
        self._user = user
        knob = knob_of(kind, gpus, user)
        self._knob: CommonKnob | None = knob
        self.observes: bool = observes
        """Whether no setting is changed."""
        self._has_set = False
        self._ceiling: int | None = None
        self.kind: Kind = kind
        """The kind of setting."""
        self.settings: tuple[int, ...] = tuple(knob.settings)
        """The settings to try, highest first."""
        self._wanted = self.settings[0]
        self._setting: int | None = self.settings[0]
        self.gpus: dict[str, GpuFacts] = {
            uuid_in_job(gpu): facts for gpu, facts in zip(gpus, knob.ask(facts_of_gpu), strict=True)
        }
        """The facts of the GPUs, by their UUIDs in the job."""

    @property
    def setting(self) -> int | None:
        """The setting in force, the highest if GPUs differ; None if it is unknown, and once `restore` was called."""
        is_given_up = not self.observes and self._knob is not None and self._knob.in_force is None
        return None if is_given_up else self._setting

    @property
    def is_idle(self) -> bool:
        """Whether each of the GPUs says that it computed nothing in the latest second or so."""
        return all(read_or_none(gpu.read_utilization) == 0 for gpu in self._gpus)

    def leave(self, uuids: Collection[str]) -> None:
        """Leave some of the GPUs to other ranks, which set the same: one process alone can control a GPU.

        Raises:
            DeviceError: An original setting cannot be read.
        """
        own = [gpu for gpu in self._gpus if uuid_in_job(gpu) not in uuids]
        if len(own) < len(self._gpus):
            self._knob = knob_of(self.kind, own, self._user) if own else None

    def is_undisturbed(self) -> bool:
        """Return whether the setting is still in force.

        Raises:
            DeviceHeldError: Somebody else has set another one, which stays.
            DeviceError: The driver does not answer in time.
        """
        return self._knob is None or self._knob.is_undisturbed()

    def set(self, setting: int) -> Answer:
        """Apply a setting, on each GPU as far as its own range goes; nothing if it observes.

        Raises:
            DeviceError: A GPU refuses for another reason. Some may have changed.
        """
        if self.observes:
            return Answer()
        self._wanted = setting
        if self._ceiling is not None:
            setting = min(setting, self._ceiling)
        from zeus_core.settings.knob import NotEnforcedError  # loaded with the knob

        own = min(max(setting, self.settings[-1]), self.settings[0])
        taken: int | None = None
        try:
            if self._knob is not None:
                settings = self._knob.settings
                request = min(max(own, settings[-1]), settings[0])
                self._knob.apply(request)
                in_force = self._knob.in_force
                if in_force is not None and in_force != request:
                    own = taken = in_force
        except NotEnforcedError as error:
            self._has_set, self._setting = True, None
            return Answer(refused=str(error))
        except (PermissionDeniedError, NotSupportedError) as error:
            return Answer(str(error), is_lacking=isinstance(error, NotSupportedError))
        except DeviceHeldError as error:
            if self._has_set:  # the trials so far were at settings of ours, and this one is at somebody else's
                raise
            return Answer(str(error), is_held=True)
        self._has_set = True
        self._setting = own
        return Answer(taken=taken)

    def lower(self, ceiling: int | None) -> str | None:
        """Keep this process at most at a ceiling until it is None, even if more is set.

        Returns:
            Why that cannot be set; None if it is.

        Raises:
            DeviceError: See `set`.
        """
        self._ceiling = ceiling
        return None if self.setting is None else self.set(self._wanted).denial

    def stay(self, denial: str, is_held: bool = False) -> None:
        """Restore the original settings, and observe them from now on, unless others control them (`is_held`).

        Raises:
            DeviceError: A GPU that was changed cannot be restored. The message holds the denial too.
        """
        if not self.restore():
            raise DeviceError(f"a {self.kind.words} could be changed, but not be restored: {denial}")
        self.observes = True
        if is_held:
            self._knob = None
        else:
            self._setting = self.settings[0]

    def restore(self) -> bool:
        """Restore the original settings. Never raises; False if a GPU refuses: calling this again may help."""
        self._setting = None
        return self._knob is None or self._knob.restore()

    @property
    def unrestored(self) -> Mapping[str, str]:
        """The commands for the GPUs that `restore` is not known to have restored, each with the reason."""
        return {} if self._knob is None else self._knob.unrestored


def knob_of(kind: Kind, gpus: Sequence[Gpu], user: KnobUser | None) -> CommonKnob:
    """Make the knob of some GPUs: of what others may limit too, of a lock that cannot be read, or of anything else."""
    # Imported here: what changes GPUs, with its ledger and guardian, is for a search that begins.
    from zeus_core.settings.restoration import used_by

    if kind.binds_power:
        from zeus_core.settings.limit_knob import PowerLimitKnob

        return used_by(user, PowerLimitKnob(gpus, kind.step))
    if not kind.is_readable:
        from zeus_core.settings.clock_knob import LockKnob

        return used_by(user, LockKnob(kind, gpus))
    from zeus_core.settings.knob import CommonKnob

    return used_by(user, CommonKnob(kind, gpus))
