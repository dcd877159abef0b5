"""The contents of the packages that a user installs."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools import release_check

ROOT = Path(__file__).parent.parent
PACKAGES = {"zeus_core", "zeus_huggingface", "zeus_lightning", "zeus_deepspeed"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    (wheel,) = folder.glob("zeus_core-*.whl")
    return wheel


def test_the_wheel_holds_exactly_the_four_packages(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    top_level = {name.split("/")[0] for name in names}
    assert {name for name in top_level if not name.endswith(".dist-info")} == PACKAGES
    for package in PACKAGES:
        assert f"{package}/__init__.py" in names
        assert f"{package}/py.typed" in names
    assert "zeus_core/report/page.html" in names


def test_the_wheel_can_be_published(wheel):
    assert release_check.wheel_fault(wheel) is None


def test_a_release_has_a_dated_heading_and_its_tag():
    changelog = "# Changelog\n\n## 0.2.0 (2026-11-30)\n\n## 0.1.0 (unreleased)\n"
    faults = [release_check.changelog_fault(changelog, version) for version in ("0.2.0", "0.1.0", "0.3.0")]
    assert [fault and fault.partition(";")[0] for fault in faults] == [
        None,
        "CHANGELOG.md says 0.1.0 (unreleased)",
        "CHANGELOG.md has no heading '## 0.3.0 (DATE)'",
    ]
    assert release_check.tag_fault("v0.2.0\nlatest\n", "0.2.0") is None
    assert "git tag v0.3.0" in release_check.tag_fault("v0.2.0", "0.3.0")


def python_of(version):
    """A Python of this version: this one, or of PYTHONS (paths with spaces between), the PATH or pyenv."""
    named = os.environ.get("PYTHONS", "").split()
    of_pyenv = sorted(
        map(str, Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser().glob("versions/*/bin/python"))
    )
    for python in filter(None, [sys.executable, *named, shutil.which(f"python{version}"), *of_pyenv]):
        asked = [python, "-c", "import sys; print('{}.{}'.format(*sys.version_info))"]
        if subprocess.run(asked, capture_output=True, text=True).stdout.strip() == version:
            return python
    return None


WITHOUT_TORCH = """
import importlib, pkgutil, zeus_core, zeus_deepspeed
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer.power_limit import GlobalPowerLimitOptimizer
lacking = set()
for module in pkgutil.walk_packages(zeus_core.__path__, "zeus_core.", onerror=lambda name: None):
    if not module.name.endswith(("__main__", "sitecustomize")) and "._examples" not in module.name:
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            lacking.add(error.name)
with ZeusMonitor().window("w") as window: pass
print(sorted(lacking), sorted(window.measurement.gpu_energy))
"""


@pytest.mark.long
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_wheel_works_in_each_python_without_torch(wheel, tmp_path, version):
    python = python_of(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here: PYTHONS=/path/to/python{version}")
    folder = tmp_path / "an environment"
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
    install = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--quiet", wheel]
    subprocess.run([*install, "--disable-pip-version-check"], check=True)
    environment = {"ZEUS_SIMULATED_GPUS": "A40:2", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}

    def ended(program, *arguments):
        command = [folder / "bin" / program, *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)

    imported = ended("python", "-Werror", "-c", WITHOUT_TORCH)
    assert (imported.returncode, imported.stdout) == (0, "['torch'] [0, 1]\n"), imported.stderr
    assert f"Python {version}" in ended("zeus-core", "doctor").stdout
    assert "exit code 0" in ended("zeus-core", "run", "--", "true").stderr
    assert "A40" in ended("zeus-core", "predict", "A40").stdout
    assert "ZeusMonitor" in ended("zeus-core", "example", "pytorch").stdout
    for extra in ("huggingface", "lightning"):
        missing = ended("python", "-c", f"import zeus_{extra}")
        assert missing.returncode != 0
        assert f"pip install '{wheel}[{extra}]'" in missing.stderr, "from where it came"
