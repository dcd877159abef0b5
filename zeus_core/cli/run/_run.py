"""`zeus-core run -- command ...`: the energy of any command."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zeus_core.cli._electricity_arguments import add_electricity, electricity_from
from zeus_core.cli.arguments import add_gpus
from zeus_core.cli.run._run_record import RunRecord, check_writable, write_record
from zeus_core.cli.run._start_by import add_start_by, wait_for_start
from zeus_core.cli.text import write
from zeus_core.errors import NotSupportedError, UsageError
from zeus_core.measurement import Measurement

if TYPE_CHECKING:
    from zeus_core.cli.run._guarded_meter import GuardedMeter

SUMMARY = "Run a command and measure the energy of GPUs and CPUs meanwhile"

_EXAMPLE = "zeus-core run -- torchrun --nproc-per-node 4 train.py"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.usage = (
        "%(prog)s [-h] [--trainer] [--gpus 0,1] [--intensity 380g/kWh] [--price 0.31EUR/kWh] [--pue RATIO]\n"
        "       [--start-by FILE --deadline TIME --duration 3h] [--output FILE] [--quiet] -- command ..."
    )
    parser.epilog = f"Example: {_EXAMPLE}. The command's exit code is returned; signals are passed on to it."
    parser.add_argument(
        "--trainer",
        action="store_true",
        help="in the command, add the energy to the logs of each Trainer of transformers, TRL and Lightning",
    )
    add_gpus(parser)
    add_electricity(parser)
    add_start_by(parser)
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the measurement to this file, as JSON")
    parser.add_argument("--quiet", action="store_true", help="no summary on standard error")


def execute(arguments: argparse.Namespace) -> int:
    """Run the command. A fault of the measurement never changes how the command runs."""
    if not hasattr(signal, "sigwaitinfo"):
        raise NotSupportedError("`zeus-core run` needs Linux; `zeus-core energy` measures meanwhile from another shell")
    from zeus_core.cli.run._guarded_meter import GuardedMeter

    if not arguments.command:
        raise UsageError(f"the command to run is missing; write it after --, for example: {_EXAMPLE}")
    electricity = electricity_from(arguments)
    if arguments.output is not None:
        check_writable(arguments.output)
    if (exit_code := wait_for_start(arguments)) is not None:
        return exit_code
    started = _with_trainer(arguments.command) if arguments.trainer else None
    meter = GuardedMeter(arguments.gpus, electricity=electricity)
    return run_measured(arguments.command, meter, arguments.output, arguments.quiet, started)


def _with_trainer(command: Sequence[str]) -> Sequence[str]:
    """Return the command that enables the callbacks of trainers in a command."""
    from zeus_core._launch import VARIABLE, launched

    os.environ[VARIABLE] = "1"
    started = launched(command)
    if started is None:
        write(
            f"zeus-core: {command[0]} is not known to run a script or module of Python: --trainer reaches trainers of "
            "Lightning in it, and no others; write `zeus-core run --trainer --` before the Python program it starts",
            sys.stderr,
        )
    return started or command


def run_measured(
    command: Sequence[str],
    meter: GuardedMeter,
    output: Path | None = None,
    is_quiet: bool = False,
    started: Sequence[str] | None = None,
) -> int:
    """Run a command between the two edges of the meter's window, and report.

    Args:
        command: Its name or path, and its arguments.
        meter: Not yet begun.
        output: The file to write.
        is_quiet: Print no summary.
        started: The command to start in its place; the same if None.

    Returns:
        The exit code. If a signal killed the command, this process dies of the same signal instead.
    """
    from zeus_core.cli.run._child import CommandError, blocked_signals, end_like

    meter.begin()
    try:
        with blocked_signals() as mask:
            status, record = _run(command, started or command, mask, meter)
            _report(record, output, is_quiet)
    except CommandError as error:
        write(f"zeus-core: {error}", sys.stderr)
        return error.exit_code
    return end_like(status)


def _run(command: Sequence[str], started: Sequence[str], mask: set[int], meter: GuardedMeter) -> tuple[int, RunRecord]:
    from zeus_core.cli.run._child import spawn, wait_for

    start_time, begin = time.time(), time.monotonic()
    status = wait_for(spawn(started, mask))
    elapsed_seconds = time.monotonic() - begin
    # The energies are those between two readings, which lie a little apart from the command's start and end.
    measurement = meter.end() or Measurement(elapsed_seconds, {})
    return status, RunRecord(
        command=list(command),
        exit_code=os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status),
        signal=_signal_name(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else None,
        start_time=start_time,
        measurement=measurement,
        names=meter.names,
        is_simulated=meter.is_simulated,
        notes=meter.notes,
        charges=meter.charges,
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _report(record: RunRecord, output: Path | None, is_quiet: bool) -> None:
    """Print and write the record. Neither can change how the run ends."""
    try:
        if not is_quiet:
            write(record.summary(), sys.stderr)
        if output is not None:
            write_record(record, output)
    except OSError as error:
        _complain(f"zeus-core: the measurement could not be written: {error}")


def _complain(text: str) -> None:
    try:
        write(text, sys.stderr)
    except OSError:
        return  # there is nobody left to tell
