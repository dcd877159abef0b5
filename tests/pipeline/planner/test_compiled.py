"""With and without numba the planner gives the same, and compiled code goes where it was told to."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import zeus_core.pipeline
from tests.pipeline.planner.instances import smooth_profile
from tests.support.users import OTHER_USER, as_other_user, common_folder, needs_root
from tests.support.variants import long_but_first
from zeus_core.pipeline import Frontier, make_plan, schedules
from zeus_core.pipeline.planner.compiled import _fingerprint, cache_folder, has_numba
from zeus_core.pipeline.planner.switching import _switch_search

__all__ = ["common_folder"]


def test_without_numba_the_results_are_the_same(monkeypatch):
    pytest.importorskip("numba")

    def results(effort):
        frontier = Frontier.from_profile(smooth_profile(2, clocks=6), schedules.one_f_one_b(2, 4))
        seconds = 1.02 * frontier.highest_clock_point[0]  # more than the shortest, so that two paces are tried too
        plans = [
            make_plan(frontier, time_seconds=seconds, effort=effort),
            make_plan(frontier, time_seconds=seconds, switch_seconds=0.005, dwell_seconds=0.2, effort=effort),
        ]
        return frontier.times_seconds, frontier.energies_joules, plans

    monkeypatch.delenv("ZEUS_WITHOUT_NUMBA", raising=False)
    compiled = results(0.002)
    monkeypatch.setenv("ZEUS_WITHOUT_NUMBA", "1")
    assert not has_numba()
    interpreted = results(0.04)  # a twentieth of the tries is made
    assert np.array_equal(compiled[0], interpreted[0])
    assert np.array_equal(compiled[1], interpreted[1])
    assert compiled[2] == interpreted[2]


def test_the_code_of_each_kernel_depends_on_the_whole_planner(monkeypatch):
    """On the constants of other folders, and on the options of numba."""
    read = []
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path.name) or b"")
    assert _fingerprint([_switch_search.find_latest])
    assert {"compiled.py", "dependencies.py", "_switch_search.py", "_frontier_walk.py"} <= set(read)


CALLED = "def called(value):\n    return value + {}\n"
CALLER = "from called_kernel import called\n\n\ndef caller(value):\n    return called(value)\n"
CALL = """
from called_kernel import called
from caller_kernel import caller
from zeus_core.pipeline.planner.compiled import Kernels
print(Kernels(called, caller).call(caller, 1))
"""


def test_a_function_is_recompiled_when_only_one_it_calls_has_changed(tmp_path):
    pytest.importorskip("numba")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    environment.pop("ZEUS_WITHOUT_NUMBA", None)
    # Root keeps compiled code in its own home, whatever the environment says.
    (tmp_path / "caller_kernel.py").write_text(CALLER + f"# only here: {tmp_path}\n")
    for added in (1, 2):
        (tmp_path / "called_kernel.py").write_text(CALLED.format(added))
        # Without bytecode, which Python would take for that of a source written in the same second with as many bytes.
        program = [sys.executable, "-B", "-c", CALL]
        done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=120, check=True)
        assert done.stdout == f"{1 + added}\n"


@pytest.fixture
def usual_user(monkeypatch):
    """Not root, who ignores the environment; files of root are as good as one's own."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


def test_the_cache_is_in_one_folder_that_can_be_named(usual_user, monkeypatch, tmp_path):
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "zeus-core" / "numba"
    assert cache_folder().stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "named"))
    assert cache_folder() == tmp_path / "named"


@needs_root
def test_root_takes_its_cache_from_no_environment(monkeypatch, tmp_path):
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    assert tmp_path not in cache_folder().parents
    assert list(tmp_path.iterdir()) == []


def open_to_all(folder):
    folder.chmod(0o1777)


def open_to_the_group(folder):
    folder.chmod(0o775)


def within_an_open_folder(folder):
    folder.parent.chmod(0o777)


def with_a_file_open_to_all(folder):
    (folder / "index.nbi").touch()
    (folder / "index.nbi").chmod(0o666)


def of_another_user(folder):
    os.chown(folder, OTHER_USER, OTHER_USER)


def within_a_folder_of_another_user(folder):
    os.chown(folder.parent, OTHER_USER, OTHER_USER)


def with_a_file_of_another_user(folder):
    (folder / "index.nbi").touch()
    os.chown(folder / "index.nbi", OTHER_USER, OTHER_USER)


@pytest.mark.parametrize(
    "prepare",
    [
        open_to_all,
        open_to_the_group,
        within_an_open_folder,
        with_a_file_open_to_all,
        *(
            pytest.param(prepare, marks=needs_root)
            for prepare in (of_another_user, within_a_folder_of_another_user, with_a_file_of_another_user)
        ),
    ],
)
def test_a_cache_that_others_can_change_is_not_used(usual_user, monkeypatch, tmp_path, caplog, prepare):
    folder = tmp_path / "around" / "cache"
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
    assert cache_folder() == folder
    prepare(folder)
    assert cache_folder() is None
    assert "compiled code is not kept" in caplog.text
    assert "chmod go-w" in caplog.text or f"belongs to user {OTHER_USER}" in caplog.text


PROGRAM = """
import os
os.geteuid = lambda: int(os.environ["AS_USER"])  # root ignores the environment
from zeus_core.pipeline import InstructionProfile, MeasuredOption, PipelineProfile, Problem, schedules
options = (MeasuredOption(1410, 0.1, 40), MeasuredOption(1200, 0.12, 36))
profile = PipelineProfile([InstructionProfile(0, kind, options) for kind in ("forward", "backward")], 80)
print(round(1000 * Problem(profile, schedules.gpipe(1, 2)).shortest_seconds))  # compiles the smallest kernel
"""


def run_program(folder, user):
    environment = {
        **os.environ,
        "NUMBA_CACHE_DIR": str(folder),
        "AS_USER": user,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    ended = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert ended.stdout.strip().isdecimal(), ended.stderr


@pytest.mark.parametrize("is_writable", long_but_first([False, True]))
def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, is_writable):
    pytest.importorskip("numba")
    folder = tmp_path / "cache"
    if not is_writable:
        folder.write_text("a file where the folder should be")
    run_program(folder, "1000" if os.geteuid() == 0 else str(os.geteuid()))
    assert folder.is_dir() == is_writable
    assert list((Path(zeus_core.pipeline.__file__).parent / "__pycache__").glob("*.nb?")) == []


class Intruder:
    """Executes when it is unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return (Path.touch, (self.trace,))


@pytest.mark.long
@needs_root
@pytest.mark.parametrize("user", ["0", "1000"])
def test_nothing_of_another_user_is_unpickled(tmp_path, common_folder, user):
    pytest.importorskip("numba")
    run_program(tmp_path / "model", "1000")
    indices = [path.relative_to(tmp_path / "model") for path in (tmp_path / "model").rglob("*.nbi")]
    assert indices
    content = pickle.dumps(Intruder(tmp_path / "trace"))

    def place():
        for index in indices:
            (common_folder / index).parent.mkdir(parents=True, exist_ok=True)
            (common_folder / index).write_bytes(content)

    as_other_user(place)
    run_program(common_folder, user)
    common_folder.chmod(0o755)  # from now on only what lies in it is another user's
    run_program(common_folder, user)
    assert not (tmp_path / "trace").exists()
    pickle.loads(content)
    assert (tmp_path / "trace").exists()
