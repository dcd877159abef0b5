"""Measured sweeps of power limits, read from the files of ml-energy/zeus."""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

# Single measurements scatter: a lower limit may look faster than a higher one by about as much (of time).
CLEAN_SCATTER = 0.01


@dataclass(frozen=True)
class Sweep:
    """One kind of work, measured at several power limits.

    `gpu` is the name of the GPU in the name of the file; limits are in watts, the highest first; seconds are those of
    an epoch or an iteration; watts are the mean draw of one of the `gpus`.
    """

    gpu: str
    name: str
    gpus: int
    limits: np.ndarray
    seconds: np.ndarray
    watts: np.ndarray

    @property
    def binds(self) -> bool:
        """Whether the draw at the highest limit exceeds the lowest one."""
        return bool(self.watts[0] > self.limits[-1])

    @property
    def is_clean(self) -> bool:
        """Whether no lower limit is faster than a higher one by more than scatter."""
        slower = np.maximum.accumulate(self.seconds) / self.seconds
        return bool((slower <= 1 + CLEAN_SCATTER).all())

    def refined(self, step_watts: int) -> Sweep:
        """Return the sweep on a finer grid, between the measured limits by monotone cubic interpolation."""
        limits = np.arange(self.limits[0], self.limits[-1] - 1, -step_watts)
        seconds, watts = (
            np.exp(_interpolated(limits[::-1], self.limits[::-1], np.log(values[::-1])))[::-1]
            for values in (self.seconds, self.watts)
        )
        return Sweep(self.gpu, self.name, self.gpus, limits, seconds, watts)


def read_sweeps(folder: Path) -> list[Sweep]:
    """Read every file of a known format in a folder."""
    sweeps = []
    for path in sorted(folder.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        columns = rows[0].keys() if rows else set()
        if {"power_limit", "time_per_epoch", "average_power"} <= columns:
            sweeps += _single_gpu_sweeps(path.stem.rpartition("_")[2], rows)
        elif {"power_limit_0", "time", "energy"} <= columns:
            sweeps += _pipeline_sweeps(path.stem.split("_")[1], rows)
        else:
            print(f"{path.name} is left out: its format is not known")
    return sweeps


def _single_gpu_sweeps(gpu: str, rows: list[dict[str, str]]) -> list[Sweep]:
    points = defaultdict(list)
    for row in rows:
        name = "/".join(row.get(column, "") for column in ("dataset", "network", "batch_size", "optimizer"))
        points[name].append((float(row["power_limit"]), float(row["time_per_epoch"]), float(row["average_power"])))
    return [_sweep(gpu, name, 1, some) for name, some in points.items() if len(some) > 2]


def _pipeline_sweeps(gpu: str, rows: list[dict[str, str]]) -> list[Sweep]:
    """Read the limits that all stages share; other rows mix limits, and are left out."""
    stages = sorted(column for column in rows[0] if column.startswith("power_limit_"))
    points, gpus = defaultdict(list), {}
    for row in rows:
        limits = {float(row[stage]) for stage in stages if row[stage]}
        name = "/".join(row.get(column, "") for column in ("model_name", "partition_method", "batch_size"))
        gpus[name] = len(stages) * int(row.get("dp") or 1) * int(row.get("tp") or 1)
        seconds, joules = float(row["time"]), float(row["energy"])
        if len(limits) == 1:
            points[name].append((limits.pop(), seconds, joules / seconds / gpus[name]))
    return [_sweep(gpu, name, gpus[name], some) for name, some in points.items() if len(some) > 2]


def _sweep(gpu: str, name: str, gpus: int, points: list[tuple[float, float, float]]) -> Sweep:
    by_limit = {limit: (seconds, watts) for limit, seconds, watts in points}
    limits = np.array(sorted(by_limit, reverse=True))
    values = np.array([by_limit[limit] for limit in limits])
    return Sweep(gpu, name, gpus, limits, values[:, 0], values[:, 1])


def _interpolated(wanted: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Interpolate by monotone cubic pieces (Fritsch and Butland), x ascending."""
    widths, slopes = np.diff(x), np.diff(y) / np.diff(x)
    inner = np.zeros(len(x))
    same_sign = slopes[:-1] * slopes[1:] > 0
    before, after = 2 * widths[1:] + widths[:-1], widths[1:] + 2 * widths[:-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        means = (before + after) / (before / slopes[:-1] + after / slopes[1:])
    inner[1:-1] = np.where(same_sign, means, 0.0)
    inner[0], inner[-1] = slopes[0], slopes[-1]
    piece = np.clip(np.searchsorted(x, wanted, side="right") - 1, 0, len(x) - 2)
    width = widths[piece]
    part = (wanted - x[piece]) / width
    return (
        y[piece] * (1 + 2 * part) * (1 - part) ** 2
        + y[piece + 1] * part**2 * (3 - 2 * part)
        + width * part * (1 - part) * (inner[piece] * (1 - part) - inner[piece + 1] * part)
    )
