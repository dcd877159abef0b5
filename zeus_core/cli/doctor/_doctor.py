"""`zeus-core doctor`: report what can be measured and set on this machine, and the commands that enable the rest."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from zeus_core.cli.text import complain, table, write
from zeus_core.documents import Document
from zeus_core.errors import UsageError
from zeus_core.installed import DOCTOR, missing_registration, registered

if TYPE_CHECKING:
    from zeus_core.cli.doctor.machine import Check

PLACE = "Measure and save", 14
SUMMARY = "Report what can be measured and set here, and how to get the rest"
EXAMPLE = "zeus-core doctor --need gpus --need set-power-limits"

_FORMAT = Document("zeus-core doctor", 1, dict[str, Any])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    task = parser.add_mutually_exclusive_group()
    task.add_argument(
        "--need",
        action="append",
        default=[],
        metavar="CHECK",
        help="exit with 1 if this is missing, such as gpus, lock-clocks or cpu-energy; it may be given several times",
    )
    task.add_argument(
        "--measure",
        nargs="?",
        const="readings",
        choices=("readings", "settings", "quick"),
        help="measure how well energy is measured on the first visible GPU, in at most 8 minutes in which nothing else "
        "should use it; with `settings` also change and restore its power limit and SM clock, to measure what that "
        "takes and saves; with `quick` take seconds, to see whether everything runs",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Print the report. The exit code is 1 if something that was asked for is missing, by an option or a variable."""
    if arguments.measure is not None:
        _measure(arguments.measure, arguments.json)
        return 0
    checks = list(find_all(os.environ))
    missing = {_key(check.name): check.state == "missing" for check in checks}
    needs = {_key(need) for need in arguments.need}
    if unknown := sorted(needs - missing.keys()):
        raise UsageError(f"--need is {unknown[0]!r}; it must be one of the checks {', '.join(missing)}")
    if any(os.environ.get(name, "").strip() for name in ("CUDA_VISIBLE_DEVICES", "ZEUS_SIMULATED_GPUS")):
        needs.add("gpus")
    if arguments.json:
        write(json.dumps(_FORMAT.to_json({"checks": list(map(asdict, checks))}), indent=2), sys.stdout)
    else:
        write(_text(checks), sys.stdout)
    lacking = [need for need in sorted(needs) if missing[need]]
    if lacking:
        complain(f"zeus-core: asked for, and missing: {', '.join(lacking)}")
    return 1 if lacking else 0


def _measure(depth: str, is_json: bool) -> None:
    """Have the parts of this package that measure how well energy is measured do so."""
    measures = list(registered(DOCTOR, lambda problem: complain(f"zeus-core: {problem}"), "measure"))
    if not measures:
        raise UsageError(f"--measure is not there; {missing_registration(DOCTOR)}")
    for _, measure in measures:
        measure(depth, is_json)


def _key(name: str) -> str:
    """Return the name of a check as it is typed."""
    return name.lower().replace(" ", "-")


def find_all(environment: Mapping[str, str]) -> Iterator[Check]:
    """Run all checks, in the order of the report. None changes anything."""
    from zeus_core.cli.doctor.machine import is_in_container

    for check in _find_all(environment):
        if check.fix and check.fix.startswith("sudo ") and is_in_container():
            yield replace(check, fix=f"{check.fix}  # on the host")  # a container has neither its kernel nor its rights
        else:
            yield check


def _find_all(environment: Mapping[str, str]) -> Iterator[Check]:
    from zeus_core.cli.doctor import gpus as of_gpus
    from zeus_core.cli.doctor import machine, rights

    driver = machine.find_driver()
    gpus, no_gpus_because = of_gpus.find_gpus(environment)
    is_simulated = bool(environment.get("ZEUS_SIMULATED_GPUS", "").strip())
    yield from machine.check_python()
    yield machine.check_driver(driver, is_simulated=is_simulated, others=machine.other_drivers(gpus))
    yield from of_gpus.check_gpus(gpus, no_gpus_because, driver, environment)
    own = rights.read_rights(environment)
    yield rights.check_limit_rights(own, gpus)
    yield rights.check_clock_rights(own, gpus)
    yield machine.check_rapl()


def _text(checks: Sequence[Check]) -> str:
    width = max(len(check.name) for check in checks)
    return "\n".join(
        table([(f"{check.state:8}", f"{check.name:{width}}", check.sentence)], "<<<")
        + (f"\n          fix: {check.fix}" if check.fix else "")
        for check in checks
    )
