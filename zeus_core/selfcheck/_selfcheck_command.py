"""`zeus-core selfcheck`: measure how well energy is measured on this machine."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from zeus_core.cli.arguments import gpu_index, path
from zeus_core.cli.text import make_folder, write
from zeus_core.errors import UsageError

if TYPE_CHECKING:
    from zeus_core.selfcheck._selfcheck import SelfCheck

SUMMARY = "Measure how well energy is measured on this machine's GPU"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = (
        "It takes at most 8 minutes. No setting is changed without --allow-changes. Nothing else should use the GPU "
        "meanwhile."
    )
    parser.add_argument("--gpu", type=gpu_index, default=0, metavar="INDEX", help="the GPU, as of `devices` (0)")
    parser.add_argument(
        "--output", type=path, metavar="FOLDER", help="write selfcheck.json and selfcheck.md into this folder"
    )
    parser.add_argument(
        "--allow-changes",
        action="store_true",
        help="also change the power limit and the SM clock, to measure how long that takes and what it saves; both "
        "are restored, an SM clock as not locked",
    )
    parser.add_argument("--quick", action="store_true", help="take seconds, to see whether everything runs")


def execute(arguments: argparse.Namespace) -> int:
    """Check a GPU, and print the table of each part as soon as it is known."""
    from zeus_core.device import discover_gpus
    from zeus_core.device.silent import SilentGpu
    from zeus_core.selfcheck._load import find_load
    from zeus_core.selfcheck._selfcheck import SelfCheck, markdown_heading, markdown_section

    gpus = discover_gpus()
    if arguments.gpu >= len(gpus):
        raise UsageError(f"--gpu is {arguments.gpu}, but the highest index is {len(gpus) - 1}; see `zeus-core devices`")
    gpu = gpus[arguments.gpu]
    if isinstance(gpu, SilentGpu):
        raise gpu.fault
    if arguments.output is not None:
        _prepare(arguments.output)
    check = SelfCheck(gpu, find_load, allow_changes=arguments.allow_changes, is_quick=arguments.quick)
    write(markdown_heading(check.machine), sys.stdout)
    for result in check.run():
        write(markdown_section(result), sys.stdout)
        if arguments.output is not None:  # after each part: an interruption costs the rest alone
            _save(arguments.output, check)
    write(f"\nLoad: {check.machine['load'] or 'none'}.", sys.stdout)
    return 0


def _prepare(folder: Path) -> None:
    try:
        make_folder(folder)
    except (OSError, ValueError) as error:
        raise UsageError(f"--output {folder} cannot be made a folder: {error}") from error


def _save(folder: Path, check: SelfCheck) -> None:
    from zeus_core.files import write_atomically
    from zeus_core.selfcheck._selfcheck import FORMAT, json_fields, markdown_heading, markdown_section

    FORMAT.write(folder / "selfcheck.json", json_fields(check.machine, check.results))
    sections = [markdown_heading(check.machine), *map(markdown_section, check.results)]
    write_atomically(folder / "selfcheck.md", "\n".join([*sections, f"\nLoad: {check.machine['load'] or 'none'}.", ""]))
