"""The table of the releases that tests ran with."""

import json
from collections import Counter
from types import SimpleNamespace

import pytest

from tools import releases
from zeus_core.adapters import _requires


def test_the_page_is_that_of_the_record():
    assert releases.PAGE.read_text(encoding="utf-8") == releases.page(json.loads(releases.RECORD.read_text()))


def test_the_oldest_release_that_ran_is_the_oldest_that_is_supported():
    runs = json.loads(releases.RECORD.read_text())
    for module, (_, floor) in _requires._REQUIREMENTS.items():
        oldest = min(map(releases._numbers, runs[module.replace("_", "-")]))
        assert oldest[: floor.count(".") + 1] == releases._numbers(floor), module


def test_a_test_that_passed_is_recorded_with_what_is_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(releases, "RECORD", tmp_path / "releases.json")
    monkeypatch.setattr(releases, "_passed", Counter())
    monkeypatch.setattr(releases, "FRAMEWORKS", (releases.Framework("pytest", "a/", "real"), *releases.FRAMEWORKS[:1]))
    for nodeid, passed in (("tests/a/test_b.py::c", True), ("tests/a/test_b.py::d", False), ("tests/b.py::e", True)):
        releases.pytest_runtest_logreport(SimpleNamespace(when="call", passed=passed, nodeid=nodeid))
    releases.pytest_sessionfinish(SimpleNamespace(config=SimpleNamespace()))
    (found,) = json.loads(releases.RECORD.read_text()).items()
    assert (found[0], list(found[1])) == ("pytest", [pytest.__version__])
    text = releases.page(dict([found]))
    assert f"| pytest | {pytest.__version__} (1 test, Python 3." in text
    assert "| transformers | not run | not run |" in text
