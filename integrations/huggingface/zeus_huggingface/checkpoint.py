"""What a Trainer's checkpoint keeps of the energy of its run: a JSON file of our own in its folder."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

__all__ = ["read_energy_state", "write_energy_state"]

_FILE_NAME = "zeus_energy.json"

_logger = logging.getLogger(__name__)


def read_energy_state(checkpoint_folder: Path) -> Any:
    """What the checkpoint says of energy; an empty object if it says nothing."""
    try:
        return json.loads((checkpoint_folder / _FILE_NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        _logger.warning("%s in %s cannot be read: %s", _FILE_NAME, checkpoint_folder, error)
        return {}


def write_energy_state(checkpoint_folder: Path, state: Any) -> None:
    """Put it into the checkpoint, if that is there."""
    if not checkpoint_folder.is_dir():
        return
    unfinished = checkpoint_folder / f"{_FILE_NAME}.unfinished"
    try:
        unfinished.write_text(json.dumps(state) + "\n", encoding="utf-8")
        unfinished.replace(checkpoint_folder / _FILE_NAME)
    except OSError as error:
        _logger.warning("%s cannot be written into %s: %s", _FILE_NAME, checkpoint_folder, error)
