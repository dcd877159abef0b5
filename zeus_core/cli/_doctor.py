"""`zeus-core doctor`: what can be measured and set here, why not, and what to do about it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from zeus_core.cli._text import table, write

if TYPE_CHECKING:
    from zeus_core.cli._checks import Check

__all__ = ["SUMMARY", "add_arguments", "execute", "find_all"]

SUMMARY = "Tell what can be measured and set on this machine, and how to get the rest"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--json", action="store_true", help="one JSON object in place of text")
    parser.add_argument(
        "--rapl-root", type=Path, metavar="PATH", help="where /sys/class/powercap is mounted, in a container"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Report. Whatever is found, the exit code is 0."""
    checks = list(find_all(os.environ, arguments.rapl_root))
    if arguments.json:
        report = {"format": "zeus-core doctor", "version": 1, "checks": [asdict(check) for check in checks]}
        write(json.dumps(report, indent=2), sys.stdout)
    else:
        write(_text(checks), sys.stdout)
    return 0


def find_all(environment: Mapping[str, str], rapl_root: Path | None) -> Iterator[Check]:
    """Every check, in the order of the report."""
    import zeus_core.cli._checks as checks

    driver = checks.find_driver()
    gpus, no_gpus_because = checks.find_gpus(environment)
    rights = checks.read_rights()
    yield from checks.check_python()
    yield checks.check_driver(driver)
    yield from checks.check_gpus(gpus, no_gpus_because, driver, environment)
    yield checks.check_limit_rights(rights, gpus)
    yield checks.check_clock_rights(rights, gpus)
    yield checks.check_rapl(rapl_root)
    yield checks.check_torch(driver)
    yield checks.check_extras()
    yield checks.check_live_view()


def _text(checks: Sequence[Check]) -> str:
    lines = table([(check.state, check.name, check.sentence) for check in checks], "<<<").splitlines()
    fixes = [f"\n         fix: {check.fix}" if check.fix else "" for check in checks]
    return "\n".join(line + fix for line, fix in zip(lines, fixes, strict=True))
