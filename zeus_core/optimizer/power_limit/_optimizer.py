"""`GlobalPowerLimitOptimizer`: one power limit for the GPUs of a job, searched during training."""

from __future__ import annotations

from pathlib import Path

from zeus_core._validate import checked_whole_number
from zeus_core.knobs._kinds import PowerLimit
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer.power_limit._orders import MakeSearch, Mode
from zeus_core.optimizer.power_limit._search_optimizer import SearchOptimizer
from zeus_core.ports import World
from zeus_core.search._objectives import OptimumSelector

__all__ = ["FINE_STEP_WATTS", "GlobalPowerLimitOptimizer"]

FINE_STEP_WATTS = 5  # for a search whose number of trials does not depend on it; gains 0.9 to 1.9 % over 25 W
_COARSE_STEP_WATTS = 25


class GlobalPowerLimitOptimizer(SearchOptimizer):
    """Finds the best power limit by a few trials during training, and keeps it for the rest of the training.

    Tell it what happens in the training loop:

        optimizer = GlobalPowerLimitOptimizer(ZeusMonitor(), MaxSlowdownConstraint(factor=1.1), max_steps=2000)
        for epoch in range(epochs):
            optimizer.on_epoch_begin()
            for batch in batches:
                optimizer.on_step_begin()
                train(batch)
                optimizer.on_step_end()
            optimizer.on_epoch_end()
            evaluate()

    A slowdown bound is for the whole run: the steps of the search count. With `max_steps` it is said in advance how
    much time the search takes at most; where it cannot pay, training stays at the original limit.

    The original limit, in force when training begins, is the ceiling: the search goes from it down to the lowest limit
    of the boards. The original limits are restored at `on_train_end`, `close`, the end of the `with` block if it is
    used as one, and at the end of the process, however it ends. Nothing is changed before training begins. A limit that
    somebody else sets meanwhile stays, and ends the search.

    The hooks never raise. After a fault, which is logged with its remedy, the original limits are restored and training
    continues without the optimizer. Without permission to set limits, it measures at the original limit, logs what is
    missing, and predicts what the best limit would save.

    In a job of several processes, create one optimizer per process: all agree on one limit. A step lasts as long as on
    the slowest process, and takes the energy of all GPUs. A fault or a lack of permission on one process applies to
    all. All processes must report the same steps. The selector, the search and the profile are those of rank 0.

    Args:
        monitor: Measures the GPUs whose limit is searched.
        optimum_selector: The rule for the best limit; `ZeusCost(eta_knob=0.5)` over the GPUs of the job if None.
        wait_steps: Initial steps to skip before profiling.
        warmup_steps: Steps after each change of the limit that are not measured; as many as the GPU takes to settle if
            None.
        profile_steps: Steps measured at each limit, whatever the run can afford; as many as the search needs if None.
        pl_step: Distance between two limits, in watts; if None 5, or 25 for a `search` of your own.
        profile_path: JSON file that keeps the trials. Trials of an earlier run are not measured again.
        search: Makes another search from the limits and the selector, such as `zeus_core.search.GridSearch`.
        max_steps: The steps of the whole training, if they are known. Adapters of frameworks that know tell it.
        mode: "search", or "observe" to change nothing, and predict what the best limit would save.
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
        pl_step: int | None = None,
        profile_path: str | Path | None = None,
        *,
        search: MakeSearch | None = None,
        max_steps: int | None = None,
        mode: Mode = "search",
        world: World | None = None,
        quiet: bool = False,
    ) -> None:
        if pl_step is None:
            pl_step = FINE_STEP_WATTS if search is None else _COARSE_STEP_WATTS
        super().__init__(
            PowerLimit(checked_whole_number("pl_step", pl_step, 1)),
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
        )
