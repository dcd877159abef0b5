"""A plan: the batch and the setting of each rank, the same in every step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zeus_core.documents import Document
from zeus_core.errors import UsageError
from zeus_core.mixed.allocation.device_options import MAX_BATCH, DeviceOptions, checked_kind
from zeus_core.units import duration_text, energy_text, rows_html
from zeus_core.validate import (
    checked_number,
    checked_path,
    checked_whole_number,
)

_MAX_SHOWN = 16  # ranks in a notebook


@dataclass(frozen=True)
class RankShare:
    """The part of one rank in every step.

    Attributes:
        device: Name of its device, such as "A100-SXM4-80GB".
        batch: Samples of the rank; 0 if it only waits.
        setting: Setting of its device.
        busy_seconds: How long it computes.
        energy_joules: Energy of its device over the whole step, waiting included.
        is_extrapolated: Whether the batch is outside those measured at this setting.
        knob: The name of the setting: "power limit" (watts) or "SM clock" (MHz).

    Raises:
        UsageError: A value is out of its range.
    """

    device: str
    batch: int
    setting: int
    busy_seconds: float
    energy_joules: float
    is_extrapolated: bool = False
    knob: str = "power limit"

    def __post_init__(self) -> None:
        """Check all values, which may come from a file."""
        wanted = f"a whole number of samples, 0 to {MAX_BATCH}"
        object.__setattr__(self, "batch", checked_whole_number("batch", self.batch, 0, wanted, MAX_BATCH))
        object.__setattr__(self, "setting", checked_whole_number("setting", self.setting, 1))
        for name in ("busy_seconds", "energy_joules"):
            number = checked_number(name, getattr(self, name), 0.0, math.inf, "a finite number, at least 0")
            object.__setattr__(self, name, number)
        checked_kind(self.knob)


@dataclass(frozen=True)
class AllocationPlan:
    """The batches and the settings of all ranks, and the predicted time and energy of a step.

    Attributes:
        name: The method that made it, such as "allocation", "even" or "proportional".
        ranks: The part of each rank, in the order of ranks.
        step_seconds: Duration of a step: the slowest rank, and then the exchange of gradients.
        energy_joules: Energy of all devices over it.
        reduce_seconds: Assumed duration of what follows the slowest rank, in which all wait.
        objective: The objective in words, such as "ZeusCost(eta_knob=0.5)"; empty if there was none.
        cost: Its value, in joules or seconds; None if there was no objective.
        bound_cost: No plan for the same devices and batch costs less; None if not known.

    Raises:
        UsageError: There is no rank, or a number is out of its range.
    """

    name: str
    ranks: tuple[RankShare, ...]
    step_seconds: float
    energy_joules: float
    reduce_seconds: float = 0.0
    objective: str = ""
    cost: float | None = None
    bound_cost: float | None = None

    def __post_init__(self) -> None:
        """Check all values, which may come from a file."""
        if not self.ranks:
            raise UsageError("ranks is (); it must be a list of shares, one for each rank")
        object.__setattr__(self, "ranks", tuple(self.ranks))
        wanted = "a finite number, at least 0"
        for name in ("step_seconds", "energy_joules", "reduce_seconds", "cost", "bound_cost"):
            value = getattr(self, name)
            if value is not None or name not in ("cost", "bound_cost"):
                object.__setattr__(self, name, checked_number(name, value, 0.0, math.inf, wanted))
        slowest = max(share.busy_seconds for share in self.ranks)
        if slowest > self.step_seconds:
            raise UsageError(f"a rank computes for {slowest:g} s, longer than the step, {self.step_seconds:g} s")

    def _repr_html_(self) -> str | None:
        rows = {"plan": self.name, "step": f"{duration_text(self.step_seconds)}, {energy_text(self.energy_joules)}"}
        for rank, share in enumerate(self.ranks[:_MAX_SHOWN]):
            setting = checked_kind(share.knob).text(share.setting)
            rows[f"rank {rank}"] = f"{share.batch} samples on {share.device} at {setting}"
        more = len(self.ranks) - _MAX_SHOWN
        return rows_html(rows | ({"and": f"{more} more ranks"} if more > 0 else {}))

    @classmethod
    def from_shares(
        cls,
        name: str,
        devices: Sequence[DeviceOptions],
        batches: Sequence[int],
        settings: Sequence[int],
        reduce_seconds: float = 0.0,
    ) -> AllocationPlan:
        """Predict what a step takes with these batches at these settings.

        Args:
            name: The name of the plan.
            devices: The device of each rank.
            batches: The batch of each rank; one with a batch of 0 only waits.
            settings: The setting of each device.
            reduce_seconds: See `AllocationPlan`.

        Raises:
            UsageError: An argument is wrong, such as fewer batches than devices; the message names it.
        """
        checked = checked_devices(devices)
        for argument, values in (("batches", batches), ("settings", settings)):
            if len(values) != len(checked):
                raise UsageError(f"{argument} has {len(values)} entries, but there are {len(checked)} devices")
            for rank, value in enumerate(values):
                checked_whole_number(f"{argument}[{rank}]", value, 0, maximum=MAX_BATCH)
        reduce_seconds = checked_reduce_seconds(reduce_seconds)
        options = [device.option(setting) for device, setting in zip(checked, settings, strict=True)]
        busy = [option.seconds(batch) if batch else 0.0 for option, batch in zip(options, batches, strict=True)]
        step_seconds = max(busy) + reduce_seconds
        shares = []
        for device, option, batch, seconds in zip(checked, options, batches, busy, strict=True):
            waiting_joules = device.blocking_power_watts * (step_seconds - seconds)
            joules = (option.joules(batch) if batch else 0.0) + waiting_joules
            extrapolated = not option.is_measured(batch)
            shares.append(RankShare(device.name, batch, option.setting, seconds, joules, extrapolated, device.knob))
        total = math.fsum(share.energy_joules for share in shares)
        return cls(name, tuple(shares), step_seconds, total, reduce_seconds)

    @property
    def batches(self) -> tuple[int, ...]:
        """The batch of each rank."""
        return tuple(share.batch for share in self.ranks)

    @property
    def global_batch(self) -> int:
        """Samples of a step on all ranks together."""
        return sum(self.batches)

    @property
    def average_power_watts(self) -> float:
        """Mean power of all devices together."""
        return self.energy_joules / self.step_seconds if self.step_seconds else 0.0

    @property
    def gap_fraction(self) -> float | None:
        """How much cheaper another plan may be at most, as a fraction of the cost; None if that is not known."""
        if self.cost is None or self.bound_cost is None:
            return None
        return max(0.0, 1.0 - self.bound_cost / self.cost) if self.cost else 0.0

    def waiting_seconds(self, rank: int) -> float:
        """Return how long a rank waits in each step, for others and in the exchange of gradients."""
        return self.step_seconds - self.ranks[rank].busy_seconds


def checked_devices(devices: Sequence[DeviceOptions]) -> list[DeviceOptions]:
    """Return the devices of a job.

    Raises:
        UsageError: There is none.
    """
    if not devices:
        raise UsageError("devices is []; it must be a list of the options of devices, one for each rank")
    return list(devices)


def checked_reduce_seconds(seconds: float) -> float:
    """Return the duration of the exchange of gradients.

    Raises:
        UsageError: It is none.
    """
    return checked_number("reduce_seconds", seconds, 0.0, 1e9, "seconds, 0 to 1e9, such as 0.01")


_PLAN = Document("zeus-core allocation plan", 1, AllocationPlan, "the plan")


def write_plan(plan: AllocationPlan, path: str | Path) -> None:
    """Write a plan to a file, which is replaced as a whole.

    Raises:
        UsageError: An argument is wrong; the message names it.
        OSError: The file cannot be written.
    """
    _PLAN.write(Path(checked_path("path", path)), plan)


def read_plan(path: str | Path) -> AllocationPlan:
    """Return the plan in a file.

    Raises:
        UsageError: The file cannot be read, or is not a plan; the message names it.
    """
    file = Path(checked_path("path", path))
    try:
        return _PLAN.read(file)
    except (OSError, UsageError) as error:
        raise UsageError(f"{file}: {error}") from error
