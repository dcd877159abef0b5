"""`zeus-core restore` by a user without rights, where the daemon has made the changes; and by root."""

import subprocess
import sys

from tests.daemon.conftest import HOLD_LIMIT, MEMBER, ORIGINAL_WATTS, needs_root
from tests.support.users import run_by

pytestmark = needs_root


def restore(world, *arguments, uid=0):
    """Let a user run `zeus-core restore`, who sees the daemon's ledger as on a machine."""
    command = [sys.executable, "-m", "zeus_core", "restore", *arguments]
    environment = {**world.environment, "ZEUS_LEDGER_DIR": str(world.ledger)}
    options = {"cwd": world.folder, "capture_output": True, "text": True, "timeout": 240}
    return subprocess.run(**run_by(uid, [], command), env=environment, **options)


def test_a_user_is_told_who_restores_what_the_daemon_has_changed(world):
    client = world.client(HOLD_LIMIT.format(uuid=world.uuids[0]))
    assert client.stdout.readline() == "ready\n"
    assert restore(world, "--stale", uid=MEMBER).stdout == "Nothing is to be restored.\n"
    told = restore(world, uid=MEMBER)
    assert told.returncode == 1
    assert f"is restored when process {client.pid} ends" in told.stdout
    assert "sudo" not in told.stdout, "training goes on"
    assert world.driver[0].power_limit_watts == 250.0

    world.daemon.kill()
    world.daemon.wait()
    told = restore(world, "--stale", uid=MEMBER)
    assert told.returncode == 1
    assert "an administrator restores it by `sudo zeus-core restore --stale`, or by starting the daemon" in told.stdout
    assert world.driver[0].power_limit_watts == 250.0
    assert restore(world, "--stale").returncode == 0
    assert world.driver[0].power_limit_watts == ORIGINAL_WATTS
    assert world.entries() == []
