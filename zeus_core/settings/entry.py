"""An entry of the ledger: the process that has changed a setting of a device, and the original value."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import Any

from zeus_core._identity import ProcessIdentity, job_id, printable, program_name, program_token
from zeus_core.documents import Document
from zeus_core.errors import UsageError
from zeus_core.kinds import KINDS, Kind

LedgerKey = tuple[str, str]
"""The UUID of a device, and the name of a kind of setting: what a lease is of."""

_FIRST_DRIVER = "nvml"


@dataclass(frozen=True)
class LedgerEntry:
    """One setting of one device that a process has changed, or is about to.

    Attributes:
        device_uuid: The device.
        device_name: Its product name.
        knob: The name of the kind of setting.
        driver: The driver by which other processes reach the device: "nvml", "amdgpu".
        original: The value before the first change, in the unit of the kind; None for a device that was free.
        values: The values of the owner on record: those that it has set last, and those that the board showed for them.
        owner: The process that changes the setting.
        owner_token: Distinguishes the programs that one process executes one after another (`exec`).
        keeper: The daemon that makes the changes for the owner; None if the owner calls the driver itself.
        uid: The user of the owner.
        program: The name of the owner's program, for messages.
        job: The job id of the batch system, such as "12345"; empty if there is none.
        host: The name of the machine, for messages.
        since_seconds: The time of the first change, in seconds of the Unix epoch, for messages.
        failure: The reason why the original could not be restored; None if that has not failed.
        is_changing: Whether the last of the values is being set for the first time: what the board shows for it is not
            on record yet.
    """

    device_uuid: str
    device_name: str
    knob: str
    original: float | None
    values: tuple[float, ...]
    owner: ProcessIdentity
    owner_token: str
    keeper: ProcessIdentity | None
    uid: int
    program: str
    job: str
    host: str
    since_seconds: float
    failure: str | None = None
    is_changing: bool = False
    driver: str = _FIRST_DRIVER

    def __post_init__(self) -> None:
        if self.knob not in KINDS:
            raise UsageError(f"knob is {self.knob!r:.200}; it must be {' or '.join(KINDS)}")

    @classmethod
    def of_this_process(
        cls, device_uuid: str, device_name: str, kind: Kind, original: float | None, driver: str | None = None
    ) -> LedgerEntry:
        """Return the entry of a device that this process is about to change itself."""
        try:
            owner = ProcessIdentity.current()
        except OSError:  # not Linux: there is no ledger that others could read
            owner = ProcessIdentity("", "", os.getpid(), 0)
        return cls(
            device_uuid=device_uuid,
            device_name=device_name,
            knob=kind.name,
            original=original,
            values=(),
            owner=owner,
            owner_token=program_token(),
            keeper=None,
            uid=os.geteuid() if hasattr(os, "geteuid") else 0,
            program=program_name(),
            job=job_id(),
            host=os.uname().nodename if hasattr(os, "uname") else "",
            since_seconds=time.time(),
            driver=driver or _FIRST_DRIVER,
        )

    @property
    def key(self) -> LedgerKey:
        """The device and the kind of setting."""
        return self.device_uuid, self.knob

    @property
    def kind(self) -> Kind:
        """The kind of setting."""
        return KINDS[self.knob]

    def is_of(self, device_uuid: str) -> bool:
        """Return whether it is of a device."""
        return self.device_uuid == device_uuid

    @property
    def words(self) -> str:
        """The device and the values, such as "the power limit of NVIDIA A40 (GPU-...) to 250 W"."""
        kind = self.kind
        device = printable(f"{self.device_name} ({self.device_uuid})")
        return f"the {kind.words} of {device} to {kind.text(self.original)}"

    @property
    def command(self) -> str:
        """The command with which an administrator restores the original."""
        return self.kind.command([self.device_uuid], self.original)

    @property
    def holder(self) -> str:
        """The owner in words, such as "process 71 (train.py) of user 1000, job 12345, since 2026-11-22 10:31:00"."""
        job = f", job {self.job}" if self.job else ""
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since_seconds))
        return printable(f"process {self.owner.pid} ({self.program}) of user {self.uid}{job}, since {since}")

    def changing_to(self, value: float, in_force: tuple[float, ...] = ()) -> LedgerEntry:
        """Return the entry for the time in which a value is being set; this one if the value is on record.

        Args:
            value: The value.
            in_force: The values that may be in force until then. All others are no longer the owner's: an administrator
                may set one of them.
        """
        if value in self.values and not self.is_changing:
            return self
        others = tuple(other for other in in_force if other != value)
        return replace(self, values=(*others, value), is_changing=True)

    def showing(self, value: float | None) -> LedgerEntry:
        """Return the entry once the board shows a value for the one that was set; this one if nothing is new.

        Args:
            value: The value; None where the board shows none, as for locked clocks.
        """
        new = () if value is None or value in self.values else (value,)
        if not new and not self.is_changing:
            return self
        return replace(self, values=(*self.values, *new), is_changing=False)

    def without_values(self) -> LedgerEntry:
        """Return the entry after the original was restored."""
        return replace(self, values=(), is_changing=False)

    def failed(self, why: str) -> LedgerEntry:
        """Return the entry after it could not be restored."""
        return replace(self, failure=why)

    def to_json(self) -> dict[str, Any]:
        """Return the entry in JSON types."""
        return _DOCUMENT.to_json(self)

    @classmethod
    def from_json(cls, document: Any) -> LedgerEntry:
        """Return the entry that `to_json` has written.

        Raises:
            UsageError: The document is no entry, or has another version.
        """
        return _DOCUMENT.from_json(document)


_DOCUMENT = Document("zeus-core lease", 1, LedgerEntry, "LedgerEntry")


def setting_text(setting: int, unit: str) -> str:
    """Return a setting on record in words, such as "300 W"; its kind is known by the unit."""
    return next((kind.text(setting) for kind in KINDS.values() if kind.unit == unit), f"{setting} {unit}")
