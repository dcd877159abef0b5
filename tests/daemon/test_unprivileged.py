"""The end-to-end tests of limits and clocks once more, by a user without any right: only the daemon has it."""

import re
import subprocess
import sys

import pytest

from tests.daemon.conftest import REPOSITORY, needs_root

pytestmark = [needs_root, pytest.mark.long]

ALL = ("-m", "not real_time")
CLOCKS = "tests/optimizer/pipeline_frequency/test_process_end.py"
WAS_LOCKED = "(by_itself or optimizer_puts) and not before"
RUNS = {
    "plain loop": ["tests/process/test_process_end.py", "tests/optimizer/test_ranks.py", "tests/test_published_api.py"],
    "killed": [*ALL, "tests/process/test_killed_frameworks.py"],
    "accelerate": [*ALL, "tests/accelerate/test_ranks.py", "tests/accelerate/test_example.py"],
    "Lightning": [*ALL, "tests/lightning/test_ranks.py"],
    "Trainer": [*ALL, "tests/huggingface/test_ranks.py"],
    "DeepSpeed": [*ALL, "tests/deepspeed/test_perseus.py", "tests/deepspeed/test_example.py"],
    "examples": [*ALL, "tests/plain_torch/test_examples.py", "tests/plain_torch/test_pipeline_examples.py"],
    "clocks": [CLOCKS, "-k", f"not ({WAS_LOCKED})"],
    "clocks that were locked": ["--original-mhz", "1710", CLOCKS, "-k", WAS_LOCKED],
}


@pytest.mark.parametrize("arguments", RUNS.values(), ids=RUNS)
@pytest.mark.timeout(1500)
def test_they_pass_with_the_daemon_alone_privileged(arguments):
    command = [sys.executable, "-m", "tests.unprivileged", *arguments, "-q"]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=1500)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"\d+ passed", ended.stdout)
