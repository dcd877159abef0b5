"""The file a monitor appends finished windows to."""

import csv
import io
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from zeus_core.errors import UsageError
from zeus_core.files import following_own_links
from zeus_core.measurement import Measurement

_logger = logging.getLogger(__name__)


class WindowLog:
    """A file with one line per window, written as soon as the window has ended, so that it can be read after a kill.

    A file whose name ends in `.csv` holds CSV with the columns `start_time, window_name, elapsed_time, gpu0_energy,
    ...`. Any other file holds one JSON object per line: `start_time`, `window_name`, the `RANK` of the process as
    `rank`, and `time` and `devices` as in `Measurement.to_json`. `start_time` is in seconds since 1970. A lost energy
    is null, or an empty cell.

    Args:
        path: The file. Windows are appended to it; its folders are made.
        gpu_indices: The GPUs of the monitor.

    Raises:
        UsageError: The file cannot be written.
    """

    def __init__(self, path: Path, gpu_indices: Sequence[int]) -> None:
        self._path = path
        self._gpu_indices = list(gpu_indices)
        self._is_json = path.suffix != ".csv"
        self._has_failed = False
        columns = ["start_time", "window_name", "elapsed_time", *(f"gpu{index}_energy" for index in gpu_indices)]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "a", encoding="utf-8", opener=following_own_links) as file:
                if not self._is_json and file.tell() == 0:
                    file.write(_csv_line(columns))
        except (OSError, ValueError) as error:
            raise UsageError(f"log_file is {str(path)!r}, which cannot be written: {error}") from error

    def append(self, start_time: float, window_name: str, measurement: Measurement) -> None:
        """Add a finished window. If the file cannot be written any more, windows go on without it, with one warning."""
        if self._is_json:
            rank = os.environ.get("RANK")
            fields = {"start_time": start_time, "window_name": window_name, "rank": rank, **measurement.to_json()}
            line = json.dumps(fields) + "\n"
        else:
            energies = measurement.gpu_energy
            cells = [start_time, window_name, measurement.time, *(energies[index] for index in self._gpu_indices)]
            line = _csv_line(cells)
        try:
            with open(self._path, "a", encoding="utf-8", errors="backslashreplace", opener=following_own_links) as file:
                file.write(line)
        except (OSError, ValueError) as error:
            if not self._has_failed:
                self._has_failed = True
                _logger.warning("the log %s cannot be written any more and misses windows: %s", self._path, error)


def _csv_line(cells: Sequence[object]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()
