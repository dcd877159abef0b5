"""The folders in which ledgers are kept, and who may change what is in them."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Mapping

__all__ = ["LEDGER_VARIABLE", "check_trusted", "known_folders", "make_folder", "own_folder"]

LEDGER_VARIABLE = "ZEUS_LEDGER_DIR"

_ROOT_FOLDER = "/run/zeus-core"


def own_folder(environment: Mapping[str, str]) -> str:
    """Return the folder of the ledger that this process writes to: see `own_ledger`."""
    if environment.get(LEDGER_VARIABLE):
        return environment[LEDGER_VARIABLE]
    if os.geteuid() == 0:
        return _ROOT_FOLDER
    if environment.get("XDG_RUNTIME_DIR"):
        return os.path.join(environment["XDG_RUNTIME_DIR"], "zeus-core")
    return f"/tmp/zeus-core-{os.geteuid()}"


def known_folders(environment: Mapping[str, str]) -> list[str]:
    """Return the folders of ledgers that are there: that of this process, and that of root."""
    return [folder for folder in dict.fromkeys((own_folder(environment), _ROOT_FOLDER)) if os.path.isdir(folder)]


def make_folder(folder: str) -> None:
    """Make a folder that only this user can write to, or check that it is one, and that it is no link.

    Raises:
        OSError: It cannot be made, or belongs to others.
    """
    with contextlib.suppress(FileExistsError):
        os.makedirs(folder, 0o755 if os.geteuid() == 0 else 0o700)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "it is no folder, or a link to one", folder)
    if found.st_uid not in {0, os.geteuid()}:
        raise PermissionError(errno.EPERM, f"it belongs to user {found.st_uid}", folder)
    if found.st_mode & 0o022:
        raise PermissionError(errno.EPERM, "others can change it: chmod go-w", folder)


def check_trusted(folder: str) -> None:
    """Check that only this user, or root, can change what is in a folder. Raises `OSError` otherwise."""
    from pathlib import Path

    from zeus_core._files import check_only_ours  # which the guardian, who is told the folder, does without

    check_only_ours(Path(folder))
