"""The end-to-end tests of limits and clocks once more, by a user without any right: only the daemon has it."""

import re
import subprocess
import sys

import pytest

from tests.daemon.conftest import REPOSITORY, needs_root
from tests.support.users import why_not_run

pytestmark = [needs_root, pytest.mark.long]

CLOCKS = "tests/pipeline/optimizer/test_process_end.py"
WAS_LOCKED = "(by_itself or optimizer_puts) and not before"
RANKS = [f"tests/{framework}/test_ranks.py" for framework in ("accelerate", "huggingface", "lightning")]
KILLED = "Trainer-2 or forkserver or notebook"  # a daemon notices the end of a process, whatever framework it ran
RUNS = {
    "plain loop": [
        "tests/process/test_process_end.py",
        "tests/process/test_killed_pause.py",
        "tests/optimizer/test_ranks.py",
        "tests/test_published_api.py",
    ],
    "levelling": ["tests/mixed/test_levelled_end.py"],
    "batches of ranks": ["-m", "long", "tests/batches/test_uneven_end.py"],
    "frameworks, killed": ["-m", "long", "tests/process/test_killed_frameworks.py", "-k", KILLED],
    "restoring by hand": ["tests/cli/test_restore.py"],
    "others' limits and hanging drivers": ["tests/process/test_limit_watch.py", "tests/process/test_hanging_driver.py"],
    "ranks of frameworks": ["-m", "not real_time", *RANKS, "-k", "find_one_limit or search_together"],
    "objects of one process": ["tests/process/test_two_optimizers.py"],
    "boards that round": ["tests/process/test_boards_that_round.py"],
    "clocks": [CLOCKS, "-k", f"not ({WAS_LOCKED})"],
    "guardian": ["--original-mhz", "1710", "tests/process/test_guardian.py"],
    "clocks that were locked": ["--original-mhz", "1710", CLOCKS, "-k", WAS_LOCKED],
}


@pytest.mark.parametrize("arguments", RUNS.values(), ids=RUNS)
@pytest.mark.timeout(1500)
def test_they_pass_with_the_daemon_alone_privileged(arguments):
    if reason := why_not_run():
        pytest.skip(reason)
    command = [sys.executable, "-m", "tests.unprivileged", *arguments, "-q"]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=1500)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"\d+ passed", ended.stdout)
