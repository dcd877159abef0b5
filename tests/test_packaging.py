"""The contents of the packages that a user installs."""

import subprocess
import sys
import venv
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


@pytest.mark.long
def test_the_wheel_installs_and_imports_without_torch(wheel, tmp_path):
    folder = tmp_path / "an environment"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel]
    subprocess.run(install, check=True)
    program = (
        "import importlib.util, zeus_core, zeus_deepspeed\n"
        "from zeus_core.monitor import ZeusMonitor\n"
        "from zeus_core.optimizer.power_limit import GlobalPowerLimitOptimizer\n"
        "assert importlib.util.find_spec('torch') is None\n"
        "with ZeusMonitor().window('w') as window: pass\n"
        "print(window.measurement.gpu_method)\n"
    )
    environment = {"ZEUS_SIMULATED_GPUS": "A40:2", "PATH": "/usr/bin:/bin"}
    finished = subprocess.run([python, "-c", program], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip() == "{0: 'estimated', 1: 'estimated'}"


@pytest.mark.long
def test_a_missing_extra_is_named_with_its_pip_line(wheel, tmp_path):
    folder = tmp_path / "environment"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", wheel], check=True)
    for extra in ("huggingface", "lightning"):
        program = [python, "-c", f"import zeus_{extra}"]
        finished = subprocess.run(program, capture_output=True, text=True, cwd=tmp_path)
        assert finished.returncode != 0
        assert f"pip install '{wheel}[{extra}]'" in finished.stderr, "from where it came"
