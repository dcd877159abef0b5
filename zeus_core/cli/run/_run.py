"""`zeus-core run -- command ...`: the energy of any command."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from zeus_core._launch import SIMULATED, TAGS
from zeus_core.adapters.result import show_result
from zeus_core.cli.arguments import add_gpus
from zeus_core.cli.electricity_arguments import add_electricity, electricity_from
from zeus_core.cli.run._reached import ReachedPrograms
from zeus_core.cli.run._run_options import Asked, add_asked, asked_by, checked_tags
from zeus_core.cli.run._run_record import RunRecord, check_writable, write_record
from zeus_core.cli.text import complain, write
from zeus_core.errors import NotSupportedError, UsageError
from zeus_core.measurement import Measurement

if TYPE_CHECKING:
    from zeus_core.cli.run._guarded_meter import GuardedMeter

SUMMARY = "Run a command and measure the energy of GPUs and CPUs meanwhile"

_NOTHING = Asked()
_EXAMPLE = "zeus-core run -- torchrun --nproc-per-node 4 train.py"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.usage = "%(prog)s [options] -- command ..."
    parser.epilog = f"Example: {_EXAMPLE}. The command's exit code is returned; signals are passed on to it."
    add_asked(parser)
    add_gpus(parser)
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the measurement to this file, as JSON")
    parser.add_argument("--quiet", action="store_true", help="no summary on standard error")
    add_electricity(parser.add_argument_group("emissions and cost"))


def execute(arguments: argparse.Namespace) -> int:
    """Run the command. A fault of the measurement never changes how the command runs."""
    if not hasattr(signal, "sigwaitinfo"):
        raise NotSupportedError("`zeus-core run` needs Linux; `zeus-core energy` measures meanwhile from another shell")
    from zeus_core.cli.run._guarded_meter import GuardedMeter

    if not arguments.command:
        raise UsageError(f"the command to run is missing; write it after --, for example: {_EXAMPLE}")
    electricity = electricity_from(arguments)
    if arguments.output is not None:
        if arguments.output.suffix not in ("", ".json"):
            raise UsageError(f"--output is {str(arguments.output)!r}; the file of a run is JSON: name it FILE.json")
        check_writable(arguments.output)
    asked = asked_by(arguments)
    if arguments.tags is not None:  # for the runs in the command, and the record of this one
        os.environ[TAGS] = ",".join(filter(None, [os.environ.get(TAGS), checked_tags(arguments.tags)]))
    meter = GuardedMeter(arguments.gpus, electricity=electricity)
    return run_measured(arguments.command, meter, arguments.output, arguments.quiet, asked)


def run_measured(
    command: Sequence[str],
    meter: GuardedMeter,
    output: Path | None = None,
    is_quiet: bool = False,
    asked: Asked = _NOTHING,
) -> int:
    """Run a command between the two edges of the meter's window, and report.

    Args:
        command: Its name or path, and its arguments.
        meter: Not yet begun.
        output: The file to write.
        is_quiet: Print no summary.
        asked: The options beyond measuring.

    Returns:
        The exit code. If a signal killed the command, this process dies of the same signal instead.

    Raises:
        UsageError: A GPU cannot be set as it is asked for.
    """
    from zeus_core.cli.run._child import CommandError, blocked_signals, end_like
    from zeus_core.cli.run._fixed_settings import FixedSettings

    if asked.by_site is not None:
        complain(f"zeus-core: {asked.by_site}")
    settings, name = FixedSettings(asked, meter.gpus), os.urandom(8).hex()
    try:
        with blocked_signals() as mask:
            try:
                settings.apply()
                meter.begin()
                status, record = _run(command, mask, meter, asked, is_quiet, settings.in_force, name)
            finally:
                settings.restore()
            meter.notes.extend(settings.notes)
            _report(record, output, is_quiet, name)
    except CommandError as error:
        write(f"zeus-core: {error}", sys.stderr)
        return error.exit_code
    return end_like(status)


def _run(
    command: Sequence[str],
    mask: set[int],
    meter: GuardedMeter,
    asked: Asked,
    is_quiet: bool,
    settings: Mapping[str, str],
    name: str,
) -> tuple[int, RunRecord]:
    environment = asked.environment(os.environ)
    if meter.is_simulated:
        environment[SIMULATED] = "1"
    programs = ReachedPrograms(environment) if asked.finds_trainings else None
    start_time, begin = time.time(), time.monotonic()

    def record(measurement: Measurement, exit_code: int | None = None, signal: str | None = None) -> RunRecord:
        return RunRecord(
            command=list(command),
            exit_code=exit_code,
            signal=signal,
            start_time=start_time,
            measurement=measurement,
            names=meter.names,
            is_simulated=meter.is_simulated,
            notes=meter.notes,
            power=meter.power,
            settings=settings,
        )

    if (power := meter.power) is not None:
        power.keep = lambda measurement: replace(
            record(measurement), notes=[*meter.notes, *power.remarks]
        ).record_for_catalogue(name)
    try:
        status = _ended(command, mask, environment, programs)
    finally:
        missing = None if programs is None else programs.end()
    elapsed_seconds = time.monotonic() - begin
    # The energies are those between two readings, which lie a little apart from the command's start and end.
    measurement = meter.end() or Measurement(elapsed_seconds, {})
    if programs is not None and not is_quiet:
        for rows in programs.unfinished:
            show_result(rows)
    if missing is not None and asked.must_find:
        complain(f"zeus-core: {missing}")
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
    ended = record(measurement, code, _signal_name(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else None)
    has_training = programs is not None and programs.has_training
    return status, replace(ended, charges=meter.charges, has_training=has_training)


def _ended(
    command: Sequence[str],
    mask: set[int],
    environment: Mapping[str, str],
    programs: ReachedPrograms | None,
) -> int:
    """Start the command, and return its wait status."""
    from zeus_core.cli.run._child import spawn, wait_for

    process_id = spawn(command, mask, environment if programs is None else programs.environment)
    if programs is None:
        return wait_for(process_id)
    programs.look(process_id)
    return wait_for(process_id, partial(programs.look, process_id))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _report(record: RunRecord, output: Path | None, is_quiet: bool, name: str) -> None:
    """Print and write the record. Neither can change how the run ends."""
    try:
        if not is_quiet:
            write(record.summary(), sys.stderr)
        record.record_for_catalogue(name)
        if output is not None:
            write_record(record, output)
    except OSError as error:
        complain(f"zeus-core: the measurement could not be written: {error}")
