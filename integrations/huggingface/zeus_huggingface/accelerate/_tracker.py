"""A tracker that writes JSON lines."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from accelerate import tracking

from zeus_core.adapters import contained
from zeus_core.files import without_links
from zeus_core.validate import checked_path


class ZeusTracker(tracking.GeneralTracker):  # type: ignore[misc]
    """Appends each log to `<logging_dir>/<run_name>.jsonl`, on the main process, and writes nothing else.

    Each line is a JSON object with `time` (seconds since 1970), `step` (null if none was given) and the values; the
    configuration given to `accelerator.init_trackers` is under `config` in a line of its own. A file that cannot be
    written is reported once, and training continues.

    `Accelerator(log_with="zeus", project_dir=...)` makes one where accelerate has `register_tracker_class`; elsewhere
    pass an object: `Accelerator(log_with=ZeusTracker("run", "logs"))`.

    Args:
        run_name: Name of the project, as given to `accelerator.init_trackers`.
        logging_dir: Folder.

    Raises:
        UsageError: An argument is of another type.
    """

    name = "zeus"
    requires_logging_directory = True

    def __init__(self, run_name: str, logging_dir: str | Path) -> None:
        super().__init__()
        folder = Path(checked_path("logging_dir", logging_dir, "logs", "folder"))
        self.path = folder / f"{run_name}.jsonl"
        """The file."""

    @property
    def tracker(self) -> Path:
        """The file; accelerate asks for the object behind a tracker."""
        return self.path

    @tracking.on_main_process  # type: ignore[untyped-decorator]
    @contained
    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Write the configuration of a run."""
        self._write({"time": time.time(), "config": values})

    @tracking.on_main_process  # type: ignore[untyped-decorator]
    @contained
    def log(self, values: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
        """Write what is logged."""
        self._write({"time": time.time(), "step": step, **values})

    def _write(self, line: Mapping[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a", encoding="utf-8", opener=without_links) as file:
            file.write(json.dumps(line, default=_number_or_text) + "\n")


def _number_or_text(value: Any) -> float | str:
    """Convert a value that JSON does not have: scalars of torch and numpy to numbers, all else to text."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return str(value)


with suppress(AttributeError):  # an older accelerate has no registry of trackers
    tracking.register_tracker_class(ZeusTracker)
