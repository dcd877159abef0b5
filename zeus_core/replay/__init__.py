"""Replay recurring jobs on recorded trainings: what a policy for the batch size would have cost.

from zeus_core.replay import Contestant, RecordedJob, compare_policies, read_workloads
from zeus_core.search.batch_size import AdaptiveBatchSize

job = RecordedJob("cifar100", target=0.6, default=1024, max_epochs=100)
workloads = read_workloads("summary_train.csv", "summary_power_v100.csv", job, "V100")
(result,) = compare_policies([workloads], [Contestant("adaptive", AdaptiveBatchSize())], seeds=20)
result.regret(50)   # cumulative, in units of one optimal training
"""

from zeus_core.replay._comparison import PolicyResult, compare_policies, write_runs
from zeus_core.replay._replay import Contestant, Replay, ReplayedRun, replay
from zeus_core.replay._traces import RecordedJob, Submission, read_submissions, read_workloads
from zeus_core.replay._workload import EpochAtLimit, RecordedSize, Workload

__all__ = [
    "Contestant",
    "EpochAtLimit",
    "PolicyResult",
    "RecordedJob",
    "RecordedSize",
    "Replay",
    "ReplayedRun",
    "Submission",
    "Workload",
    "compare_policies",
    "read_submissions",
    "read_workloads",
    "replay",
    "write_runs",
]
