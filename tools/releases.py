"""Record with which releases of frameworks tests really ran, and write the table of the oldest and the newest of each.

    python -m pytest -p tools.releases tests/lightning   # adds what passed, with the releases that are installed
    python tools/releases.py                             # writes docs/releases.md

A framework ran with a release if a test of it passed there. The record is docs/releases.json.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from collections import Counter
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pytest

DOCS = Path(__file__).parents[1] / "docs"
RECORD, PAGE = DOCS / "releases.json", DOCS / "releases.md"


class Framework(NamedTuple):
    """A framework, as a distribution on a package index.

    Attributes:
        name: The distribution.
        tests: A regular expression of the tests that run it.
        how: What of it is real in these tests, and what is replaced.
    """

    name: str
    tests: str
    how: str


FRAMEWORKS = (
    Framework("transformers", "huggingface/", "real, on the CPU; GPUs are simulated"),
    Framework("trl", "huggingface/test_trl", "real trainers, on the CPU; GPUs are simulated"),
    Framework("accelerate", "accelerate/", "real, on the CPU and gloo; GPUs are simulated"),
    Framework("lightning", "lightning/", "real, on the CPU and gloo; GPUs are simulated"),
    Framework("pytorch-lightning", r"lightning/.*\[.*pytorch_lightning", "real, on the CPU; GPUs are simulated"),
    Framework("deepspeed", "deepspeed/", "real engines and pipelines, on the CPU and gloo; GPUs are simulated"),
    Framework(
        "megatron-core",
        "taps/test_megatron",
        "its real schedules, on gloo, with the device name cuda taken for the CPU; models are small ones of the test, "
        "and the loop of Megatron-LM is a stand-in",
    ),
    Framework(
        "torchtitan",
        r"taps/test_torchtitan.*\[.*True",
        "its real `ModelSpec`, `ParallelDims` and builder of schedules, on gloo; models and trainer are stand-ins",
    ),
    Framework("torch", "taps/test_pipelining_training", "its real pipeline schedules, on the CPU and gloo"),
    Framework("optuna", "test_a_search_for_hyperparameters", "real, under the search of the Trainer"),
    *(
        Framework(name, rf"programs/.*{test}", f"real, on the CPU; {how}; GPUs are simulated")
        for name, test, how in (
            ("sentence-transformers", r"\[sentence", "a small model made by the test"),
            ("neuralforecast", r"\[neural", "an MLP on series made by the test"),
            ("timm", r"\[timm", "a ResNet, a loop of the test, torchvision without its operators"),
            ("ultralytics", "ultralytics", "its trainer on pictures made by the test, torchvision is a stand-in"),
            ("torchtune", "torchtune", "its model and loggers in a loop of the test, not its recipes"),
        )
    ),
    Framework("jax", r"monitor/test_synchronize.*jax", "real, on the CPU"),
)

_passed: Counter[str] = Counter()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count a test that has passed."""
    if report.when == "call" and report.passed:
        _passed.update(framework.name for framework in FRAMEWORKS if re.search(framework.tests, report.nodeid))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Add what ran to the record; once, where tests run in several processes."""
    if not hasattr(session.config, "workerinput"):
        record(_passed)


def record(passed: Counter[str]) -> None:
    """Replace the runs of the releases that are installed; one that ran more tests before stays."""
    runs: dict[str, dict[str, Any]] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    for name, tests in passed.items():
        try:
            release = _installed(name).partition("+")[0]
        except StopIteration:  # a stand-in ran in its place
            continue
        python = ".".join(platform.python_version_tuple()[:2])
        if tests >= runs.setdefault(name, {}).get(release, {}).get("tests", 0):
            runs[name][release] = {"tests": tests, "python": python, "date": date.today().isoformat()}
    RECORD.write_text(json.dumps(runs, indent=1, sort_keys=True) + "\n")


def page(runs: dict[str, dict[str, Any]]) -> str:
    """Return the page with the table."""
    lines = [
        "# Which releases were run",
        "",
        "For everyone who wonders whether this runs with their release: the oldest and the newest of each framework",
        "that a test of this repository really ran with, and how. `make releases` writes this page from a record.",
        "",
        "| framework | oldest | newest | how |",
        "|---|---|---|---|",
    ]
    for framework in FRAMEWORKS:
        releases = sorted(runs.get(framework.name, {}), key=_numbers)
        if not releases:
            lines.append(f"| {framework.name} | not run | not run | {framework.how} |")
            continue
        cells = [_cell(release, runs[framework.name][release]) for release in (releases[0], releases[-1])]
        newest = cells[1] if len(releases) > 1 else "the same"
        lines.append(f"| {framework.name} | {cells[0]} | {newest} | {framework.how} |")
    return "\n".join([*lines, ""])


def _installed(name: str) -> str:
    """Return the release of a distribution: here, or in the environment of whole programs."""
    above = map(str, DOCS.parent.glob(".venv-programs/lib/*/site-packages"))
    return next(iter(metadata.distributions(name=name, path=[*sys.path, *above]))).version


def _cell(release: str, run: dict[str, Any]) -> str:
    noun = "test" if run["tests"] == 1 else "tests"
    return f"{release} ({run['tests']} {noun}, Python {run['python']}, {run['date']})"


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", release)))


if __name__ == "__main__":
    PAGE.write_text(page(json.loads(RECORD.read_text())), encoding="utf-8")
