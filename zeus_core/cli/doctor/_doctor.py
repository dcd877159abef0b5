"""`zeus-core doctor`: report what can be measured and set on this machine, and the commands that enable the rest."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from zeus_core.cli.text import complain, table, write
from zeus_core.errors import UsageError

if TYPE_CHECKING:
    from zeus_core.cli.doctor.machine import Check

SUMMARY = "Report what can be measured and set here, and how to get the rest"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument(
        "--need",
        action="append",
        default=[],
        metavar="NAME",
        help="exit with 1 if this is missing: a check, such as gpus or lock-clocks, or an extra, such as lightning",
    )
    parser.add_argument(
        "--rapl-root", type=Path, metavar="PATH", help="path at which a container mounts /sys/class/powercap"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Print the report. The exit code is 1 if something that was asked for is missing, by an option or a variable."""
    needs = {_key(need) for need in arguments.need}
    checks = list(find_all(os.environ, arguments.rapl_root, needs))
    missing = {_key(check.name): check.state == "missing" for check in checks}
    if unknown := sorted(needs - missing.keys()):
        raise UsageError(f"--need is {unknown[0]!r}; there are the checks {', '.join(missing)}, and the extras")
    if arguments.rapl_root is not None:
        needs.add("cpu-energy")
    if any(os.environ.get(name, "").strip() for name in ("CUDA_VISIBLE_DEVICES", "ZEUS_SIMULATED_GPUS")):
        needs.add("gpus")
    if arguments.json:
        report = {"format": "zeus-core doctor", "version": 1, "checks": [asdict(check) for check in checks]}
        write(json.dumps(report, indent=2), sys.stdout)
    else:
        write(_text(checks), sys.stdout)
    lacking = [need for need in sorted(needs) if missing[need]]
    if lacking:
        complain(f"zeus-core: asked for, and missing: {', '.join(lacking)}")
    return 1 if lacking else 0


def _key(name: str) -> str:
    """Return the name of a check as it is typed."""
    return name.lower().replace(" ", "-")


def find_all(environment: Mapping[str, str], rapl_root: Path | None, needs: Collection[str] = ()) -> Iterator[Check]:
    """Run all checks, in the order of the report; one for each extra that is needed is the last."""
    from zeus_core.cli.doctor.gpus import check_gpus, check_limits, check_residue, find_gpus
    from zeus_core.cli.doctor.machine import (
        check_driver,
        check_extras,
        check_live_view,
        check_python,
        check_rapl,
        check_torch,
        find_driver,
        other_drivers,
    )
    from zeus_core.cli.doctor.rights import check_clock_rights, check_limit_rights, read_rights

    driver = find_driver()
    gpus, no_gpus_because = find_gpus(environment)
    rights = read_rights(environment)
    yield from check_python()
    is_simulated = bool(environment.get("ZEUS_SIMULATED_GPUS", "").strip())
    yield check_driver(driver, is_simulated=is_simulated, others=other_drivers(gpus))
    yield from check_gpus(gpus, no_gpus_because, driver, environment)
    if gpus:
        yield check_limits(gpus)
        yield check_residue(gpus)
    yield check_limit_rights(rights, gpus)
    yield check_clock_rights(rights, gpus)
    yield check_rapl(rapl_root)
    yield check_torch(driver, gpus)
    yield check_live_view()
    yield from check_extras(needs)


def _text(checks: Sequence[Check]) -> str:
    width = max(len(check.name) for check in checks)
    return "\n".join(
        table([(f"{check.state:8}", f"{check.name:{width}}", check.sentence)], "<<<")
        + (f"\n          fix: {check.fix}" if check.fix else "")
        for check in checks
    )
