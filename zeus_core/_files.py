"""Replacing a file as a whole, so that a kill leaves the old one or the new one."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["write_atomically"]


def write_atomically(path: Path, text: str) -> None:
    """Put a text into a file, completely or not at all.

    Raises:
        OSError: It cannot be written.
        ValueError: There can be no file of that name.
    """
    unfinished = path.with_name(f"{path.name}.unfinished-{os.getpid()}")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
