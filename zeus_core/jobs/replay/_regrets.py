"""Results of a replay of recurring jobs: a table and a picture."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from zeus_core.jobs.replay.policy_comparison import PolicyResult
from zeus_core.report.figure import new_figure, write_figure


def regret_table(results: Sequence[PolicyResult]) -> str:
    """Return the mean cumulative regret of each policy, over all jobs and for each, as a table.

    Args:
        results: Those of `compare_policies`, at least one.
    """
    policies = list(dict.fromkeys(result.policy for result in results))
    jobs = list(dict.fromkeys((result.gpu_model, result.job) for result in results))
    names = [f"{model} {job}" for model, job in jobs] if len(jobs) > 1 else []
    width = max(map(len, policies))
    count = max(len(result.regrets()) for result in results)
    half = max(count // 2, 1)
    lines = [
        f"cumulative regret, in trainings at the best batch size and limit, after {half} and {count} recurrences",
        f"{'policy':{width}} {half:>8} {count:>8} {'stderr':>6} {'tried':>6} {'short':>6}"
        + "".join(f"  {name:>8}" for name in names),
    ]
    for policy in policies:
        own = [result for result in results if result.policy == policy]
        by_job = {(result.gpu_model, result.job): result for result in own}
        line = f"{policy:{width}} {_mean([one.regret(half) for one in own]):8.2f} "
        line += f"{_mean([one.regret(count) for one in own]):8.2f} {_stderr(own, count):6.2f} "
        line += f"{_mean([one.mean_tried for one in own]):6.1f} {_mean([one.mean_short_of_target for one in own]):6.2f}"
        for job, name in zip(jobs, names, strict=False):
            line += f"  {by_job[job].regret(count):{max(len(name), 8)}.2f}"
        lines.append(line)
    return "\n".join(lines)


def _stderr(results: Sequence[PolicyResult], recurrences: int) -> float:
    """Return the standard error of the mean regret over the jobs, by its scatter from seed to seed."""
    by_seed = [_mean(some) for some in zip(*(one.regrets_by_seed(recurrences) for one in results), strict=True)]
    return statistics.stdev(by_seed) / math.sqrt(len(by_seed)) if len(by_seed) > 1 else 0.0


def draw_regrets(results: Sequence[PolicyResult], title: str, path: str | Path) -> None:
    """Draw the cumulative regret of each policy over the recurrences, the mean over all jobs.

    Args:
        results: Those of `compare_policies`, at least one.
        title: Heading of the picture.
        path: The file to write; its suffix (`.png`, `.svg`) is the format.

    Raises:
        UsageError: Matplotlib is not installed, or the suffix is no format.
        OSError: The file cannot be written.
    """
    figure = new_figure(7, 4.5)
    from matplotlib.ticker import FixedLocator, StrMethodFormatter

    axes = figure.add_subplot()
    for policy in dict.fromkeys(result.policy for result in results):
        some = [result.regrets() for result in results if result.policy == policy]
        count = min(map(len, some))
        means = [_mean([regrets[number] for regrets in some]) for number in range(count)]
        axes.plot(range(1, count + 1), means, label=policy)
    axes.set_yscale("symlog", linthresh=1.0)  # the default alone costs ten times what a policy does
    axes.yaxis.set_major_locator(FixedLocator([0.0, *(step * 10**power for power in range(6) for step in (1, 2, 5))]))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("recurrences")
    axes.set_ylabel("cumulative regret (optimal trainings)")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend()
    write_figure(figure, path)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
