"""The records of a run: all that reports and statements of it need. Values, whose file is `run_file.py` beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from zeus_core.adapters.contained import Overhead
from zeus_core.codec import decode
from zeus_core.errors import UsageError
from zeus_core.ports.run_identity import RunIdentity
from zeus_core.training.account import Account
from zeus_core.training.activities.tally import Tally
from zeus_core.training.record.loss_curve import LossPoint
from zeus_core.training.record.power_series import EnergyPoint

if TYPE_CHECKING:
    from zeus_core.optimizer.search_result import SearchRecord

PartState: TypeAlias = Literal["running", "ended", "failed", "stopped", "interrupted"]
"""The state of a part when its file was written: going on (so stays a part that is killed); ended by itself, an error
or a signal; or gone on from by another part. Before this version, all that ended had "ended"."""

KEEP_SECONDS = 600.0
"""The file of a training is written at its first log, and at one after this time again: 1 to 5 ms of the first rank."""

FIXED_SETTINGS = frozenset({"power limit", "SM clock"})
"""The labels of results that are settings for the whole of a `zeus-core run`."""

REMARKS = "remarks"
"""The label of the remarks on the numbers of a part, among its results."""


@dataclass(frozen=True)
class DeviceRecord:
    """A GPU that a rank counts, in one part of a run; or all GPUs of a kind that the ranks of a machine count.

    Attributes:
        uuid: Its identity; empty for several.
        index: Its number on its machine, for people; that of the first one of several.
        name: The product name.
        is_simulated: Whether its numbers come from a model rather than from hardware.
        driver: The version of its driver; None if it is unknown.
        limit_watts: Its power limit when the part began; None if it is unknown, or several have not the same.
        energy: Its time and energy in this part; None if a rank has not reported it yet.
        power: Its energy over time, which is its power between any two points; empty if the rank has not reported it
            yet, and for several.
        count: The number of GPUs.
    """

    uuid: str
    index: int
    name: str
    is_simulated: bool
    driver: str | None
    limit_watts: float | None
    energy: Tally | None = None
    power: tuple[EnergyPoint, ...] = ()
    count: int = 1


@dataclass(frozen=True)
class RankRecord:
    """A rank, in one part of a run; or, in a job of many ranks, all ranks of a machine.

    Attributes:
        host: The name of its machine.
        devices: The GPUs that it counts: those that no lower rank measures too.
        cpus: The CPU packages that it counts.
        account: Its account of this part, at its end; None if it is not known.
        count: The number of ranks.
    """

    host: str
    devices: tuple[DeviceRecord, ...]
    cpus: tuple[str, ...]
    account: Account | None = None
    count: int = 1


@dataclass(frozen=True)
class PartRecord:
    """The work of one process on a run.

    Attributes:
        name: The name of the part, as in the journals.
        state: Whether it was going on when the file was written, or how it has ended.
        begin_step: The optimizer step at which it began.
        step: The optimizer step it has reached.
        begun_at_seconds: When it began, in seconds since 1970.
        until_seconds: When the file was written last.
        ranks: The ranks, by number; in a job of more than 64 ranks, their machines, of which several are one record
            where there are more than 256.
        versions: The versions of programs, by name.
        work: Facts of the work of a step, such as the size of the model, as far as the adapter knows them.
        results: The result for people, as labelled lines.
        search: The latest search for a setting, in JSON types, as `search_record` decodes it; None if there was none.
            Most trainings have none, and do without its modules.
        overhead_seconds: Time that the first rank has spent in hooks of this package.
        overhead: The same by hook, and what was waited for in them.
        detected_evaluations: Evaluations that nothing announced, but their forward passes.
        power: The energy of all GPUs together over time, if `ranks` are machines; empty if it is not known yet.
        losses: Losses and metrics of evaluations by name, beside the energy, as far as the trainer logs them.
        identity: The user, the job and the tags, which reports leave out; None if it is not recorded.
    """

    name: str
    state: PartState
    begin_step: int
    step: int
    begun_at_seconds: float
    until_seconds: float
    ranks: tuple[RankRecord, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    work: Mapping[str, int | str] = field(default_factory=dict)
    results: Mapping[str, str] = field(default_factory=dict)
    search: Mapping[str, Any] | None = None
    overhead_seconds: float = 0.0
    detected_evaluations: int = 0
    overhead: Overhead = field(default_factory=Overhead)
    power: tuple[EnergyPoint, ...] = ()
    identity: RunIdentity | None = None
    losses: Mapping[str, tuple[LossPoint, ...]] = field(default_factory=dict)

    @property
    def devices(self) -> list[DeviceRecord]:
        """The GPUs of all ranks."""
        return [device for rank in self.ranks for device in rank.devices]

    def search_record(self) -> SearchRecord | None:
        """Return the latest search, and the changes of the setting.

        Raises:
            UsageError: They are damaged.
        """
        from zeus_core.optimizer.search_result import SearchRecord

        return None if self.search is None else decode(SearchRecord, self.search, "search")


@dataclass(frozen=True)
class SignalRecord:
    """An intensity or a price that energy was charged at.

    Attributes:
        unit: Such as "g/kWh".
        source: Where its values come from, in words.
        basis: The power plants it counts, "average" or "marginal"; None for a price.
        average: The value where nothing recent enough was known.
    """

    unit: str
    source: str
    basis: str | None
    average: float


@dataclass(frozen=True)
class ElectricityRecord:
    """The electricity of a run, as it was given.

    Attributes:
        signals: The intensity and the price, as far as they were given.
        pue: Power usage effectiveness.
        location: Where the computers are; None if that was not said.
    """

    signals: tuple[SignalRecord, ...]
    pue: float = 1.0
    location: str | None = None


@dataclass(frozen=True)
class RunRecord:
    """A run, from its first step on, over all ranks and all interruptions.

    Attributes:
        run: The name of the run, as in the journals.
        account: Time, energy and work of the whole run.
        parts: The parts that are known, in their order, the latest last. Those whose process was killed before its
            first checkpoint are in the account, as far as the journals have them, and not among the parts.
        saving_fraction: The part of the energy of a step that the chosen setting saves; None if none was chosen, or
            the saving is smaller than its uncertainty.
        saving_uncertainty: How far that can be off.
        electricity: The electricity; None if it was not given.
    """

    run: str
    account: Account
    parts: tuple[PartRecord, ...]
    saving_fraction: float | None = None
    saving_uncertainty: float | None = None
    electricity: ElectricityRecord | None = None

    def __post_init__(self) -> None:
        """Check that there is a part.

        Raises:
            UsageError: There is none.
        """
        if not self.parts:
            raise UsageError("parts is empty; a run has at least one")

    @property
    def latest(self) -> PartRecord:
        """The latest part."""
        return self.parts[-1]

    @property
    def losses(self) -> dict[str, list[LossPoint]]:
        """The losses of all parts, by name."""
        found: dict[str, list[LossPoint]] = {}
        for part in self.parts:
            for name, points in part.losses.items():
                found.setdefault(name, []).extend(points)
        return found
