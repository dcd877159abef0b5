"""How long importing the core takes, beside what it stands on: bare Python, and Python with numpy.

Prints the median of fresh processes and the ratio to `import numpy` in the same run. Modules are compiled before, as
pip does when it installs them. Exits with 1 if the core adds more than 0.1 s.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

RUNS = 15
LONGEST_ADDED_SECONDS = 0.1
STATEMENTS = {
    "bare Python": "pass",
    "import numpy": "import numpy",
    "import zeus_core": "import zeus_core",
    "ZeusMonitor": "from zeus_core.monitor import ZeusMonitor",
    "GlobalPowerLimitOptimizer": "from zeus_core.optimizer.power_limit import GlobalPowerLimitOptimizer",
}


def seconds(statement: str, environment: dict[str, str]) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True, env=environment)
    return time.perf_counter() - begin


def main() -> int:
    samples: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for run in range(RUNS + 1):  # in turn, so that a change of the machine's speed meets all alike
            for name, statement in STATEMENTS.items():
                taken = seconds(statement, environment)
                if run > 0:  # the first run compiles
                    samples[name].append(taken)
    medians = {name: statistics.median(runs) for name, runs in samples.items()}
    numpy_seconds = medians["import numpy"]
    print(f"{'':26} {'median':>9} {'/ numpy':>8} {'added to numpy':>15}")
    for name, median in medians.items():
        print(
            f"{name:26} {median * 1e3:6.1f} ms {median / numpy_seconds:8.2f} {(median - numpy_seconds) * 1e3:12.1f} ms"
        )
    return int(max(medians.values()) - numpy_seconds > LONGEST_ADDED_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
