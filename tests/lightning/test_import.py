"""Requirements of importing the package, and messages where one is missing; tried in fresh interpreters."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BARE = ["-S"]  # without anything that was installed


def run(program, *folders, options=()):
    paths = [*map(str, folders), str(ROOT), str(ROOT / "integrations" / "lightning")]
    return subprocess.run(
        [sys.executable, *options, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_without_lightning_the_pip_line_is_said():
    ended = run("import zeus_lightning", options=BARE)
    assert ended.stderr.splitlines()[-1].startswith("ModuleNotFoundError: ")
    assert ended.stderr.splitlines()[-1].endswith("[lightning]'")


def test_a_lightning_that_is_too_old_is_named(tmp_path):
    (tmp_path / "pytorch_lightning").mkdir()
    (tmp_path / "pytorch_lightning" / "__init__.py").write_text("class Callback: pass\n")
    (tmp_path / "pytorch_lightning-1.9.5.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: pytorch-lightning\nVersion: 1.9.5\n"
    (tmp_path / "pytorch_lightning-1.9.5.dist-info" / "METADATA").write_text(metadata)
    ended = run("import zeus_lightning", tmp_path, options=BARE)
    assert ended.stderr.splitlines()[-1].startswith("ImportError: pytorch_lightning 1.9.5 is too old")
    assert ended.stderr.splitlines()[-1].endswith("[lightning]'")


@pytest.mark.long
@pytest.mark.parametrize(
    ("imported", "expected"),
    [
        ("lightning.pytorch", {"lightning"}),
        ("pytorch_lightning", {"pytorch_lightning"}),
        ("sys", {"lightning", "pytorch_lightning"}),
    ],
)
def test_the_callback_is_of_the_kind_that_has_been_imported(imported, expected):
    program = f"""
import sys, {imported}
from zeus_lightning import ZeusCallback
print(*{{it.__module__.partition(".")[0] for it in ZeusCallback.__mro__}} - {{"builtins", "zeus_lightning"}})
"""
    ended = run(program)
    assert set(ended.stdout.split()) == expected, ended.stderr


@pytest.mark.long
def test_one_broken_kind_does_not_prevent_use_of_the_other():
    program = "import sys; sys.modules['pytorch_lightning.callbacks'] = None; import zeus_lightning; print('imported')"
    assert run(program).stdout == "imported\n"
