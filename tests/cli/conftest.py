"""`zeus-core` as its users start it: as a process."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from zeus_core.cli import main

REPOSITORY = Path(__file__).parents[2]
UNWANTED = ("ZEUS_SIMULATED_GPUS", "CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "PYTHONUNBUFFERED")


class Program:
    """Starts `python -m zeus_core`.

    Args:
        variables: Of its environment.
    """

    def __init__(self, variables):
        found = {name: value for name, value in os.environ.items() if name not in UNWANTED}
        self.environment = {**found, "PYTHONPATH": str(REPOSITORY), **variables}

    def command(self, *arguments, module="zeus_core"):
        return [sys.executable, "-m", module, *map(str, arguments)]

    def __call__(self, *arguments, module="zeus_core", **options):
        """Run it to its end."""
        command = self.command(*arguments, module=module)
        settings = {"capture_output": True, "text": True, "timeout": 240, "env": self.environment, **options}
        return subprocess.run(command, check=False, **settings)

    def start(self, *arguments, **options):
        """Start it, with pipes for standard streams."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(self.command(*arguments), env=self.environment, **{**pipes, **options})


@pytest.fixture
def in_process(capsys, monkeypatch, loggers_of_others):
    """Runs the program in this process, on two simulated GPUs: for what needs no process of its own."""
    for name in UNWANTED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", "A40:2")

    def run(*arguments):
        try:
            code = main(arguments)
        except SystemExit as end:
            code = end.code
        said = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, said.out, said.err)

    return run


@pytest.fixture
def on_nothing():
    """On a machine without a GPU."""
    return Program({})


@pytest.fixture
def on_simulated():
    """On two simulated GPUs."""
    return Program({"ZEUS_SIMULATED_GPUS": "A40:2"})


@pytest.fixture
def on_driver(make_driver):
    """On GPUs of the second NVML driver: `program, driver = on_driver(DeviceSpec(), ...)`."""

    def make(*specs, **variables):
        driver = make_driver(*specs)
        return Program({**driver.environment, **variables}), driver

    return make


@pytest.fixture
def counting_child(tmp_path):
    """A program that says which signals reach it, and ends by itself with exit code 7 a moment after the first."""
    path = tmp_path / "counting.py"
    path.write_text(
        textwrap.dedent("""
            import signal, time

            received = []
            for number in (1, 2, 3, 10, 12, 15, 24, 34, 40):
                signal.signal(number, lambda number, _: received.append(number))
            print("ready", flush=True)
            end = time.monotonic() + 240
            while not received and time.monotonic() < end:
                time.sleep(0.01)
            time.sleep(0.3)
            print("received", *received, flush=True)
            raise SystemExit(7)
        """)
    )
    return [sys.executable, path]
