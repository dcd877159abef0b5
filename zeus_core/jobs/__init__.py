"""The batch size of a job that runs again and again, such as a nightly retraining, explored from run to run.

    from zeus_core.jobs import RecurringJob, Target

    job = RecurringJob("nightly", [64, 128, 256], 128, target=Target("eval_accuracy", 0.84), max_epochs=20)
    with job.run() as run:
        train(run.batch_size, run.learning_rate(5e-5))   # and report evaluations to `run`, as the adapters do

The runs are kept by Optuna (the extra batch-size), which is imported when the first one begins.
"""

from typing import TYPE_CHECKING

from zeus_core._lazy_names import imported_on_use as _imported_on_use

if TYPE_CHECKING:
    from zeus_core.jobs._drifting_slices import DriftingSlices
    from zeus_core.jobs._job_records import Target
    from zeus_core.jobs._recurring_job import RecurringJob
    from zeus_core.jobs.policies import AdaptiveBatchSize

__all__ = ["AdaptiveBatchSize", "DriftingSlices", "RecurringJob", "Target"]

_HOMES = {
    "AdaptiveBatchSize": "zeus_core.jobs.policies",
    "DriftingSlices": "zeus_core.jobs._drifting_slices",
    "RecurringJob": "zeus_core.jobs._recurring_job",
    "Target": "zeus_core.jobs._job_records",
}

if not TYPE_CHECKING:  # the command is declared for each help, which needs none of these
    __getattr__, __dir__ = _imported_on_use(__name__, _HOMES)
