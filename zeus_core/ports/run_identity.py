"""The user, the job and the tags of a run: recorded once by each part, and in no report, page or statement."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from zeus_core._identity import is_anonymous, job_id, printable
from zeus_core.environment import TAGS
from zeus_core.ports.site_defaults import DEFAULTS_VARIABLE, with_site_defaults

_logger = logging.getLogger(__name__)

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_CGROUP_JOB = re.compile(r"/job_(\d+)(?:/|$)", re.MULTILINE)
_TAG_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MAX_TAGS = 32
_MAX_CHARACTERS = 200  # of a value


@dataclass(frozen=True)
class RunIdentity:
    """The user, the job and the tags of a part of a run; a text that is not known is empty.

    Attributes:
        user: The user by Slurm, or else that of the process.
        job: The id of the job, by Slurm or PBS.
        job_name: Its name, by Slurm.
        project: The tag `project`, or else the account of Slurm.
        cluster: The tag `cluster`, or else the name of the cluster of Slurm.
        namespace: The namespace of Kubernetes.
        pod: The pod of Kubernetes.
        tags: Those of `ZEUS_TAGS`, and of the site.
    """

    user: str = ""
    job: str = ""
    job_name: str = ""
    project: str = ""
    cluster: str = ""
    namespace: str = ""
    pod: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


def identity_here() -> RunIdentity | None:
    """Return the identity of the run of this process; None with `ZEUS_TAGS=none`. Never raises."""
    known = with_site_defaults(os.environ)
    if "KUBERNETES_SERVICE_HOST" in known and not known.get("POD_NAMESPACE"):
        known = {**known, "POD_NAMESPACE": _namespace()}
    return identity_from(known, _clean(known.get("SLURM_JOB_USER") or _user()))


def identity_from(known: Mapping[str, str], user: str) -> RunIdentity | None:
    """Return the identity of a user's process with these variables; None with `ZEUS_TAGS=none`."""
    if is_anonymous(known):
        return None
    tags = _tags(known.get(TAGS, ""))
    in_pod = "KUBERNETES_SERVICE_HOST" in known
    return RunIdentity(
        user=user,
        job=_clean(job_id(known)),
        job_name=_clean(known.get("SLURM_JOB_NAME", "")),
        project=tags.get("project") or _clean(known.get("SLURM_JOB_ACCOUNT", "")),
        cluster=tags.get("cluster") or _clean(known.get("SLURM_CLUSTER_NAME", "")),
        namespace=_clean(known.get("POD_NAMESPACE", "")) if in_pod else "",
        pod=_clean(known.get("POD_NAME") or known.get("HOSTNAME", "")) if in_pod else "",
        tags=tags,
    )


@lru_cache(maxsize=4096)
def identity_of(process_id: int, start_ticks: int) -> RunIdentity:
    """Return whose a process is: its user by the kernel, all else by its environment, or by Slurm's control group.

    The environment can be read by root and by the user of the process alone.

    Args:
        process_id: The process.
        start_ticks: When it began, as its number may be another one's later.
    """
    environment: dict[str, str] = {}
    user = job = ""
    folder = Path(f"/proc/{process_id}")
    with suppress(OSError):
        user = user_name(folder.stat().st_uid)
    with suppress(OSError):
        pairs = (pair.partition(b"=") for pair in (folder / "environ").read_bytes().split(b"\0"))
        environment = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    with suppress(OSError):
        job = slurm_job((folder / "cgroup").read_text(errors="replace"))
    environment.pop(DEFAULTS_VARIABLE, None)  # which names a file that this process is not to open
    known = with_site_defaults({**({"SLURM_JOB_ID": job} if job else {}), **environment})
    return identity_from(known, user) or RunIdentity()


def slurm_job(cgroups: str) -> str:
    """Return the job whose control group a process is in, by its file `cgroup`, of version 1 or 2; empty if in none."""
    found = _CGROUP_JOB.search(cgroups)
    return "" if found is None else found[1]


def _tags(text: str) -> dict[str, str]:
    """Return the tags of "team=nlp,project=x"; those that cannot be recorded are left out, with one warning."""
    tags: dict[str, str] = {}
    refused = []
    for pair in filter(str.strip, text.split(",")):
        name, is_pair, value = (part.strip() for part in pair.partition("="))
        fits = is_pair and _TAG_NAME.fullmatch(name) and value.isprintable() and len(value) <= _MAX_CHARACTERS
        if fits and (name in tags or len(tags) < _MAX_TAGS):
            tags[name] = value
        else:
            refused.append(pair[:40])
    if refused:
        _logger.warning(
            "%d tags of ZEUS_TAGS are not recorded, the first is %r: give at most %d as team=nlp,project=x, each name "
            "of letters, digits and _.-, each value of at most %d characters in one line",
            *(len(refused), refused[0], _MAX_TAGS, _MAX_CHARACTERS),
        )
    return tags


def _user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container without an entry for its user
        return f"{os.getuid()}" if hasattr(os, "getuid") else ""


def user_name(uid: int) -> str:
    """Return the name of a user of this machine; the number of one without a name."""
    import pwd

    try:
        return _clean(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return f"{uid}"


def _namespace() -> str:
    try:
        return _NAMESPACE_FILE.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _clean(text: str) -> str:
    return printable(text)[:_MAX_CHARACTERS]
