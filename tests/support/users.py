"""Other users of the same machine, for tests that run as root: their files, and the programs that they run."""

import atexit
import functools
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import pytest

OTHER_USER = 65534  # nobody

needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0,
    reason="NOT TESTED: only root can become another user; run these tests as root in a container",
)


def as_other_user(action):
    """Call a function in a child process that is the other user's, and wait for it."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(OTHER_USER)
            os.setuid(OTHER_USER)
            action()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def run_by(uid, gids, command):
    """Return the arguments of `subprocess.Popen` for a program of another user, who can read Python and this clone.

    Folders above them that are closed to others, as root's home is, are open to this program alone: each is covered
    by an overlay, in private mounts. The test is skipped where that is not permitted.
    """
    if reason := why_not_run():
        pytest.skip(reason)
    return _arguments(uid, gids, command)


@functools.cache
def why_not_run():
    """Return why other users cannot run this Python, with what to do; empty if they can."""
    program = "import sys, tests.support.hooks, pynvml; print(sys.base_prefix)"
    try:
        arguments = _arguments(OTHER_USER, [], [sys.executable, "-c", program])
        path = os.pathsep.join(filter(None, sys.path))
        ended = subprocess.run(**arguments, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
        if ended.stdout.strip() == sys.base_prefix:
            return ""
        error = ended.stderr.strip().rpartition("\n")[2] or ended.stdout
    except OSError as caught:
        error = caught
    return (
        f"NOT TESTED: other users cannot run {sys.executable} ({error}); move this clone, and the Python of its "
        ".venv, to a folder that all may enter, as /opt, or run the tests in a container with --privileged"
    )


def _arguments(uid, gids, command):
    closed = _closed_folders()
    if not closed:
        return {"args": command, "user": uid, "group": uid, "extra_groups": list(gids)}
    cover = _folders_like(closed)
    tops = [folder for folder in closed if not closed & set(folder.parents)]
    mounts = [["mount", "-t", "overlay", "overlay", "-o", f"lowerdir={cover}{top}:{top}", str(top)] for top in tops]
    groups = f"--groups={','.join(map(str, gids))}" if gids else "--clear-groups"
    become = shlex.join(["exec", "setpriv", f"--reuid={uid}", f"--regid={uid}", groups, "--"])
    script = " && ".join([*map(shlex.join, mounts), f'cd "$PWD" && {become} "$@"'])
    return {"args": ["unshare", "--mount", "sh", "-c", script, "sh", *map(str, command)]}


def _closed_folders():
    """Return the folders at and above Python and the modules that it finds which not every user may read."""
    paths = {Path(path).resolve() for path in (Path(sys.executable).parent, sys.executable, sys.base_prefix, *sys.path)}
    folders = {folder for path in paths for folder in (path, *path.parents) if folder.is_dir()}
    return frozenset(folder for folder in folders if folder.stat().st_mode & 0o005 != 0o005)


@functools.cache
def _folders_like(closed):
    """Make the same folders, empty and open. As the upper layer of an overlay, their modes are in force."""
    root = Path(tempfile.mkdtemp(prefix="zeus-open-", dir="/tmp"))
    atexit.register(shutil.rmtree, root)
    for folder in sorted(closed):
        (root / folder.relative_to("/")).mkdir(parents=True)
    for folder in (root, *root.rglob("*")):
        folder.chmod(0o755)
    return root


@pytest.fixture
def common_folder():
    """A folder like /tmp: everybody may write to it, and nobody may remove the files of others."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # those of pytest are closed to other users
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)
