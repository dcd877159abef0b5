"""The energy state in a checkpoint folder: a JSON file of this package."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from zeus_core.files import write_atomically

_FILE_NAME = "zeus_energy.json"

_logger = logging.getLogger(__name__)


def read_energy_state(checkpoint_folder: Path) -> Any:
    """Return the state in a checkpoint; an empty object if there is none."""
    try:
        return json.loads((checkpoint_folder / _FILE_NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        _logger.warning("%s in %s cannot be read: %s", _FILE_NAME, checkpoint_folder, error)
        return {}


def write_energy_state(checkpoint_folder: Path, state: Any) -> None:
    """Write the state into a checkpoint, if its folder exists."""
    if not checkpoint_folder.is_dir():
        return
    try:
        # It lasts as the other files of the checkpoint do: training does not wait for the disk.
        write_atomically(checkpoint_folder / _FILE_NAME, json.dumps(state) + "\n", is_lasting=False)
    except OSError as error:
        _logger.warning("%s cannot be written into %s: %s", _FILE_NAME, checkpoint_folder, error)
