"""Replay recurring jobs on recorded runs: what a policy for the batch size would have cost.

from zeus_core.jobs.policies import AdaptiveBatchSize
from zeus_core.jobs.replay.job_replay import Contestant
from zeus_core.jobs.replay.policy_comparison import compare_policies
from zeus_core.jobs.replay.traces import RecordedJob, read_workloads

job = RecordedJob("cifar100", target=0.6, default=1024, max_epochs=100)
workloads = read_workloads("summary_train.csv", "summary_power_v100.csv", job, "V100")
(result,) = compare_policies([workloads], [Contestant("adaptive", AdaptiveBatchSize())], seeds=20)
result.regret(50)   # cumulative, in units of one optimal training
"""
