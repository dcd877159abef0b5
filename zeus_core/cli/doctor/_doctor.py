"""`zeus-core doctor`: report what can be measured and set on this machine, and the commands that enable the rest."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from zeus_core.cli.text import table, write

if TYPE_CHECKING:
    from zeus_core.cli.doctor import Check

SUMMARY = "Report what can be measured and set on this machine, and how to enable the rest"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument(
        "--rapl-root", type=Path, metavar="PATH", help="path at which a container mounts /sys/class/powercap"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Print the report. The exit code is always 0: a missing device is not an error."""
    checks = list(find_all(os.environ, arguments.rapl_root))
    if arguments.json:
        report = {"format": "zeus-core doctor", "version": 1, "checks": [asdict(check) for check in checks]}
        write(json.dumps(report, indent=2), sys.stdout)
    else:
        write(_text(checks), sys.stdout)
    return 0


def find_all(environment: Mapping[str, str], rapl_root: Path | None) -> Iterator[Check]:
    """Run all checks, in the order of the report."""
    import zeus_core.cli.doctor as checks

    driver = checks.find_driver()
    gpus, no_gpus_because = checks.find_gpus(environment)
    rights = checks.read_rights(environment)
    yield from checks.check_python()
    is_simulated = bool(environment.get("ZEUS_SIMULATED_GPUS", "").strip())
    yield checks.check_driver(driver, is_simulated=is_simulated, others=checks.other_drivers(gpus))
    yield from checks.check_gpus(gpus, no_gpus_because, driver, environment)
    if gpus:
        yield checks.check_limits(gpus)
        yield checks.check_residue(gpus)
    yield checks.check_limit_rights(rights, gpus)
    yield checks.check_clock_rights(rights, gpus)
    yield checks.check_rapl(rapl_root)
    yield checks.check_torch(driver, gpus)
    yield checks.check_extras()
    yield checks.check_live_view()


def _text(checks: Sequence[Check]) -> str:
    lines = table([(check.state, check.name, check.sentence) for check in checks], "<<<").splitlines()
    fixes = [f"\n         fix: {check.fix}" if check.fix else "" for check in checks]
    return "\n".join(line + fix for line, fix in zip(lines, fixes, strict=True))
