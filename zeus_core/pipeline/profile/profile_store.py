"""Profiles kept for the same job to continue with: in a file, or in a checkpoint."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zeus_core._documents import JsonFormat, JsonStore
from zeus_core.codec import decode, encode
from zeus_core.errors import UsageError
from zeus_core.files import folder_lock, is_special
from zeus_core.pipeline.profile.job_profile import JobProfile
from zeus_core.pipeline.profile.pipeline_job import PipelineJob
from zeus_core.pipeline.profile.rank_profile import RankProfile
from zeus_core.validate import shown

_FORMAT = JsonFormat("zeus-core pipeline profile of a job", 3)

_logger = logging.getLogger(__name__)


def profile_to_json(profile: JobProfile) -> dict[str, Any]:
    """Return a profile and the fingerprint of its job, in JSON types."""
    return _FORMAT.document(_fields(profile))


def save_profile(path: str, profile: JobProfile) -> None:
    """Save a profile in a file, which is replaced as a whole. Never raises."""
    with folder_lock(Path(path).parent):  # two jobs that begin together must not take the same file
        _store(path, profile.job).save(_fields(profile))


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
            return _profile(job, _FORMAT.fields(checkpoint))
        except UsageError as error:
            _logger.warning("the profile of the checkpoint is not used; measuring again: %s", error)
            return None
    if path is None:
        return None
    store = _store(path, job)
    if store.path != Path(path):
        level = logging.INFO if store.path.exists() else logging.WARNING  # once is enough
        words = "the profile %s is that of another job: %s. It stays, and this job keeps its own in %s"
        _logger.log(level, words, path, _difference_of_jobs(_FORMAT.read(Path(path)), job), store.path.name)
    return store.load(lambda fields: _profile(job, fields))


def _store(path: str, job: PipelineJob) -> JsonStore:
    """Return the file of a job: the one that its user names, or one beside it if that holds another job's profile."""
    file, fingerprint = Path(path), _fingerprint(job)
    try:
        saved = None if is_special(file) else _FORMAT.read(file).get("fingerprint")
    except (OSError, UsageError):  # there is none, or it holds nobody's profile
        saved = None
    if saved is not None and saved != fingerprint:
        name = hashlib.sha256(json.dumps(fingerprint, sort_keys=True).encode()).hexdigest()[:8]
        file = file.with_name(f"{file.stem}-{name}{file.suffix}")
    return JsonStore(file, _FORMAT, "profile")


def _fingerprint(job: PipelineJob) -> list[Any]:
    """Return the fingerprint of a job as it is read from a file: JSON makes lists of tuples."""
    fingerprint: list[Any] = json.loads(json.dumps(job.fingerprint))
    return fingerprint


def _difference_of_jobs(fields: Mapping[str, Any], job: PipelineJob) -> str:
    try:
        _check_fingerprint(fields.get("fingerprint"), _fingerprint(job))
    except UsageError as difference:
        return str(difference)
    return "it was replaced meanwhile"


def _fields(profile: JobProfile) -> dict[str, Any]:
    return {"fingerprint": profile.job.fingerprint, "ranks": encode(profile.ranks)}


def _profile(job: PipelineJob, fields: Mapping[str, Any]) -> JobProfile:
    _check_fingerprint(fields.get("fingerprint"), _fingerprint(job))
    ranks = decode(tuple[RankProfile, ...], _with_new_fields(fields.get("ranks")), "ranks")
    if len(ranks) != len(job.ranks):
        raise UsageError(f"it holds profiles of {len(ranks)} ranks; this job has {len(job.ranks)}")
    profile = JobProfile(job, ranks)
    profile.check_usable()
    return profile


def _with_new_fields(ranks: Any) -> Any:
    """Return the ranks of a file, which may have been written before there was a power of waiting by the clock."""
    if not isinstance(ranks, list):
        return ranks
    return [{"blocking_watts_by_clock": [], **rank} if isinstance(rank, Mapping) else rank for rank in ranks]


def _check_fingerprint(saved: Any, wanted: Sequence[Mapping[str, Any]]) -> None:
    if saved == wanted:
        return
    if not isinstance(saved, list):
        raise UsageError(f"its fingerprint is {shown(saved)}; it must be a list")
    if len(saved) != len(wanted):
        raise UsageError(f"it was measured with {len(saved)} ranks; this job has {len(wanted)}")
    for rank, (theirs, ours) in enumerate(zip(saved, wanted, strict=True)):
        if not isinstance(theirs, Mapping):
            raise UsageError(f"its fingerprint of rank {rank} is {shown(theirs)}; it must hold facts by name")
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
