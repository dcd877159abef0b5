"""Profiles: measured steps of one GPU model with one kind of work."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from zeus_core.documents import Document
from zeus_core.errors import UsageError
from zeus_core.mixed.allocation._fit import MeasuredBatch, fitted_option
from zeus_core.mixed.allocation._measured_steps_csv import read_table
from zeus_core.mixed.allocation.device_options import MAX_BATCH, DeviceOption, DeviceOptions, checked_kind
from zeus_core.validate import (
    checked_number,
    checked_path,
    checked_whole_number,
)


@dataclass(frozen=True)
class DeviceProfile:
    """Measured steps of one GPU model with one kind of work.

    Attributes:
        gpu_model: The product name of the GPU, such as "NVIDIA A40".
        points: The measured steps, of two batch sizes at least at each setting.
        blocking_power_watts: Power of the GPU while it waits for others in a collective.
        work: The name of this work, such as "cifar100/shufflenetv2"; empty if there is only one.
        knob: The name of the setting: "power limit" (watts) or "SM clock" (MHz).

    Raises:
        UsageError: A value is out of its range, there is only one batch size at a setting, or steps take far less time
            with a larger batch.
    """

    gpu_model: str
    points: tuple[MeasuredBatch, ...]
    blocking_power_watts: float
    work: str = ""
    knob: str = "power limit"

    def __post_init__(self) -> None:
        """Check all values, and fit them."""
        if not self.points:
            raise UsageError("points is (); it must be a list of measured steps")
        object.__setattr__(self, "points", tuple(self.points))
        wanted = "watts, 0 to 1e6, such as 68"
        blocking = checked_number("blocking_power_watts", self.blocking_power_watts, 0.0, 1e6, wanted)
        object.__setattr__(self, "blocking_power_watts", blocking)
        checked_kind(self.knob)
        self._fits  # noqa: B018 - a fit that fails is an error of the points

    @cached_property
    def _fits(self) -> tuple[DeviceOption, ...]:
        settings = sorted({point.setting for point in self.points}, reverse=True)
        by_setting = {setting: [point for point in self.points if point.setting == setting] for setting in settings}
        try:
            return tuple(fitted_option(points) for points in by_setting.values())
        except UsageError as error:
            raise UsageError(f"{self.gpu_model}: {error}") from error

    def options(self, max_batch: int | None = None) -> DeviceOptions:
        """Return what the measured steps say of any batch, by a fit at each setting.

        Args:
            max_batch: The largest batch that the memory of the GPU holds. Batches beyond those measured are then used,
                and plans say so. If None, no batch is larger than the largest that was measured.

        Raises:
            UsageError: The argument is wrong.
        """
        if max_batch is not None:
            max_batch = checked_whole_number("max_batch", max_batch, 0, maximum=MAX_BATCH)
        return DeviceOptions(self.gpu_model, self._fits, self.blocking_power_watts, max_batch, self.knob)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that holds the whole profile."""
        return _PROFILE.to_json(self)

    @classmethod
    def from_json(cls, document: Any) -> DeviceProfile:
        """Return the profile in the result of `to_json`.

        Raises:
            UsageError: It is not a profile; the message names the field.
        """
        return _PROFILE.from_json(document)

    @classmethod
    def from_csv(
        cls,
        path: str | Path,
        gpu_model: str,
        blocking_power_watts: float,
        samples_per_epoch: int | None = None,
        where: Mapping[str, str] | None = None,
    ) -> DeviceProfile:
        """Read a table of batch size, setting, time and power, one measured step a row.

        The columns are `batch_size`, `power_limit` (watts) or `sm_clock` (MHz), `seconds` of a step and `watts`; or, as
        in the published traces (Zeus, NSDI'23), `time_per_epoch` and `average_power`. All other columns distinguish
        kinds of work.

        Args:
            path: The file.
            gpu_model: See `DeviceProfile`.
            blocking_power_watts: See `DeviceProfile`.
            samples_per_epoch: Samples of an epoch, for times of epochs.
            where: Values of further columns by name, such as `{"network": "shufflenetv2"}`. Only rows with these are
                read; they must be of one kind of work.

        Raises:
            UsageError: The file cannot be read, a row is wrong, or there are several kinds of work; the message names
                the file and the line.
        """
        file = Path(checked_path("path", path, "profile.csv"))
        table = read_table(file, samples_per_epoch, where)
        try:
            return cls(gpu_model, table.points, blocking_power_watts, table.work, table.knob)
        except UsageError as error:
            raise UsageError(f"{file}: {error}") from error


_PROFILE = Document("zeus-core device profile", 1, DeviceProfile, "the profile")


def keep_profile(profile: DeviceProfile, folder: str | Path) -> None:
    """Keep a profile in a folder, for its GPU model and work; a file that cannot be written is a warning.

    Raises:
        UsageError: An argument is wrong; the message names it.
    """
    _PROFILE.save(_file(folder, profile.gpu_model, profile.work, profile.knob), profile)


def kept_profile(folder: str | Path, gpu_model: str, work: str = "", knob: str = "power limit") -> DeviceProfile | None:
    """Return the profile that a folder keeps for a GPU model and work; None if there is none.

    A file that is damaged is set aside, with a warning.

    Raises:
        UsageError: An argument is wrong; the message names it.
    """
    return _PROFILE.load(_file(folder, gpu_model, work, knob))


def _file(folder: str | Path, gpu_model: str, work: str, knob: str) -> Path:
    owner = {
        "gpu_model": gpu_model,
        "work": work,
        "knob": checked_kind(knob).words,
    }
    place = Path(checked_path("folder", folder, "profiles", "folder"))
    readable = re.sub("[^a-z0-9]+", "-", gpu_model.lower()).strip("-")[:40]
    job = hashlib.sha256(json.dumps(owner, sort_keys=True).encode()).hexdigest()[:8]
    return place / f"{readable or 'gpu'}-{job}.json"
