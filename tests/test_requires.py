"""The frameworks an integration needs: told to the user if missing, and stated once."""

import re
from pathlib import Path

import pytest

from zeus_core.adapters import _requires, require

ROOT = Path(__file__).parents[1]
REQUIREMENTS = _requires._REQUIREMENTS


def test_a_missing_framework_comes_with_its_pip_command(monkeypatch):
    monkeypatch.setitem(REQUIREMENTS, "a_module_nobody_has", ("lightning", "1.0"))
    with pytest.raises(ModuleNotFoundError, match=r"pip install .*\[lightning\]'$"):
        require("a_module_nobody_has")


def test_a_framework_that_is_too_old_is_named_with_its_version(monkeypatch):
    monkeypatch.setitem(REQUIREMENTS, "pytest", ("dev", "7.0"))
    require("pytest")
    monkeypatch.setitem(REQUIREMENTS, "pytest", ("dev", "999.0"))
    with pytest.raises(ImportError, match=rf"pytest {pytest.__version__} is too old; 999.0 or newer is needed"):
        require("pytest")


def test_the_floors_are_those_of_the_package_and_of_the_readme():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    floors = dict(re.findall(r'"([\w-]+)(?:\[\w+\])?>=([\d.]+)', project))
    assert {module: floor for module, (_, floor) in REQUIREMENTS.items()} == {
        module: floors[module.replace("_", "-")] for module in REQUIREMENTS
    }
    for module, (extra, _) in REQUIREMENTS.items():
        assert module == "pytorch_lightning" or re.search(rf'^{extra} = \[.*"{module}>=', project, re.MULTILINE)
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    for name in ("transformers", "accelerate", "Lightning", "DeepSpeed"):
        assert f"{name} {floors[name.lower()]}" in readme
