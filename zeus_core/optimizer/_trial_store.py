"""The store port: trials kept across runs, so that no limit is measured twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from zeus_core._codec import decode, encode
from zeus_core._files import JsonFormat, JsonStore, is_special
from zeus_core._validate import shown
from zeus_core.errors import UsageError
from zeus_core.search import Trial

__all__ = ["JsonTrialStore", "NoTrialStore", "TrialStore"]

_FORMAT = JsonFormat("zeus-core trials", 1)


class TrialStore(Protocol):
    """Keeps trials under the names of the devices they were measured on. Neither method raises."""

    def load(self, device_names: Sequence[str]) -> list[Trial]:
        """Return the trials kept for these devices; none if there are none, or they cannot be read."""
        ...

    def save(self, device_names: Sequence[str], trials: Sequence[Trial]) -> None:
        """Replace all that is kept by these trials."""
        ...


class NoTrialStore:
    """Keeps nothing."""

    def load(self, device_names: Sequence[str]) -> list[Trial]:
        """Return no trials."""
        return []

    def save(self, device_names: Sequence[str], trials: Sequence[Trial]) -> None:
        """Forget the trials."""


class JsonTrialStore:
    """Keeps trials in a JSON file.

    The file is replaced as a whole, so a kill leaves the old one or the new one. A file that is damaged, or was
    written by something else, is set aside under another name, with a warning. A file of other GPUs stays: the trials
    of these are kept beside it.

    Raises:
        UsageError: `path` is a folder or a device.
    """

    def __init__(self, path: Path) -> None:
        if is_special(path):
            raise UsageError(
                f"profile_path is {str(path)!r}, which is a folder or a device; name a file, such as profile.json"
            )
        self._path = path

    def load(self, device_names: Sequence[str]) -> list[Trial]:
        """Return the trials in the file."""
        return self._store(device_names).load(partial(_trials_on, device_names)) or []

    def save(self, device_names: Sequence[str], trials: Sequence[Trial]) -> None:
        """Write all trials."""
        self._store(device_names).save({"devices": list(device_names), "trials": encode(trials)})

    def _store(self, device_names: Sequence[str]) -> JsonStore:
        return JsonStore(self._path, _FORMAT, "profile", {"devices": list(device_names)})


def _trials_on(device_names: Sequence[str], fields: Mapping[str, Any]) -> list[Trial]:
    if fields.get("devices") != list(device_names):
        raise UsageError(f"it was measured on {shown(fields.get('devices'))}, not on {list(device_names)}")
    return decode(list[Trial], fields.get("trials"), "trials")
