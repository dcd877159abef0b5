"""Run the checks in order, each one contained, within a time; and the report of them, as JSON and as Markdown."""

from __future__ import annotations

import json
import logging
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from zeus_core import __version__
from zeus_core.cli.text import write
from zeus_core.device import Gpu, discover_gpus
from zeus_core.device.gpu import SilentGpu, read_or_none
from zeus_core.documents import Document
from zeus_core.selfcheck._bench import Bench, Finding
from zeus_core.selfcheck._costs import check_calls, check_hooks, check_window_overhead
from zeus_core.selfcheck._load import Load, find_load
from zeus_core.selfcheck._readings import check_counter, check_idle, check_resting_power
from zeus_core.selfcheck._setting_changes import check_clock, check_power_limit, check_restored, check_saving
from zeus_core.selfcheck._truth import check_agreement, check_marks, check_truth
from zeus_core.units import number_text

_logger = logging.getLogger(__name__)

_MAX_SECONDS = 480.0  # as promised: 8 minutes


@dataclass(frozen=True)
class _Check:
    """A part of the report.

    Attributes:
        title: Its heading.
        run: Measures.
        usual_seconds: About how long that takes; it is not begun if less is left.
        changes: Whether it changes settings.
    """

    title: str
    run: Callable[[Bench], Iterator[Finding]]
    usual_seconds: float
    changes: bool = False


# The first one measures before there is a load.
_CHECKS = (
    _Check("Idle power", check_idle, 10),
    _Check("Energy counter", check_counter, 45),
    _Check("Calls of the driver", check_calls, 15),
    _Check("A window beside its bare calls", check_window_overhead, 15),
    _Check("Truth of the stated uncertainties", check_truth, 75),
    _Check("Counter and integrated power", check_agreement, 30),
    _Check("Marks beside CUDA events", check_marks, 15),
    _Check("Hooks in a training step", check_hooks, 45),
    _Check("Power at rest and at work", check_resting_power, 45),
    _Check("Power limits", check_power_limit, 20, changes=True),
    _Check("SM clocks", check_clock, 25, changes=True),
    _Check("Saving of a search", check_saving, 80, changes=True),
)


@dataclass(frozen=True)
class CheckResult:
    """The findings of one check."""

    title: str
    seconds: float
    findings: list[Finding] = field(default_factory=list)
    not_measured_because: str | None = None


class SelfCheck:
    """Checks one GPU.

    Args:
        gpu: The GPU.
        make_load: Makes a load for it.
        allow_changes: Whether its power limit and SM clock may be changed; they are restored.
        is_quick: Whether to take seconds only, for tests.
    """

    def __init__(
        self, gpu: Gpu, make_load: Callable[[Gpu], Load], *, allow_changes: bool = False, is_quick: bool = False
    ) -> None:
        self._bench = Bench(gpu, make_load, is_quick)
        self._allow_changes = allow_changes
        self.results: list[CheckResult] = []
        self.machine: dict[str, Any] = {
            "device": gpu.name,
            "is_simulated": gpu.is_simulated,
            "driver": read_or_none(gpu.read_driver_version),
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "load": None,
            "zeus_core": __version__,
            "python": platform.python_version(),
            "host": f"{platform.system()} {platform.release()} {platform.machine()}",
            "is_quick": is_quick,
            "changes_allowed": allow_changes,
        }
        """The device and the circumstances."""

    def run(self) -> Iterator[CheckResult]:
        """Run the checks, and yield the result of each."""
        end = time.monotonic() + _MAX_SECONDS
        original_watts = read_or_none(self._bench.gpu.read_power_limit_watts) if self._allow_changes else None
        for check in _CHECKS:
            if check.changes and not self._allow_changes:
                continue
            left = end - time.monotonic()
            if not self._bench.is_quick and left < check.usual_seconds:
                result = CheckResult(check.title, 0.0, [], "the 8 minutes of a self-check were used up")
            else:
                result = self._contained(check)
            self.results.append(result)
            yield result
        if original_watts is not None:
            finding = check_restored(self._bench, original_watts)
            self.results.append(CheckResult("Settings at the end", 0.0, [finding]))
            yield self.results[-1]

    def _contained(self, check: _Check) -> CheckResult:
        """Run one check; a fault costs its remaining findings, and no other check."""
        begin, findings, reason = time.monotonic(), list[Finding](), None
        try:
            for finding in check.run(self._bench):
                findings.append(finding)
        except Exception as error:
            _logger.debug("%s ended early", check.title, exc_info=True)
            reason = str(error) or type(error).__name__
        if "load" in vars(self._bench):
            self.machine["load"] = self._bench.load.name
        return CheckResult(check.title, time.monotonic() - begin, findings, reason)


def report_on_first_gpu(extent: str, as_json: bool) -> None:
    """Check the first visible GPU, and print the table of each part as soon as it is known, or one JSON object.

    An interruption costs the parts that have not ended, in JSON too.

    Args:
        extent: "readings", "settings" to change and restore settings too, "quick" to take seconds.
        as_json: Whether to print JSON.

    Raises:
        DeviceError: There is no GPU, or it does not answer.
    """
    gpu = discover_gpus()[0]
    if isinstance(gpu, SilentGpu):
        raise gpu.fault
    check = SelfCheck(gpu, find_load, allow_changes=extent == "settings", is_quick=extent == "quick")
    if as_json:
        try:
            for _ in check.run():
                pass
        finally:
            write(json.dumps(FORMAT.to_json(json_fields(check.machine, check.results)), indent=2), sys.stdout)
        return
    write(markdown_heading(check.machine), sys.stdout)
    for result in check.run():
        write(markdown_section(result), sys.stdout)
    write(f"\nLoad: {check.machine['load'] or 'none'}.", sys.stdout)


FORMAT = Document("zeus-core selfcheck", 1, dict[str, Any])
_NO = (
    "**no**: a promise of the documentation does not hold on this machine, or something else used it meanwhile. Rely "
    "on the value that stands here; to report it, attach what `zeus-core doctor --measure --json` prints."
)


def json_fields(machine: Mapping[str, Any], results: Sequence[CheckResult]) -> dict[str, Any]:
    """Return the fields of the JSON document."""
    return {"machine": dict(machine), "checks": [asdict(result) for result in results]}


def markdown_heading(machine: Mapping[str, Any]) -> str:
    """Return the title, and what was checked when."""
    simulated = ", simulated: no number here was measured on hardware" if machine["is_simulated"] else ""
    quick = " Quick mode: too short for results that count." if machine["is_quick"] else ""
    changes = "Settings were changed, and restored." if machine["changes_allowed"] else "No setting was changed."
    driver = machine["driver"] or "unknown"
    return (
        f"# Self-check of {machine['device']}{simulated}\n\n{machine['date']}, driver {driver}, "
        f"zeus-core {machine['zeus_core']}, Python {machine['python']}, {machine['host']}. {changes}{quick}"
    )


def markdown_section(result: CheckResult) -> str:
    """Return the table of one check."""
    return "\n".join(_section(result))


def _section(result: CheckResult) -> Iterator[str]:
    yield f"\n## {result.title}\n"
    if result.findings:
        yield "| quantity | value | holds | |"
        yield "|---|---:|---|---|"
        yield from map(_row, result.findings)
    if any(finding.holds is False for finding in result.findings):
        yield f"\n{_NO}"
    if result.not_measured_because is not None:
        yield f"{chr(10) if result.findings else ''}Not measured: {result.not_measured_because}."


def _row(finding: Finding) -> str:
    holds = {None: "", True: "yes", False: "**no**"}[finding.holds]
    cells = (finding.quantity, _shown(finding), holds, finding.note)
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _shown(finding: Finding) -> str:
    if finding.value is None:
        return "not measured"
    value = finding.value if isinstance(finding.value, str) else number_text(finding.value)
    return f"{value} {finding.unit}".strip()
