"""The store port: trials kept across runs, so that what was measured once is not measured again."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from zeus_core._files import write_atomically
from zeus_core.errors import UsageError
from zeus_core.measurement import Measurement
from zeus_core.search import Trial

__all__ = ["JsonTrialStore", "NoTrialStore", "TrialStore"]

_FORMAT = "zeus-core trials"
_VERSION = 1

_logger = logging.getLogger(__name__)


class TrialStore(Protocol):
    """Keeps trials under the names of the devices they were measured on. Neither method raises."""

    def load(self, device_names: Sequence[str]) -> list[Trial]:
        """The trials kept for these devices; none if there are none, or they cannot be read."""
        ...

    def save(self, device_names: Sequence[str], trials: Sequence[Trial]) -> None:
        """Keep these trials in place of what was kept."""
        ...


class NoTrialStore:
    """Keeps nothing."""

    def load(self, device_names: Sequence[str]) -> list[Trial]:
        """No trials."""
        return []

    def save(self, device_names: Sequence[str], trials: Sequence[Trial]) -> None:
        """Forget them."""


class JsonTrialStore:
    """Keeps trials in a JSON file.

    The file is replaced as a whole, so a kill leaves the old one or the new one. A file that is damaged, or was
    written by something else or for other GPUs, is kept aside under another name, with a warning.

    Raises:
        UsageError: `path` is a folder.
    """

    def __init__(self, path: Path) -> None:
        if _is_folder(path):
            raise UsageError(
                f"profile_path is {str(path)!r}, which is a folder; name a file in it, such as profile.json"
            )
        self._path = path

    def load(self, device_names: Sequence[str]) -> list[Trial]:
        """The trials in the file."""
        try:
            return _read_profile(json.loads(self._path.read_text(encoding="utf-8")), device_names)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except (OSError, ValueError, RecursionError) as error:  # a UsageError is a ValueError too
            kept = self._keep_aside()
            _logger.warning(
                "the profile %s is not used, and measured again: %s. It is kept %s", self._path, error, kept
            )
            return []

    def save(self, device_names: Sequence[str], trials: Sequence[Trial]) -> None:
        """Write all trials."""
        profile = {
            "format": _FORMAT,
            "version": _VERSION,
            "devices": list(device_names),
            "trials": [_trial_to_json(trial) for trial in trials],
        }
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, json.dumps(profile, indent=2) + "\n")
        except (OSError, ValueError) as error:
            _logger.warning("the profile %s cannot be written, and training goes on without it: %s", self._path, error)

    def _keep_aside(self) -> str:
        number = 1
        try:
            while (aside := self._path.with_name(f"{self._path.name}.aside-{number}")).exists():
                number += 1
            self._path.replace(aside)
        except (OSError, ValueError) as error:
            return f"where it is ({error})"
        return f"as {aside.name}"


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a path that cannot even be looked at; loading and saving warn of it
        return False


def _read_profile(profile: Any, device_names: Sequence[str]) -> list[Trial]:
    if not isinstance(profile, dict) or profile.get("format") != _FORMAT or profile.get("version") != _VERSION:
        raise UsageError(f'it does not say "format": "{_FORMAT}", "version": {_VERSION}')
    if profile.get("devices") != list(device_names):
        raise UsageError(f"it was measured on {profile.get('devices')}, not on {list(device_names)}")
    if not isinstance(profile.get("trials"), list):
        raise UsageError('it has no list of "trials"')
    return [_trial_from_json(fields) for fields in profile["trials"]]


def _trial_to_json(trial: Trial) -> dict[str, Any]:
    return {
        "setting": trial.setting,
        "steps": trial.steps,
        "step_seconds_deviation": trial.step_seconds_deviation,
        "measurement": trial.measurement.to_json(),
    }


def _trial_from_json(fields: Mapping[str, Any]) -> Trial:
    try:
        trial = Trial(
            setting=int(fields["setting"]),
            steps=int(fields["steps"]),
            step_seconds_deviation=float(fields["step_seconds_deviation"]),
            measurement=Measurement.from_json(fields["measurement"]),
        )
    except (KeyError, TypeError, OverflowError) as error:
        raise UsageError(f"one of its trials cannot be read: {error!r}") from error
    if trial.setting <= 0 or trial.steps <= 0 or trial.measurement.time <= 0 or trial.measurement.total_energy is None:
        raise UsageError(f"its trial at {trial.setting} has no steps, no time or no energy")
    if not 0 <= trial.step_seconds_deviation < float("inf"):
        raise UsageError(f"its trial at {trial.setting} has a deviation of {trial.step_seconds_deviation}")
    return trial
