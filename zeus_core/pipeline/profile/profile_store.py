"""Profiles kept for the same job to continue with: in a file, or in a checkpoint."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zeus_core.codec import encode
from zeus_core.documents import Document, set_aside
from zeus_core.errors import UsageError
from zeus_core.files import folder_lock
from zeus_core.pipeline.profile.job_profile import JobProfile
from zeus_core.pipeline.profile.pipeline_job import PipelineJob
from zeus_core.pipeline.profile.rank_profile import RankProfile

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _KeptProfile:
    """The profile of a job, and facts of each of its ranks."""

    fingerprint: list[dict[str, Any]]
    ranks: tuple[RankProfile, ...]


_PROFILE = Document("zeus-core pipeline profile of a job", 3, _KeptProfile, "the profile")


def profile_to_json(profile: JobProfile) -> dict[str, Any]:
    """Return a profile and the fingerprint of its job, in JSON types."""
    return _PROFILE.to_json(_kept(profile))


def save_profile(path: str, profile: JobProfile) -> None:
    """Save a profile in a file, which is replaced as a whole. Never raises."""
    with folder_lock(Path(path).parent):  # two jobs that begin together must not take the same file
        _PROFILE.save(_file(path, profile.job), _kept(profile))


def kept_profile(job: PipelineJob, checkpoint: Any, path: str | None) -> JobProfile | None:
    """Return the profile that an earlier run of this job has kept.

    Args:
        job: The job.
        checkpoint: The profile of a checkpoint, as `profile_to_json` made it; empty without one.
        path: The user's file, which is read if there is no checkpoint; None without one.

    Returns:
        The profile; None if there is none, or if it cannot be used, which is logged.
    """
    if checkpoint:
        try:
            return _profile(job, _PROFILE.from_json(checkpoint))
        except UsageError as error:
            _logger.warning("the profile of the checkpoint is not used; measuring again: %s", error)
            return None
    if path is None:
        return None
    file = _file(path, job)
    if file != Path(path):
        level = logging.INFO if file.exists() else logging.WARNING  # once is enough
        words = "the profile %s is that of another job: %s. It stays, and this job keeps its own in %s"
        _logger.log(level, words, path, _difference_of_jobs(_PROFILE.read(Path(path)), job), file.name)
    kept = _PROFILE.load(file)
    try:
        return None if kept is None else _profile(job, kept)
    except UsageError as error:
        set_aside(file, _PROFILE.contents, error)
        return None


def _file(path: str, job: PipelineJob) -> Path:
    """Return the file of a job: the one that its user names, or one beside it if that holds another job's profile."""
    file, fingerprint = Path(path), encode(job.fingerprint)
    try:
        is_of_another = _PROFILE.read(file).fingerprint != fingerprint
    except (OSError, UsageError):  # there is none, or it holds nobody's profile
        return file
    if not is_of_another:
        return file
    name = hashlib.sha256(json.dumps(fingerprint, sort_keys=True).encode()).hexdigest()[:8]
    return file.with_name(f"{file.stem}-{name}{file.suffix}")


def _difference_of_jobs(kept: _KeptProfile, job: PipelineJob) -> str:
    try:
        _check_fingerprint(kept.fingerprint, encode(job.fingerprint))
    except UsageError as difference:
        return str(difference)
    return "it was replaced meanwhile"


def _kept(profile: JobProfile) -> _KeptProfile:
    return _KeptProfile(encode(profile.job.fingerprint), tuple(profile.ranks))


def _profile(job: PipelineJob, kept: _KeptProfile) -> JobProfile:
    _check_fingerprint(kept.fingerprint, encode(job.fingerprint))
    if len(kept.ranks) != len(job.ranks):
        raise UsageError(f"it holds profiles of {len(kept.ranks)} ranks; this job has {len(job.ranks)}")
    profile = JobProfile(job, kept.ranks)
    profile.check_usable()
    return profile


def _check_fingerprint(saved: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]]) -> None:
    if saved == wanted:
        return
    if len(saved) != len(wanted):
        raise UsageError(f"it was measured with {len(saved)} ranks; this job has {len(wanted)}")
    for rank, (theirs, ours) in enumerate(zip(saved, wanted, strict=True)):
        for name in {**ours, **theirs}:
            if theirs.get(name) != ours.get(name):
                raise UsageError(f"the {name} of rank {rank} {_difference(theirs.get(name), ours.get(name))}")


def _difference(saved: Any, wanted: Any) -> str:
    """Return in words what differs of one fact, or in which of several facts it does."""
    if not isinstance(saved, Mapping) or not isinstance(wanted, Mapping):
        return f"was {_words(saved)}, and is now {_words(wanted)}"
    names = [name for name in {**saved, **wanted} if saved.get(name) != wanted.get(name)]
    return "differs: " + "; ".join(
        f"{name} was {_words(saved.get(name))}, and is now {_words(wanted.get(name))}" for name in names
    )


def _words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_words, value)) or "nothing"
    return "not known" if value is None else str(value)
