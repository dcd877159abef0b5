"""Replay recurring jobs on recorded trainings: what a policy for the batch size would have cost."""

from zeus_core.replay._replay import Contestant, Replay, ReplayedRun, replay
from zeus_core.replay._traces import RecordedJob, Submission, read_submissions, read_workloads
from zeus_core.replay._workload import EpochAtLimit, RecordedSize, Workload

__all__ = [
    "Contestant",
    "EpochAtLimit",
    "RecordedJob",
    "RecordedSize",
    "Replay",
    "ReplayedRun",
    "Submission",
    "Workload",
    "read_submissions",
    "read_workloads",
    "replay",
]
