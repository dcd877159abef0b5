"""The optimizers of one setting for the GPUs of a job, by the setting that they search unless `knob` is passed."""

from __future__ import annotations

from zeus_core.optimizer.global_setting.search_optimizer import SearchOptimizer


class GlobalPowerLimitOptimizer(SearchOptimizer):
    """Finds the best power limit by a few trials during training, and keeps it for the rest of the training.

    Report the training loop to it:

        optimizer = GlobalPowerLimitOptimizer(ZeusMonitor(), EnergyWithin(factor=1.1), max_steps=2000)
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
        profile_steps: Steps measured at each limit, even if the run is too short; as many as needed if None.
        pl_step: Distance between two limits, in watts; if None 5, or 25 for a `search` of your own.
        profile_path: JSON file that keeps the trials. Trials of an earlier run are not measured again.
        knob: The setting to search: "power limit", "clock" for one locked SM clock in MHz, or "auto" for both, of which
            training continues with the better one. Where clocks cannot be locked on all ranks, for lack of support or
            of the right, "auto" searches limits, and says so. If None, it is that in the name of the class.
        original_clock_mhz: The clock that the GPUs were locked at before, which the driver does not report. None if
            they were not locked: they are unlocked in the end.
        search: Makes another search from the limits and the selector, such as `zeus_core.search.GridSearch`.
        max_steps: The steps of the whole training, if they are known. Adapters pass it on, if the framework knows.
        mode: "search", or "observe" to change nothing, and predict what the best limit would save.
        carbon_aware: Has training run hard, softly or not at all by the intensity or the price of electricity, once the
            search is over; see `zeus_core.carbon.CarbonAware`. None for the choice alone. Where each
            activity has its own setting, that of the steps is moved.
        activities: "common" for one setting, or "each" for a setting of its own for steps, and for each activity that
            the loop announces, under one bound for the run.
        changes_per_hour: The most changes of the setting of a device in an hour, where each activity has its own.
        world: The processes that search together, such as `zeus_core.pytorch.torch_world()`; this one alone if None.
        quiet: Show no result at the end of training. A `TrainingEnergy` with this optimizer shows it instead.

    Raises:
        UsageError: An argument is wrong; the message names it.
    """

    _usual_knob = "power limit"


class GlobalClockOptimizer(SearchOptimizer):
    """Finds the best SM clock by a few trials during training, and keeps it for the rest of the training.

    It is used, and behaves, as `GlobalPowerLimitOptimizer`, with the same arguments; settings are clocks in MHz, the
    same on all GPUs of the job. Power limits stay as they are: the original ones are the ceiling.

    One clock makes GPUs of one model equally fast, that differ by some percent under one power limit: those that waited
    for others no longer spend power on being early. And it keeps a slowdown bound without any measurement of time: a
    GPU that runs at a mean clock f by itself is at most 10 % slower when it is locked at f / 1.1. So even a run too
    short for a search saves energy, within a slowdown bound.

    A `ZeusCost` without `max_power_watts` takes the highest original power limit.

    Raises:
        UsageError: An argument is wrong; the message names it.
    """

    _usual_knob = "clock"
