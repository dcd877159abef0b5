"""Runs tests as a user without any right, as root: `python -m tests.unprivileged tests/accelerate/test_ranks.py`.

Devices obey root alone, and a daemon of root serves each driver that a test makes: see `tests/support/daemons.py`. The
option `--original-mhz 1710`, which comes first, tells the daemon the clock that the tests have locked before.
"""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.daemons import STARTER_VARIABLE, UNPRIVILEGED_USER, DaemonStarter
from tests.support.users import run_by, why_not_run


def main(arguments):
    if reason := why_not_run():
        return reason
    original_mhz = None
    if arguments[:1] == ["--original-mhz"]:
        original_mhz, arguments = int(arguments[1]), arguments[2:]
    starter = DaemonStarter(original_mhz)
    home = tempfile.mkdtemp(prefix="zeus-home-", dir="/tmp")
    os.chown(home, UNPRIVILEGED_USER, UNPRIVILEGED_USER)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "PYTEST_"))}
    environment |= {STARTER_VARIABLE: str(starter.path), "HOME": home, "TMPDIR": home, "PYTHONDONTWRITEBYTECODE": "1"}
    environment["PATH"] = os.pathsep.join(filter(is_open, environment["PATH"].split(os.pathsep)))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={home}/tests", *arguments]
    try:
        by_user = run_by(UNPRIVILEGED_USER, [UNPRIVILEGED_USER], command)
        return subprocess.run(**by_user, env=environment).returncode
    finally:
        starter.close()
        shutil.rmtree(home)


def is_open(folder):
    """Whether every user may look for programs in a folder."""
    path = Path(folder)
    return all(part.is_dir() and part.stat().st_mode & stat.S_IXOTH for part in (path, *path.parents))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
