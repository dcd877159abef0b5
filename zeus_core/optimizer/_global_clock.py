"""`GlobalClockOptimizer`: one locked SM clock for the GPUs of a job, searched during training."""

from __future__ import annotations

from pathlib import Path

from zeus_core._validate import checked_flag, checked_whole_number
from zeus_core.knobs._kinds import CommonClock, PowerLimit
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer.power_limit._optimizer import FINE_STEP_WATTS
from zeus_core.optimizer.power_limit._orders import MakeSearch, Mode
from zeus_core.optimizer.power_limit._search_optimizer import SearchOptimizer
from zeus_core.ports import World
from zeus_core.search._objectives import OptimumSelector

__all__ = ["GlobalClockOptimizer"]


class GlobalClockOptimizer(SearchOptimizer):
    """Finds the best SM clock by a few trials during training, and keeps it for the rest of the training.

    It is used, and behaves, as `GlobalPowerLimitOptimizer`; settings are clocks in MHz, the same on all GPUs of the
    job. Power limits stay as they are: the original ones are the ceiling.

    One clock makes GPUs of one model equally fast, that differ by some percent under one power limit: those that waited
    for others no longer spend power on being early. And it keeps a slowdown bound without any measurement of time: a
    GPU that runs at a mean clock f by itself is at most 10 % slower when it is locked at f / 1.1. So even a run too
    short for a search saves energy, by `MaxSlowdownConstraint`.

    Args:
        monitor: Measures the GPUs whose clock is searched.
        optimum_selector: The rule for the best clock; `ZeusCost(eta_knob=0.5)` over the GPUs of the job if None. A
            `ZeusCost` without `max_power_watts` takes the highest original power limit.
        wait_steps: Initial steps to skip before profiling.
        warmup_steps: Steps after each change of the clock that are not measured; as many as the GPU takes to settle if
            None.
        profile_steps: Steps measured at each clock, whatever the run can afford; as many as the search needs if None.
        profile_path: JSON file that keeps the trials. Trials of an earlier run are not measured again.
        original_clock_mhz: The clock that the GPUs were locked at before, which the driver does not tell. None if they
            were not locked: they are unlocked in the end.
        or_power_limit: Search power limits instead where clocks cannot be locked on all ranks, for lack of support or
            of the right, and say so. Otherwise a lack of support ends the search, and a lack of the right leaves it to
            observe.
        search: Makes another search from the clocks and the selector, such as `zeus_core.search.GridSearch`.
        max_steps: The steps of the whole training, if they are known. Adapters of frameworks that know tell it.
        mode: "search", or "observe" to change nothing, and predict what the best clock would save.
        world: The processes that search together, such as `zeus_core.pytorch.torch_world()`; this one alone if None.
        quiet: Show no result at the end of training. A `TrainingEnergy` with this optimizer shows it instead.

    Raises:
        UsageError: An argument is wrong; the message names it.
    """

    def __init__(
        self,
        monitor: ZeusMonitor,
        optimum_selector: OptimumSelector | None = None,
        wait_steps: int = 1,
        warmup_steps: int | None = None,
        profile_steps: int | None = None,
        profile_path: str | Path | None = None,
        *,
        original_clock_mhz: int | None = None,
        or_power_limit: bool = False,
        search: MakeSearch | None = None,
        max_steps: int | None = None,
        mode: Mode = "search",
        world: World | None = None,
        quiet: bool = False,
    ) -> None:
        if original_clock_mhz is not None:
            original_clock_mhz = checked_whole_number("original_clock_mhz", original_clock_mhz, 1)
        super().__init__(
            CommonClock(original_clock_mhz),
            monitor,
            optimum_selector,
            wait_steps,
            warmup_steps,
            profile_steps,
            profile_path,
            search,
            max_steps,
            mode,
            world,
            quiet,
            PowerLimit(FINE_STEP_WATTS) if checked_flag("or_power_limit", or_power_limit) else None,
        )
