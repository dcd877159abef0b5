"""Messages of the set-up behind `make` on a machine that lacks something."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SET_UP = ROOT / "tools" / "set_up.py"


def run(program, *arguments):
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, cwd=ROOT)


def set_up_with(preparation, *arguments):
    program = f"import runpy, sys\n{preparation}\nrunpy.run_path({str(SET_UP)!r}, run_name='__main__')"
    return run(program, *arguments)


def test_without_the_venv_module_there_is_a_sentence(tmp_path):
    finished = set_up_with("sys.modules['venv'] = None", str(tmp_path / "environment"), "all")
    assert finished.returncode == 1
    assert finished.stderr.startswith("set-up: this Python cannot make virtual environments.")
    assert "sudo apt install python3-venv" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_an_environment_of_the_users_without_pip_is_left_alone(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "pyvenv.cfg").write_text("theirs")
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    finished = set_up_with(
        "import subprocess; real = subprocess.run\n"
        "subprocess.run = lambda *a, **k: real([sys.executable, '-c', 'raise SystemExit(1)'])",
        str(tmp_path),
        "all",
    )
    assert finished.returncode == 1
    assert "is a virtual environment without pip" in finished.stderr
    assert (tmp_path / "pyvenv.cfg").read_text() == "theirs"


@pytest.mark.skipif(os.name != "posix", reason="a shell script stands in for an old Python")
def test_an_old_python_is_told_which_one_is_needed(tmp_path):
    old = tmp_path / "python2"
    check = "import sys; sys.version_info = (2, 7); sys.version = '2.7.18 (old)'; exec(sys.argv[1])"
    old.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{check}" "$2"\n')
    old.chmod(0o755)
    make = ["make", f"PYTHON={old}", f"VENV={tmp_path / 'environment'}", "test"]
    finished = subprocess.run(make, cwd=ROOT, capture_output=True, text=True)
    assert finished.returncode != 0
    assert "Python 3.11 or newer is needed, and this is 2.7.18: make PYTHON=python3.11" in finished.stderr
    assert "Traceback" not in finished.stderr
