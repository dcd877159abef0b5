"""Files that decide what a privileged process does: nobody but an administrator may change them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

__all__ = ["check_trusted"]


def check_trusted(path: Path, state: os.stat_result) -> None:
    """Raise `PermissionError` if others than root and this user could change a file, or what is in a folder."""
    if state.st_uid not in (0, os.geteuid()):
        raise PermissionError(f"{path} belongs to user {state.st_uid}; it must be root's: sudo chown root {path}")
    is_sticky = stat.S_ISDIR(state.st_mode) and state.st_mode & stat.S_ISVTX  # others cannot replace what is ours
    if state.st_mode & 0o022 and not is_sticky:
        raise PermissionError(f"{path} can be changed by others: sudo chmod go-w {path}")
