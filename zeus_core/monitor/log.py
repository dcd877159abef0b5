"""The file a monitor appends finished windows to."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from zeus_core.errors import UsageError
from zeus_core.records import Measurement

__all__ = ["WindowLog"]


class WindowLog:
    """One line per window, written through at once, so that the file can be read after a kill.

    A file name ending in `.jsonl` or `.json` holds one JSON object per line; any other holds CSV with the columns
    `start_time, window_name, elapsed_time, gpu0_energy, ...`. `start_time` is in seconds since 1970.

    Args:
        path: The file; it is started anew, its folders are made.
        gpu_indices: The GPUs of the monitor.

    Raises:
        UsageError: The file cannot be written.
    """

    def __init__(self, path: Path, gpu_indices: Sequence[int]) -> None:
        self._gpu_indices = list(gpu_indices)
        self._is_json = path.suffix in {".jsonl", ".json"}
        self._file = _open(path)
        if not self._is_json:
            self._write_row(
                ["start_time", "window_name", "elapsed_time", *(f"gpu{index}_energy" for index in gpu_indices)]
            )

    def append(self, start_time: float, window_name: str, measurement: Measurement) -> None:
        """Add a finished window; a lost energy is an empty cell, or null."""
        if self._is_json:
            line = {
                "start_time": start_time,
                "window_name": window_name,
                "elapsed_time": measurement.time,
                "gpu_energy": dict(measurement.gpu_energy),
                "gpu_method": dict(measurement.gpu_method),
                "gpu_uncertainty_joules": dict(measurement.gpu_uncertainty_joules),
            }
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        else:
            energies = [measurement.gpu_energy[index] for index in self._gpu_indices]
            self._write_row([start_time, window_name, measurement.time, *energies])

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write_row(self, row: Sequence[object]) -> None:
        csv.writer(self._file, lineterminator="\n").writerow(row)
        self._file.flush()


def _open(path: Path) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("w", encoding="utf-8", newline="")
    except OSError as error:
        raise UsageError(f"log_file is {str(path)!r}, which cannot be written: {error}") from error
