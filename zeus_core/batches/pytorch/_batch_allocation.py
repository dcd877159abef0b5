"""The arguments by which a training has the batches of its ranks chosen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zeus_core.errors import UsageError
from zeus_core.mixed.allocation import DeviceProfile
from zeus_core.mixed.allocation.allocation_plan import AllocationPlan
from zeus_core.mixed.allocation.device_options import checked_global_batch
from zeus_core.monitor import ZeusMonitor
from zeus_core.search.objectives import Objective
from zeus_core.validate import (
    checked_number,
    checked_object,
    checked_path,
    checked_whole_number,
)


class BatchAllocation:
    """Chooses the batch of each rank while training starts: pass it in place of the batches.

        uneven = UnevenBatches(model, BatchAllocation(64, ZeusMonitor(gpu_indices=[local_rank])))

    In the first steps each rank tries three batch sizes, at each of some power limits if it may set them, and measures
    how long it computes and what its GPU takes. Then all ranks agree on the plan of
    `zeus_core.mixed.allocation.allocate`, train on its batches, and set its limits. The original limits are restored at
    the end. Meanwhile each sample is trained on once, and with the right weight.

    With a folder, profiles are kept there for each GPU model and work. A later run, also with other ranks, begins with
    the plan that they give, if there is one of each of its GPU models.

    If something fails on any rank, all continue with equal batches, and say why once.

    Args:
        global_batch: Samples of a step on all ranks together.
        monitor: Measures the GPU of this rank, and no other.
        objective: The goal, as in `zeus_core.mixed.allocation.allocate`; `ZeusCost(eta_knob=0.5)` if None.
        limit_fractions: The power limits to try, as fractions of the original one. A rank without the right to set
            limits keeps its own.
        max_batch: The largest batch that the memory of this rank's GPU holds. If None, no rank gets more than the
            largest it has tried, which is one and a half times an equal share, or less if that would not fit.
        multiple_of: Each batch is a multiple of this number of samples.
        folder: Where rank 0 keeps profiles; nowhere if None.
        work: A name that distinguishes this training from others, such as "gpt2/owt"; needed where they share a folder.
        steps: Steps that are measured for each of the sizes and limits.

    Attributes:
        plan: The plan that all ranks follow; None until they have agreed on it.
        profile: The measurements of this rank; None until then, and where kept profiles were used.

    Raises:
        UsageError: An argument is wrong; the message names it.
    """

    def __init__(
        self,
        global_batch: int,
        monitor: ZeusMonitor,
        objective: Objective | None = None,
        *,
        limit_fractions: Sequence[float] = (1.0,),
        max_batch: int | None = None,
        multiple_of: int = 1,
        folder: str | Path | None = None,
        work: str = "",
        steps: int = 10,
    ) -> None:
        checked_global_batch(global_batch, multiple_of)
        self.global_batch: int = int(global_batch)
        self.multiple_of: int = int(multiple_of)
        self.monitor: ZeusMonitor = checked_object("monitor", monitor, "begin_window", "ZeusMonitor(gpu_indices=[0])")
        if objective is not None:
            checked_object("objective", objective, "cost", "an Objective, such as Time()")
        self.objective: Objective | None = objective
        wanted = "a fraction of the original limit, above 0 and at most 1, such as 0.8"
        self.limit_fractions: list[float] = [
            checked_number(f"limit_fractions[{place}]", fraction, 0.0, 1.0, wanted, is_open=True)
            for place, fraction in enumerate(limit_fractions)
        ]
        if not self.limit_fractions:
            raise UsageError("limit_fractions is []; it must be a list of fractions, such as [1.0, 0.8]")
        self.max_batch: int | None = None if max_batch is None else checked_whole_number("max_batch", max_batch, 1)
        self.folder: str | None = None if folder is None else checked_path("folder", folder, "profiles", "folder")
        self.work: str = work
        self.steps: int = checked_whole_number("steps", steps, 1)
        self.plan: AllocationPlan | None = None
        self.profile: DeviceProfile | None = None
