"""A recurring job whose trainings take no time: epochs to the target, and joules of an epoch, by batch size."""

from zeus_core.jobs import RecurringJob, Target
from zeus_core.jobs.policies import BatchProposal
from zeus_core.jobs.policies.batch_size_policy import feasible_sizes
from zeus_core.optimizer import ZeusCost

EPOCHS = {16: 3, 32: 4, 64: 8, 128: 30}
EPOCH_JOULES = {16: 900.0, 32: 500.0, 64: 450.0, 128: 400.0}
BEST = 32


class Untried:
    """A policy: the default, then each batch size that no run has had, and then the one that has cost least."""

    def __init__(self, max_cost=None):
        self.max_cost = max_cost

    def propose(self, problem, runs, seed):
        told = [run for run in runs if run.outcome != "failed"]
        taken = {run.batch_size for run in told}
        feasible = feasible_sizes(problem, runs)
        for size in (problem.default, *problem.batch_sizes):
            if size not in taken and size in feasible:
                return BatchProposal(size, self.max_cost, "it was not tried")
        told = [run for run in told if run.batch_size in feasible]
        reached = [run for run in told if run.outcome == "reached"] or told
        return BatchProposal(min(reached, key=lambda run: run.cost).batch_size, None, "it has cost least")


def job_in(folder, **changes):
    settings = {
        "name": "nightly",
        "batch_sizes": list(EPOCHS),
        "default": 64,
        "target": Target("eval_accuracy", 0.84),
        "max_epochs": 20,
        "objective": ZeusCost(max_power_watts=400),
        "storage": f"sqlite:///{folder}/zeus.db",
        "policy": Untried(),
        "pending_folder": folder / "pending",
        "gpu_model": "A40",
        **changes,
    }
    return RecurringJob(**settings)


def train(run, epochs=EPOCHS, last_epoch=99):
    """Train until the run says stop, or for so many epochs. Return the epochs trained."""
    for epoch in range(1, last_epoch + 1):
        accuracy = 0.84 * min(epoch / epochs[run.batch_size], 1.0)
        joules = EPOCH_JOULES[run.batch_size] * epoch
        if run.report(epoch=epoch, metric={"eval_accuracy": accuracy}, energy_joules=joules, seconds=joules / 300):
            return epoch
    return last_epoch


def trained(job, **options):
    with job.run() as run:
        train(run, **options)
    return run
