"""The store port: trials kept across runs, so that no setting is measured twice under the same conditions."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zeus_core.codec import decode, encode
from zeus_core.documents import Document, parse_json
from zeus_core.errors import UsageError
from zeus_core.files import folder_lock, is_special
from zeus_core.measurement import Measurement
from zeus_core.search import Trial
from zeus_core.validate import shown

_OUT_OF_MEMORY = "out_of_memory"

# A file of the `zeus` package does not say how many steps it measured at each limit: these, unless the user says so.
_ZEUS_STEPS = 40
_ZEUS_KNOB = "power limit"

# Profiles in one file; those that were saved longest ago go first. One takes some kilobytes, and the file is replaced
# as a whole after every trial.
_MAX_PROFILES = 100

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Conditions:
    """The conditions of trials. Those of other conditions say nothing about these.

    Attributes:
        gpus: The name of each GPU of the job.
        drivers: The versions of their drivers, as far as they are known.
        original_limits_watts: The original power limit of each GPU; None for one that reports none.
        knob: The name of the setting that is tried, such as "power limit".
        work: Facts that distinguish the work of a step from other work, such as the size of the model, by name.
    """

    gpus: tuple[str, ...]
    drivers: tuple[str, ...] = ()
    original_limits_watts: tuple[float | None, ...] = ()
    knob: str = "power limit"
    work: Mapping[str, int | str] = field(default_factory=dict)

    def of_part(self, fact: str, value: str) -> Conditions:
        """Return the conditions of a part of this work, which a fact distinguishes from other parts."""
        return replace(self, work={**self.work, fact: value})

    def part_in(self, other: Any, fact: str) -> str | None:
        """Return the part of this work that has other conditions, in JSON types, by a fact; None if no part has."""
        work = other.get("work") if isinstance(other, Mapping) else None
        value = work.get(fact) if isinstance(work, Mapping) else None
        return value if isinstance(value, str) and other == encode(self.of_part(fact, value)) else None

    def differences(self, other: Mapping[str, Any]) -> list[str]:
        """Return what other conditions, in JSON types, have in place of these, in words."""
        own: dict[str, Any] = encode(self)
        pairs = {name: (own[name], other.get(name)) for name in own if name != "work"}
        own_work, work = own["work"], other.get("work")
        work = work if isinstance(work, Mapping) else {}
        pairs |= {f"work: {name}": (own_work.get(name), work.get(name)) for name in {**own_work, **work}}
        return [
            f"{name.replace('_', ' ')} {shown(theirs)} instead of {shown(ours)}"
            for name, (ours, theirs) in pairs.items()
            if ours != theirs
        ]


@dataclass(frozen=True)
class _Profiles:
    """The content of a file. Each profile is decoded when it is used: a damaged one does not cost the others."""

    profiles: list[dict[str, Any]]


_PROFILES = Document("zeus-core trials", 2, _Profiles, "the profile")


class TrialStore:
    """Keeps trials under the conditions they were measured under: by itself, none. No method raises."""

    def load(self, conditions: Conditions) -> list[Trial]:
        """Return the trials kept for these conditions; none if there are none, or they cannot be read."""
        return []

    def load_parts(self, conditions: Conditions, fact: str) -> dict[str, list[Trial]]:
        """Return the trials kept for parts of the work of these conditions, by the value of the fact that differs."""
        return {}

    def load_out_of_memory(self, conditions: Conditions) -> list[int]:
        """Return the settings that were out of memory under these conditions."""
        return []

    def save(self, conditions: Conditions, trials: Sequence[Trial], out_of_memory: Sequence[int] = ()) -> None:
        """Replace all that is kept for these conditions by these trials, and settings that were out of memory."""


class JsonTrialStore(TrialStore):
    """Keeps trials in a JSON file, which holds those of many jobs.

    The file is replaced as a whole, so a kill leaves the old one or the new one. Several processes may save at the same
    time: each replaces the trials of its own conditions alone. A file of this program that is damaged, or of an older
    version, is set aside under another name, with a warning. Trials of other conditions are not used, which is logged
    once; they stay in the file.

    A file of another program stays as it is, and trials are kept in one beside it. That of a power-limit optimizer of
    the `zeus` package is read: it holds limits (W), energies (J) and times (s) of some steps each.

    Args:
        path: The file.
        zeus_steps: The steps at each limit in such a file; None for those that `zeus` usually measures.

    Raises:
        UsageError: `path` is a folder or a device.
    """

    def __init__(self, path: Path, zeus_steps: int | None = None) -> None:
        if is_special(path):
            raise UsageError(
                f"profile_path is {str(path)!r}, which is a folder or a device; name a file, such as profile.json"
            )
        self._path = path
        self._zeus_steps = zeus_steps or _ZEUS_STEPS
        self._has_reported = False
        self._own_path = path
        self._has_failed = False

    def load(self, conditions: Conditions) -> list[Trial]:
        """Return the trials in the file."""
        profiles = self._profiles()
        profile = _profile_of(conditions, profiles)
        if profile is not None:
            try:
                return decode(list[Trial], profile.get("trials"), "trials")
            except UsageError as error:
                _logger.warning(
                    "the trials of this job in the profile %s are damaged, and measured again: %s", self._path, error
                )
                return []
        if conditions.knob == _ZEUS_KNOB and (trials := self._trials_of_zeus()):
            return trials
        nearest = nearest_conditions(conditions, profiles)
        if nearest is not None and not self._has_reported:
            self._has_reported = True
            _logger.warning(
                "the profile %s has no trials that fit, and they are measured: those that are nearest have %s",
                self._path,
                nearest,
            )
        return []

    def load_parts(self, conditions: Conditions, fact: str) -> dict[str, list[Trial]]:
        """Return the trials in the file; those that are damaged are measured again."""
        found = {}
        for profile in self._profiles():
            part = conditions.part_in(profile.get("conditions"), fact)
            if part is not None:
                with contextlib.suppress(UsageError):
                    found[part] = decode(list[Trial], profile.get("trials"), "trials")
        return found

    def load_out_of_memory(self, conditions: Conditions) -> list[int]:
        """Return the settings in the file that were out of memory."""
        profile = _profile_of(conditions, self._profiles()) or {}
        try:
            return decode(list[int], profile.get(_OUT_OF_MEMORY, []), _OUT_OF_MEMORY)
        except UsageError as error:
            _logger.warning("the profile %s is damaged, and sizes out of memory are tried again: %s", self._path, error)
            return []

    def save(self, conditions: Conditions, trials: Sequence[Trial], out_of_memory: Sequence[int] = ()) -> None:
        """Write all trials of these conditions, and keep those of others."""
        own = encode(conditions)
        with folder_lock(self._path.parent):
            profiles = [profile for profile in self._profiles() if profile.get("conditions") != own]
            if trials or out_of_memory:
                kept = {_OUT_OF_MEMORY: sorted(out_of_memory)} if out_of_memory else {}
                profiles.append({"conditions": own, "trials": encode(list(trials)), **kept})
            kept_profiles = _Profiles(profiles[-_MAX_PROFILES:])
            self._has_failed = not _PROFILES.save(self._file, kept_profiles, warns=not self._has_failed)

    def _profiles(self) -> list[dict[str, Any]]:
        found = _PROFILES.load(self._file)
        return [] if found is None else found.profiles

    @property
    def _file(self) -> Path:
        """The file, or one beside it from the first time on that it is found to be that of another program."""
        path = self._path
        if self._own_path == path and _is_foreign(path):
            self._own_path = path.with_name(f"{path.stem}-zeus-core{path.suffix}")
            _logger.warning(
                "the profile %s is that of another program and stays as it is; trials are kept in %s",
                *(path, self._own_path),
            )
        return self._own_path

    def _trials_of_zeus(self) -> list[Trial]:
        if not _is_foreign(self._path):
            return []
        try:
            return _trials_in_zeus(parse_json(self._path.read_text(encoding="utf-8")), self._zeus_steps)
        except (OSError, ValueError) as error:  # a UsageError is a ValueError, too
            _logger.warning("the profile %s is not used: %s", self._path, error)
            return []


def _profile_of(conditions: Conditions, profiles: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    wanted = encode(conditions)
    return next((profile for profile in profiles if profile.get("conditions") == wanted), None)


def _is_foreign(path: Path) -> bool:
    """Return whether there is a file with something in it that this program has not written."""
    try:
        with path.open("rb") as file:
            head = file.read(200)
    except (OSError, ValueError):
        return False
    return bool(head.strip()) and b'"format": "zeus-core' not in head


def _trials_in_zeus(document: Any, steps: int) -> list[Trial]:
    """Return the trials in a profile of the `zeus` package: `{"measurements": [{"power_limit", "energy", "time"}]}`."""
    found = document.get("measurements") if isinstance(document, Mapping) else None
    if not isinstance(found, list):
        raise UsageError("it is no profile")
    measured = [decode(_ZeusMeasurement, one, f"measurements[{number}]") for number, one in enumerate(found)]
    return [
        Trial(round(one.power_limit), steps, Measurement.from_energies(one.time, {0: one.energy})) for one in measured
    ]


@dataclass(frozen=True)
class _ZeusMeasurement:
    power_limit: float
    energy: float
    time: float


def latest_trials(document: Any) -> list[Trial]:
    """Return the trials of the job that was saved last in a profile, as its file holds it.

    Raises:
        UsageError: It is no profile, or its trials are damaged.
    """
    if isinstance(document, Mapping) and "measurements" in document:
        return _trials_in_zeus(document, _ZEUS_STEPS)
    profiles = _PROFILES.from_json(document).profiles
    return decode(list[Trial], profiles[-1].get("trials"), "trials") if profiles else []


def nearest_conditions(conditions: Conditions, kept: Sequence[Mapping[str, Any]]) -> str | None:
    """Return what the nearest of the conditions that are kept have in place of these, in words.

    None if there is nothing to say: none are kept, or the same job has tried another knob.
    """
    found = [one["conditions"] if isinstance(one.get("conditions"), Mapping) else {} for one in kept]
    if not found or any({**one, "knob": conditions.knob} == encode(conditions) for one in found):
        return None
    return ", ".join(sorted((conditions.differences(one) for one in found), key=len)[0])


def checked_facts(argument: str, facts: Mapping[str, int | str]) -> dict[str, int | str]:
    """Return the facts of an argument that distinguish work from other work.

    Raises:
        UsageError: They are no mapping of names to whole numbers or text.
    """
    if isinstance(facts, Mapping) and all(
        isinstance(name, str) and isinstance(value, int | str) for name, value in facts.items()
    ):
        return dict(facts)
    raise UsageError(
        f'{argument} is {shown(facts)}; it must be facts by name, such as {{"parameters": 124439808, "batch_size": 32}}'
    )
