"""Measured profiles, saved for the same job to continue with: in a file, or in a checkpoint."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zeus_core._files import write_atomically
from zeus_core.errors import UsageError
from zeus_core.optimizer.pipeline_frequency._profiler import RankProfile

__all__ = ["load_profiles", "profiles_from_json", "profiles_to_json", "save_profiles"]

_FORMAT = "zeus-core pipeline profile of a job"
_VERSION = 2

_logger = logging.getLogger(__name__)


def profiles_to_json(fingerprint: Sequence[Any], profiles: Sequence[RankProfile]) -> dict[str, Any]:
    """The profiles of all ranks, and what they are valid for, in JSON types."""
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "fingerprint": list(fingerprint),
        "ranks": [it.to_json() for it in profiles],
    }


def profiles_from_json(fields: Any, fingerprint: Sequence[Any]) -> list[RankProfile]:
    """What `profiles_to_json` made.

    Raises:
        UsageError: It is something else, or the profile of another job; the message names what differs.
    """
    if not isinstance(fields, Mapping) or fields.get("format") != _FORMAT or fields.get("version") != _VERSION:
        raise UsageError(f'it does not say "format": "{_FORMAT}", "version": {_VERSION}')
    _check_fingerprint(fields.get("fingerprint"), json.loads(json.dumps(list(fingerprint))))
    try:
        profiles = [RankProfile.from_json(it) for it in fields["ranks"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"it cannot be read: {error!r}") from error
    if len(profiles) != len(fingerprint):
        raise UsageError(f"it holds profiles of {len(profiles)} ranks; this job has {len(fingerprint)}")
    return profiles


def load_profiles(path: Path, fingerprint: Sequence[Any]) -> list[RankProfile]:
    """The profiles saved in a file; none if there is no file.

    Raises:
        UsageError: The file cannot be read, or is not the profile of this job; the message names it.
    """
    try:
        return profiles_from_json(json.loads(path.read_text(encoding="utf-8")), fingerprint)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError, RecursionError) as error:  # a UsageError is a ValueError too
        raise UsageError(f"{path}: {error}") from error


def save_profiles(path: Path, fields: Mapping[str, Any]) -> None:
    """Save profiles in a file, which is replaced as a whole. Never raises."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(fields) + "\n")
    except (OSError, ValueError) as error:
        _logger.warning("the profile %s could not be saved; training continues: %s", path, error)


def _check_fingerprint(found: Any, wanted: Sequence[Mapping[str, Any]]) -> None:
    if found == wanted:
        return
    if not isinstance(found, list):
        raise UsageError(f"its fingerprint is {found!r}; it must be a list")
    if len(found) != len(wanted):
        raise UsageError(f"it was measured with {len(found)} ranks; this job has {len(wanted)}")
    for rank, (theirs, ours) in enumerate(zip(found, wanted, strict=True)):
        if not isinstance(theirs, Mapping):
            raise UsageError(f"rank {rank} was {theirs}, and is now {ours}")
        for name in {**ours, **theirs}:
            if theirs.get(name) != ours.get(name):
                raise UsageError(f"the {name} of rank {rank} was {theirs.get(name)}, and is now {ours.get(name)}")
