"""Processor time until a daemon that starts has restored what a killed one has left: it stays in force until then.

Runs on the tests' own NVML driver, whose calls take no time, so on any machine with a C compiler; as root, which alone
restores in this stage. A killed daemon has left two GPUs changed. Prints the processor time of a process up to the end
of the first stage, and that of an empty `python -I` as a whole, each the median of 15, and the median of the ratio of
15 pairs, as other processes of the machine slow both. Exits with 1 if that is more than 2.2.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.nvml_driver import DeviceSpec, NoCompilerError, NvmlDriver, build_library  # noqa: E402
from zeus_core.kinds import POWER_LIMIT  # noqa: E402
from zeus_core.settings.entry import LedgerEntry  # noqa: E402
from zeus_core.settings.ledger import Ledger  # noqa: E402

PAIRS = 15
HIGHEST_RATIO = 2.2
ORIGINAL_WATTS, LEFT_WATTS = 650.0, 400.0
STAGE = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from zeus_core.settings.first_stage import restore_left_behind
restore_left_behind()
os._exit(0)  # the daemon goes on here
"""


def processor_seconds(program: str, environment: dict[str, str]) -> float:
    """Run a program in `python -I`, and return the time that it computes."""
    before = getrusage(RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-I", "-c", program], check=True, env=environment)
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def leave_changed(driver: NvmlDriver) -> None:
    ledger = Ledger(str(driver.ledger_path))
    for device in driver.devices:
        device.power_limit_watts = LEFT_WATTS
        entry = LedgerEntry.of_this_process(device.uuid, device.name, POWER_LIMIT, ORIGINAL_WATTS)
        ledger.note(entry._replace(owner=entry.owner._replace(start_ticks=1), values=(LEFT_WATTS,)))


def main() -> int:
    if os.geteuid() != 0:
        print("this needs root")
        return 0
    pairs = []
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:  # as /run is
        try:
            library = build_library(Path(folder))
        except NoCompilerError as error:
            print(error)
            return 0
        with NvmlDriver(Path(folder), [DeviceSpec(power_limit_watts=ORIGINAL_WATTS)] * 2, library=library) as driver:
            environment = {**os.environ, **driver.environment}
            for _ in range(PAIRS + 1):
                leave_changed(driver)
                pairs.append((processor_seconds(STAGE, environment), processor_seconds("pass", environment)))
                assert {device.power_limit_watts for device in driver.devices} == {ORIGINAL_WATTS}
    pairs = pairs[1:]  # the first run compiles
    stage, empty = (statistics.median(seconds) for seconds in zip(*pairs, strict=True))
    ratio = statistics.median(stage / empty for stage, empty in pairs)
    print(f"first stage {stage * 1e3:.1f} ms, empty python -I {empty * 1e3:.1f} ms, ratio {ratio:.2f}")
    return int(ratio > HIGHEST_RATIO)


if __name__ == "__main__":
    sys.exit(main())
