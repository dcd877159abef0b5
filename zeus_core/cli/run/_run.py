"""`zeus-core run -- command ...`: the energy of any command."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from zeus_core.adapters.result import show_result
from zeus_core.cli.arguments import add_gpus
from zeus_core.cli.electricity_arguments import add_electricity, electricity_from
from zeus_core.cli.run._reached import ReachedPrograms
from zeus_core.cli.run._run_options import Asked, add_asked, asked_by, checked_tags
from zeus_core.cli.run._run_record import CommandRecord, check_writable
from zeus_core.cli.text import complain, write
from zeus_core.environment import TAGS
from zeus_core.errors import NotSupportedError, UsageError
from zeus_core.measurement import Measurement
from zeus_core.ports.site_defaults import for_catalogue

if TYPE_CHECKING:
    from zeus_core.cli.run._guarded_meter import GuardedMeter
    from zeus_core.cli.run._window_charges import WindowCharges
    from zeus_core.electricity import Electricity

PLACE = "Measure and save", 10
SUMMARY = "Run a command, measure its energy, and save energy in its training"
EXAMPLE = "zeus-core run -- torchrun --nproc-per-node 4 train.py"

_NOTHING = Asked()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.usage = "%(prog)s [options] -- command ..."
    parser.description = f"{SUMMARY}.\nIt passes signals on to the command, and ends with its exit code."
    add_asked(parser)
    add_gpus(parser)
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="write the whole command as a run to this file, as JSON: without the steps of a training in it",
    )
    parser.add_argument("--quiet", action="store_true", help="no summary on standard error")
    add_electricity(parser.add_argument_group("emissions and cost"))


def execute(arguments: argparse.Namespace) -> int:
    """Run the command. A fault of the measurement never changes how the command runs."""
    if not hasattr(signal, "sigwaitinfo"):
        raise NotSupportedError("`zeus-core run` needs Linux; `zeus-core energy` measures meanwhile from another shell")
    from zeus_core.cli.run._guarded_meter import GuardedMeter

    if not arguments.command:
        raise UsageError(f"the command to run is missing; write it after --, for example: {EXAMPLE}")
    electricity = electricity_from(arguments)
    if arguments.output is not None:
        if arguments.output.suffix not in ("", ".json"):
            raise UsageError(f"--output is {str(arguments.output)!r}; the file of a run is JSON: name it FILE.json")
        check_writable(arguments.output)
    asked = asked_by(arguments)
    if arguments.tags is not None:  # for the runs in the command, and the record of this one
        os.environ[TAGS] = ",".join(filter(None, [os.environ.get(TAGS), checked_tags(arguments.tags)]))
    meter = GuardedMeter(arguments.gpus)
    return run_measured(arguments.command, meter, arguments.output, arguments.quiet, asked, electricity)


def run_measured(
    command: Sequence[str],
    meter: GuardedMeter,
    output: Path | None = None,
    is_quiet: bool = False,
    asked: Asked = _NOTHING,
    electricity: Electricity | None = None,
) -> int:
    """Run a command between the two edges of the meter's window, and report.

    Args:
        command: Its name or path, and its arguments.
        meter: Not yet begun.
        output: The file to write.
        is_quiet: Print no summary.
        asked: The options beyond measuring.
        electricity: The intensity and price that the energy is charged at; none if None.

    Returns:
        The exit code. If a signal killed the command, this process dies of the same signal instead.

    Raises:
        UsageError: A GPU cannot be set as it is asked for.
    """
    from zeus_core.cli.run._child import CommandError, blocked_signals, end_like, spawn, wait_for
    from zeus_core.cli.run._fixed_settings import FixedSettings

    if asked.by_site is not None:
        complain(f"zeus-core: {asked.by_site}")
    settings = FixedSettings(asked.settings, meter.gpus)
    environment = asked.environment(os.environ)
    programs = ReachedPrograms(environment) if asked.finds_trainings else None
    name = os.urandom(8).hex()  # of its record in a catalogue
    missing = None
    try:
        with blocked_signals() as mask:
            try:
                settings.apply()
                meter.begin()
                begun = _begun(command, meter, settings.in_force, name)
                begin = time.monotonic()
                code = wait_for(spawn(command, mask, environment if programs is None else programs.environment))
                elapsed_seconds = time.monotonic() - begin
                # The energies are those between two readings, which lie a little apart from its start and end.
                measurement = meter.end() or Measurement(elapsed_seconds, {})
            finally:
                settings.restore()
                if programs is not None:
                    missing = programs.end()
            if missing is not None and asked.must_find:
                complain(f"zeus-core: {missing}")
            record = replace(
                begun,
                code=code,
                measurement=measurement,
                notes=[*meter.notes, *settings.notes],
                samples=meter.samples,
                charges=_charges(electricity, meter),
                has_training=programs is not None and programs.has_training,
            )
            if not is_quiet:
                for rows in [] if programs is None else programs.unfinished:
                    show_result(rows)
            _report(record, output, is_quiet, name)
    except CommandError as error:
        write(f"zeus-core: {error}", sys.stderr)
        return error.exit_code
    return end_like(code)


def _begun(command: Sequence[str], meter: GuardedMeter, settings: Mapping[str, str], name: str) -> CommandRecord:
    """Return the record of a command that begins now, and have it recorded now and then while it runs."""
    record = CommandRecord(
        command=list(command),
        code=None,
        start_time=time.time(),
        measurement=Measurement(0.0, {}),
        names=meter.names,
        is_simulated=meter.is_simulated,
        notes=meter.notes,
        samples=meter.samples,
        settings=settings,
    )
    if (samples := meter.samples) is not None:
        samples.keep = lambda measurement: _record_for_catalogue(
            replace(record, measurement=measurement, notes=[*meter.notes, *samples.remarks]), name
        )
    return record


def _charges(electricity: Electricity | None, meter: GuardedMeter) -> WindowCharges | None:
    """Charge the energy of the whole window, where the electricity was stated."""
    if electricity is None or meter.samples is None:
        return None
    from zeus_core.cli.run._window_charges import WindowCharges

    return WindowCharges(electricity, meter.samples.in_time())


def _report(record: CommandRecord, output: Path | None, is_quiet: bool, name: str) -> None:
    """Print and write the record. Neither can change how the run ends."""
    try:
        if not is_quiet:
            write(record.summary(), sys.stderr)
        _record_for_catalogue(record, name)
        if output is not None:
            from zeus_core.cli.run._command_file import write_record

            write_record(record, output)
    except OSError as error:
        complain(f"zeus-core: the measurement could not be written: {error}")


def _record_for_catalogue(record: CommandRecord, name: str) -> None:
    """Record it for the catalogue that the site names, if it does. Never raises."""

    def content() -> str:
        from zeus_core.cli.run._command_file import document_of

        return json.dumps(document_of(record))

    for_catalogue(name, content, has_ended=record.code is not None)
