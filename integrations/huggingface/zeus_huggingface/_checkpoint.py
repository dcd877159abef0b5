"""What a Trainer's checkpoint keeps of the energy of its run: a JSON file of our own in its folder."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from zeus_core._files import write_atomically

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
    try:
        write_atomically(checkpoint_folder / _FILE_NAME, json.dumps(state) + "\n")
    except OSError as error:
        _logger.warning("%s cannot be written into %s: %s", _FILE_NAME, checkpoint_folder, error)
