"""Cost of a recurring job to a training: to begin and to end a run, and to report an evaluation.

Runs on SQLite in a temporary folder, with 50 runs in the history, or on the storage whose URL is given. Prints the
times of the first run of a process, with the import of Optuna, and of later ones. The limits hold for the time of the
processor, which a busy machine hardly changes. Exits with 1 beyond them.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zeus_core.jobs import RecurringJob

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

MAX_IMPORTS = 5.0  # the first run, in imports of Optuna, which it contains: 3.4 (3 processes, 2026-11-26)
MAX_REPORT_CPU_SECONDS = 0.010
HISTORY = 50
EVALUATIONS = 20

ONE_RUN = """
import sys, time
import zeus_core.jobs  # which an adapter of the training imports most of, too
from benchmarks.recurring_job import job_in
begin, cpu_begin = time.perf_counter(), time.process_time()
import optuna.storages, sqlalchemy.dialects.sqlite
imported = time.process_time()
with job_in(sys.argv[1]).run():
    begun = time.perf_counter()
print(begun - begin, time.perf_counter() - begun, imported - cpu_begin, time.process_time() - cpu_begin)
"""


def job_in(storage: str) -> RecurringJob:
    from zeus_core.jobs import RecurringJob, Target
    from zeus_core.optimizer import ZeusCost

    target, objective = Target("eval_accuracy", 0.84), ZeusCost(max_power_watts=400)
    return RecurringJob("benchmark", [32, 64, 128], 64, target, EVALUATIONS + 1, objective, storage)


def run_once(storage: str) -> tuple[float, float, list[float], float]:
    """Return the seconds of the begin, of the end, of each report, and those of the processor for a report.

    The latter contain what goes on in the background.
    """
    times, begin = [], time.perf_counter()
    with job_in(storage).run() as run:
        begun, cpu_begun = time.perf_counter(), time.process_time()
        for epoch in range(1, EVALUATIONS + 1):
            before = time.perf_counter()
            run.report(epoch=epoch, metric={"eval_accuracy": 0.8 * epoch / EVALUATIONS}, energy_joules=100.0 * epoch)
            times.append(time.perf_counter() - before)
            time.sleep(0.01)  # the training; or the reports would be joined into one
        ended, cpu_seconds = time.perf_counter(), time.process_time() - cpu_begun
    return begun - begin, time.perf_counter() - ended, times, cpu_seconds / EVALUATIONS


def main(storage: str) -> int:
    logging.disable(logging.WARNING)  # that no run reaches the target
    results = [run_once(storage) for _ in range(HISTORY)]
    begins, ends, reports, cpu_reports = zip(*results, strict=True)
    longest = max(time for times in reports for time in times)
    usual = sorted(time for times in reports for time in times)[HISTORY * EVALUATIONS // 2]
    print(f"a run, {HISTORY} in the history: begin {min(begins[-10:]):.3f} s, end {min(ends[-10:]):.3f} s")
    cpu_usual = sorted(cpu_reports)[HISTORY // 2]
    print(
        f"an evaluation report: {1e3 * usual:.2f} ms, at most {1e3 * longest:.2f} ms; with what it has done in the "
        f"background, {1e3 * cpu_usual:.2f} ms of the processor"
    )
    firsts = []
    for _ in range(3):  # other processes can only add time
        done = subprocess.run(
            [sys.executable, "-c", ONE_RUN, storage], cwd=ROOT, capture_output=True, text=True, check=True
        )
        firsts.append([float(word) for word in done.stdout.split()])
    begin, end, imports, cpu_seconds = min(firsts, key=lambda times: times[3])
    print(f"the first run of a process, with the import of Optuna: begin {begin:.3f} s, end {end:.3f} s")
    print(f"of the processor {cpu_seconds:.3f} s, {cpu_seconds / imports:.2f} imports of Optuna")
    is_within = cpu_seconds < MAX_IMPORTS * imports and cpu_usual < MAX_REPORT_CPU_SECONDS
    limits = f"{MAX_IMPORTS:g} imports of Optuna or {1e3 * MAX_REPORT_CPU_SECONDS:g} ms"
    print("within the limits" if is_within else f"beyond {limits}")
    return 0 if is_within else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(main(sys.argv[1]))
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(main(f"sqlite:///{folder}/zeus.db"))
