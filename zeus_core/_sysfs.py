"""GPUs that their kernel driver shows as files of sysfs: where they are, and the few files that restoring needs.

A card is a folder `class/drm/cardN/device`. The power limit and the power are in the folder `hwmon/hwmonN` in it, in
microwatts (Documentation/gpu/amdgpu/thermal.rst; ABI/testing/sysfs-driver-intel-i915-hwmon and -xe-hwmon). This module
loads fast and small, as the guardian of each training process may need it. `ZEUS_SYSFS` puts a folder in the place of
/sys, to try things without the hardware.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Mapping

from zeus_core._identity import printable
from zeus_core.errors import (
    DeviceError,
    DeviceLostError,
    DriverFaultError,
    NoDeviceError,
    NotSupportedError,
    PermissionDeniedError,
    UsageError,
)
from zeus_core.units import microwatts_from_watts, watts_from_microwatts

SYSFS_VARIABLE = "ZEUS_SYSFS"

_MAX_BYTES = 8192  # an attribute of sysfs has a page at most
_NVIDIA = "0x10de"
_DISPLAY_CLASS = "0x03"  # the first byte of a class: display controllers, with and without an output
_VENDORS = {"0x1002": "amdgpu", "0x8086": "xe"}  # the driver by PCI vendor, where it does not name itself
# The files of a limit by driver: the one that is set, the default, the lowest (none of Intel's) and the highest.
_INTEL_FILES = ("power1_max", "power1_rated_max", "", "power1_rated_max")
_LIMIT_FILES = {
    "amdgpu": ("power1_cap", "power1_cap_default", "power1_cap_min", "power1_cap_max"),
    "i915": _INTEL_FILES,
    "xe": _INTEL_FILES,
}
_CARD = re.compile(r"card\d{1,6}", re.ASCII)
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_UNIQUE_ID = re.compile(r"(0x)?[0-9a-f]{1,16}", re.ASCII | re.IGNORECASE)
_PLACE = re.compile(rf"GPU-({_PCI.pattern}|{_CARD.pattern})", re.ASCII)
_UUID = re.compile(rf"GPU-[0-9a-f]{{16}}|{_PLACE.pattern}", re.ASCII)
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO})


def sysfs_root(environment: Mapping[str, str] = os.environ) -> str:
    """Return the folder in the place of /sys."""
    return environment.get(SYSFS_VARIABLE, "").strip() or "/sys"


def is_card_uuid(uuid: str) -> bool:
    """Return whether a UUID has the form of a card's: its serial number, else its PCI address."""
    return _UUID.fullmatch(uuid) is not None


def is_place(uuid: str) -> bool:
    """Return whether a UUID is the place of a card in its machine, which a card of another machine may share."""
    return _PLACE.fullmatch(uuid) is not None


class Card:
    """A GPU of sysfs. Nothing is read before a method is called.

    Args:
        folder: Its folder `device`.
        driver: The kernel driver: "amdgpu", "i915" or "xe".
        pci_address: Domain, bus, device and function, "0000:c1:00.0"; None if it is not known.
        name: The name of the card, "card0".
    """

    def __init__(self, folder: str, driver: str, pci_address: str | None, name: str) -> None:
        self.folder = folder
        self.driver = driver
        self.pci_address = pci_address
        self.name = name
        self.unique_id: str | None = None
        """The serial number in 16 hexadecimal digits; None where the board does not report it."""
        self.uuid: str = f"GPU-{pci_address or name}"
        """The identity of the board, which lasts over reboots; that of a board without serial is its PCI address."""

    def read(self, name: str) -> bytes:
        """Read a file of the card in one call.

        Raises:
            NotSupportedError: There is no such file.
            PermissionDeniedError: This process may not read it.
            DeviceLostError: The card is gone.
            DriverFaultError: It cannot be read now, such as while the board sleeps.
        """
        path = os.path.join(self.folder, name)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                return os.read(descriptor, _MAX_BYTES)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _fault(path, self.folder, error, "read") from error

    def read_text(self, name: str) -> str:
        """Read the text of a file. Raises what `read` raises."""
        return printable(self.read(name).decode("ascii", "replace").strip(), besides="\n\t")

    def text(self, name: str) -> str:
        """Return the text of a file; nothing if it cannot be read."""
        try:
            return self.read_text(name)
        except DeviceError:
            return ""

    def read_number(self, name: str) -> int:
        """Read the whole number in a file. Raises what `read` raises, and `DriverFaultError` for anything else."""
        text = self.read_text(name)
        if not (text.isascii() and text.isdigit() and len(text) <= 20):
            raise DriverFaultError(f"{os.path.join(self.folder, name)} holds {text[:40]!r}, which is no number")
        return int(text)

    @property
    def sensors(self) -> list[str]:
        """The folders of the sensors of the whole card, of which some drivers have more for parts of it."""
        names = {folder: self.text(f"hwmon/{folder}/name") for folder in sorted(_entries(f"{self.folder}/hwmon"))}
        others = [folder for folder, name in names.items() if not name.startswith(f"{self.driver}_")]
        return [folder for folder, name in names.items() if name == self.driver] or others[:1]

    def hwmon(self, name: str) -> str:
        """Return the path of a file of the sensors, within the folder of the card; that of a missing one, too.

        Where a card has no sensor of its own, that of its package stands for it, the second channel (xe_hwmon.c).
        """
        folders = self.sensors
        for file in (name, name.replace("1_", "2_", 1)):
            for folder in folders:
                if os.path.exists(os.path.join(self.folder, "hwmon", folder, file)):
                    return f"hwmon/{folder}/{file}"
        return f"hwmon/{folders[0] if folders else 'hwmon'}/{name}"

    @property
    def limit_path(self) -> str:
        """The file in which the power limit is set."""
        return os.path.join(self.folder, self.hwmon(_LIMIT_FILES[self.driver][0]))

    def read_watts(self, name: str) -> float:
        """Read a file of the sensors in watts. Raises what `read_number` raises."""
        return watts_from_microwatts(self.read_number(self.hwmon(name)))

    def read_power_limit_watts(self) -> float:
        """Read the power limit that was set last."""
        limit_watts = self.read_watts(_LIMIT_FILES[self.driver][0])
        if limit_watts == 0:
            raise NotSupportedError(f"the power limit of {self.uuid} is disabled")
        return limit_watts

    def read_default_power_limit_watts(self) -> float:
        """Read the power limit that the driver begins with."""
        return self.read_watts(_LIMIT_FILES[self.driver][1])

    def read_power_limit_range_watts(self) -> tuple[float, float]:
        """Read the lowest and the highest limit that the driver accepts, which may change at any time."""
        _, _, lowest, highest = _LIMIT_FILES[self.driver]
        lowest_watts, highest_watts = self.read_watts(lowest) if lowest else 0.0, self.read_watts(highest)
        if not 0 < highest_watts < 1e5 or lowest_watts > highest_watts:
            raise NotSupportedError(
                f"{self.uuid} accepts no power limit: its range is {lowest_watts:g} to {highest_watts:g} W"
            )
        if lowest_watts == 0:  # not known, or as older kernels say, whose firmware accepts less than any board works at
            lowest_watts = min(self.read_default_power_limit_watts() / 2, highest_watts)  # judgement, 2026-11-26
        return lowest_watts, highest_watts

    def set_power_limit(self, limit_watts: float) -> None:
        """Set the power limit.

        Raises:
            UsageError: The driver refuses this value.
            DeviceError: See `read`.
        """
        path, microwatts = self.limit_path, microwatts_from_watts(limit_watts)
        if microwatts <= 0:  # which switches the limit of Intel's cards off
            raise UsageError(f"limit_watts is {limit_watts:g}; a power limit is more than 0 W")
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)  # as a shell opens it
            try:
                os.write(descriptor, b"%d\n" % microwatts)
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ERANGE):
                raise UsageError(f"limit_watts is {limit_watts:g}; the driver of {self.uuid} refuses it") from error
            fault = _fault(path, self.folder, error, "set")
            if isinstance(fault, PermissionDeniedError):
                fault = PermissionDeniedError(
                    f"{fault}; run as root, or let an admin do it: {limit_command([self.uuid], limit_watts)}"
                )
            raise fault from error


def _fault(path: str, folder: str, error: OSError, action: str) -> DeviceError:
    """Return the meaning of a failed system call."""
    why = error.strerror or str(error)
    if error.errno == errno.EPERM and action == "read":  # drivers/gpu/drm/amd/pm/amdgpu_pm.c
        return DriverFaultError(f"{path} cannot be read now: the board sleeps, or is being reset")
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return PermissionDeniedError(f"{path} may not be {action} by this process ({why})")
    if error.errno in _GONE:
        if os.path.isdir(folder) and error.errno in (errno.ENOENT, errno.ENOTDIR):
            return NotSupportedError(f"there is no {path}: this board or driver does not have it")
        return DeviceLostError(f"{folder} is gone ({why}): the GPU was removed, or its driver unloaded")
    if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS):
        return NotSupportedError(f"{path}: this board does not have it ({why})")
    return DriverFaultError(f"{path} cannot be {action}: {why}")


def find_cards(root: str) -> list[Card]:
    """Find the GPUs of the known drivers, in PCI order. Never raises; what is no such GPU is passed over.

    Nodes of the partitions of a board are no PCI devices, and have no vendor.
    """
    cards = []
    names = filter(_CARD.fullmatch, _entries(os.path.join(root, "class/drm")))
    for name in sorted(names, key=lambda name: int(name[4:])):
        folder = os.path.realpath(os.path.join(root, "class/drm", name, "device"))
        card = Card(folder, "", None, name)
        facts = dict(line.partition("=")[::2] for line in card.text("uevent").splitlines())
        bound = os.path.basename(os.path.realpath(os.path.join(folder, "driver")))
        sensors = [card.text(f"hwmon/{entry}/name") for entry in _entries(f"{folder}/hwmon")]
        vendor = _VENDORS.get(card.text("vendor")) if sensors else None  # else no driver has it
        named = (facts.get("DRIVER"), bound, *sensors, vendor)
        driver = next((driver for driver in named if driver in _LIMIT_FILES), None)
        if driver is not None:
            address = facts.get("PCI_SLOT_NAME", os.path.basename(folder)).lower()
            cards.append(Card(folder, driver, address if _PCI.fullmatch(address) else None, name))
    ids = [card.text("unique_id") for card in cards]
    for card, text in zip(cards, ids, strict=True):
        if _UNIQUE_ID.fullmatch(text) and int(text, 16) and ids.count(text) == 1:
            card.unique_id = f"{int(text, 16):016x}"
            card.uuid = f"GPU-{card.unique_id}"
    return sorted(cards, key=lambda card: card.pci_address or "~")


def open_card(uuid: str) -> Card:
    """Find a card by its UUID.

    Raises:
        NoDeviceError: There is none.
    """
    for card in find_cards(sysfs_root()):
        if card.uuid == uuid:
            return card
    raise NoDeviceError(f"there is no GPU {uuid} in {sysfs_root()}/class/drm")


def has_nvidia_gpu(pci_devices: str) -> bool:
    """Tell whether a folder of PCI devices has a display controller of NVIDIA, which has no driver of sysfs."""
    devices = [Card(f"{pci_devices}/{name}", "", None, name) for name in _entries(pci_devices)]
    return any(
        device.text("vendor") == _NVIDIA and device.text("class").startswith(_DISPLAY_CLASS) for device in devices
    )


def limit_command(uuids: Iterable[str], limit_watts: float) -> str:
    """Return the command by which an administrator sets a power limit on some cards.

    A card that is gone has no file. If its original is on record, it is restored once the card is there again.
    """
    paths = {card.uuid: card.limit_path for card in find_cards(sysfs_root())}
    uuids = list(uuids)
    files = [paths[uuid] for uuid in uuids if uuid in paths]
    gone = [uuid for uuid in uuids if uuid not in paths]
    commands = [f"echo {microwatts_from_watts(limit_watts)} | sudo tee {' '.join(files)}"] if files else []
    if gone:
        commands.append(f"zeus-core restore --stale  # once {', '.join(gone)} is there again")
    return " && ".join(commands)


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
