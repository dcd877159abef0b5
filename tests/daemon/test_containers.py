"""What a process of a container can do to the daemon, to what it restores, and to others.

Containers are stood in for by what they are made of: capabilities that are dropped, namespaces and mounts.
"""

import errno
import os
import shutil
import socket
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from tests.daemon.conftest import GROUP, HOLD_LIMIT, MEMBER, ORIGINAL_WATTS, needs_root, until
from tests.daemon.test_start_and_end import entry_of, expect_failure
from zeus_core.daemon import _peer
from zeus_core.daemon._peer import Peer
from zeus_core.daemon._policy import Rule
from zeus_core.settings.ledger import Ledger

_OF_CONTAINERS = (  # what Docker leaves to the root of a container
    "chown,dac_override,fowner,fsetid,kill,setgid,setuid,setpcap,net_bind_service,net_raw,sys_chroot,mknod,audit_write,"
    "setfcap"
)
DEFAULT_CONTAINER = ("setpriv", "--bounding-set", "-all," + ",".join(f"+{name}" for name in _OF_CONTAINERS.split(",")))
WITHOUT_CAPABILITIES = ("setpriv", "--bounding-set", "-all")
# All capabilities, in a user namespace; in the second one, user ids are mapped as in the initial one.
USER_NAMESPACE = ("unshare", "--user", "--map-root-user")
WHOLE_USER_NAMESPACE = (
    "sh",
    "-c",
    "exec 3<&0\n"
    "unshare --user sh -c 'until read _ < /proc/self/uid_map && read _ < /proc/self/gid_map; do :; done\n"
    'exec "$@" <&3\' sh "$@" &\n'
    "for map in uid gid; do until echo 0 0 4294967295 > /proc/$!/${map}_map; do :; done; done 2>/dev/null\n"
    "wait $!",
    "sh",
)
NEW_PROCESSES = ("unshare", "--pid", "--fork", "--mount-proc")
CONFINED_DAEMON = ("setpriv", "--bounding-set", "-all,+sys_admin,+chown")  # as by the unit

SET_LIMIT = """
    from zeus_core.device.remote.client import RemoteControl
    from zeus_core.errors import ZeusError
    remote = RemoteControl({uuid!r}, "power_limit")
    try:
        print(remote.set({watts}))
    except ZeusError as error:
        print(type(error).__name__, error)
"""


def works(*below):
    """Skip a test, loudly, where this machine cannot stand in for a container."""
    words = [*below, "true"]
    if os.geteuid() != 0 or shutil.which(words[0]) is None or subprocess.run(words, capture_output=True).returncode:
        pytest.skip(
            f"NOT CHECKED against containers: run as root, where `{words[0]}` of util-linux may do this: {words[1]}"
        )


def is_root_of_machine():
    capabilities = int(Path("/proc/self/status").read_text().partition("CapEff:")[2].split()[0], 16)
    return str(Path("/proc/self/ns/user").readlink()) == "user:[4026531837]" and bool(capabilities & 1 << 21)


@needs_root
@pytest.mark.parametrize(
    "below",
    [DEFAULT_CONTAINER, WITHOUT_CAPABILITIES, USER_NAMESPACE, WHOLE_USER_NAMESPACE],
    ids=["default", "nothing", "user-namespace", "whole-user-namespace"],
)
@pytest.mark.parametrize("rules", ["allow = []", "allow = [{users = ['root'], groups = [0]}]"], ids=["nobody", "root"])
def test_the_root_of_a_container_is_a_user_like_any(make_world, below, rules):
    works(*below)
    world = make_world()
    world.write_policy(f"group = {GROUP}\n{rules}\n")
    world.start_daemon()
    said, _ = world.run(SET_LIMIT.format(uuid=world.uuids[0], watts=200), uid=0, gids=(), below=below)
    assert said.startswith("PermissionDeniedError user 0, who is not seen to be root of the machine, may not use")
    assert world.driver[0].power_limit_watts == ORIGINAL_WATTS
    assert [line["uid"] for line in world.audited("refused")] == [0]


@needs_root
def test_the_root_of_a_container_in_the_group_has_the_rights_of_the_group(make_world):
    works(*DEFAULT_CONTAINER)
    world = make_world()
    world.start_daemon()
    for watts, answer in ((250, "250.0"), (ORIGINAL_WATTS + 50, "PermissionDeniedError 500 W is not allowed")):
        program = SET_LIMIT.format(uuid=world.uuids[0], watts=watts)
        said, _ = world.run(program, uid=0, below=DEFAULT_CONTAINER)
        assert said.startswith(answer)


@needs_root
def test_the_root_of_the_machine_needs_no_rule(make_world):
    if not is_root_of_machine() or tuple(map(int, os.uname().release.split(".")[:2])) < (6, 5):
        pytest.skip("NOT CHECKED for root of the machine: run outside of a container, on Linux 6.5 or later")
    world = make_world()
    world.write_policy("allow = []")
    world.start_daemon()
    assert world.run(SET_LIMIT.format(uuid=world.uuids[0], watts=200), uid=0, gids=())[0] == "200.0"


@needs_root
def test_a_daemon_that_cannot_look_into_root_takes_it_for_a_user(make_world):
    works(*CONFINED_DAEMON)
    world = make_world()
    world.write_policy("allow = []")
    world.start_daemon(below=CONFINED_DAEMON)
    said, _ = world.run(SET_LIMIT.format(uuid=world.uuids[0], watts=200), uid=0, gids=())
    assert "user 0, who is not seen to be root of the machine" in said


def test_root_in_a_rule_is_that_of_the_machine():
    of_machine, of_container = (Peer(1, 0, frozenset({0}), is_root=is_root) for is_root in (True, False))
    for rule in (Rule(users=frozenset({0})), Rule(groups=frozenset({0}))):
        assert (rule.is_for(of_machine), rule.is_for(of_container)) == (True, False)
        assert not rule.is_for(Peer(1, 1000, frozenset({0})))  # as in OpenShift


@needs_root
def test_no_process_becomes_root_by_the_number_of_another(tmp_path):
    """A process connects and ends; root of the machine gets its number before the daemon looks."""
    works(*NEW_PROCESSES)
    if not is_root_of_machine():
        pytest.skip("NOT CHECKED for numbers used again: run as root, outside of a container")
    code = f"""
        import os, socket, subprocess, sys
        from zeus_core.daemon._peer import read_peer
        from zeus_core.errors import ZeusError
        listener = socket.socket(socket.AF_UNIX)
        listener.bind({str(tmp_path / "socket")!r})
        listener.listen()
        client = socket.socket(socket.AF_UNIX)
        pid = os.fork()
        if pid == 0:
            client.connect({str(tmp_path / "socket")!r})
            os._exit(0)
        os.waitpid(pid, 0)  # the connection lives on, here
        with open("/proc/sys/kernel/ns_last_pid", "w") as last:
            last.write(str(pid - 1))
        other = os.fork()
        if other == 0:
            os.read(0, 1)
            os._exit(0)
        accepted, _ = listener.accept()
        try:
            peer = read_peer(accepted)
            print(peer.pid == other, peer.uid, peer.is_root)
        except ZeusError:
            print(pid == other, "ended")
    """
    words = [*NEW_PROCESSES, sys.executable, "-c", textwrap.dedent(code)]
    ended = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.PIPE)
    assert ended.stdout.strip() in ("True 0 False", "True ended"), ended.stderr


@needs_root
def test_where_the_kernel_opens_no_process_nobody_is_root(monkeypatch):
    monkeypatch.setattr(_peer, "_SO_PEERPIDFD", 9999)  # as before Linux 6.5: no such option
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        peer = _peer.read_peer(ours)
    os.close(peer.pidfd)
    assert (peer.pid, peer.uid, peer.is_root) == (os.getpid(), 0, False)


@needs_root
def test_a_container_gets_the_socket_alone_and_can_replace_nothing(world):
    """As root of a default container, with the mounts of the documents."""
    folder, ledger = world.socket.parent, world.ledger
    mounted = f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder} && mount -t tmpfs none {ledger}"
    below = ("unshare", "--mount", "sh", "-c", f'{mounted} && exec "$@"', "sh", *DEFAULT_CONTAINER)
    works(*below)
    program = f"""
        import os, socket, sys
        from pathlib import Path
        from zeus_core.device.remote.client import RemoteControl
        remote = RemoteControl({world.uuids[0]!r}, "power_limit")
        remote.set(250)
        place = Path({str(world.socket)!r})
        def refused(call):
            try:
                call()
            except OSError as error:
                return error.errno
        print(*map(refused, [
            place.unlink, lambda: place.rename(place.with_name("old")), lambda: place.chmod(0o666),
            lambda: place.with_name("x.json").write_text(""),
            lambda: socket.socket(socket.AF_UNIX).bind(str(place) + "2"),
        ]), os.listdir({str(ledger)!r}), flush=True)
        sys.stdin.readline()
    """
    process = world.client(program, uid=0, below=below)
    assert process.stdout.readline().strip() == " ".join([str(errno.EROFS)] * 5) + " []"
    assert len(world.entries()) == 1  # of the host, which the container has not seen
    process.kill()
    until(lambda: world.driver[0].power_limit_watts == ORIGINAL_WATTS)


@needs_root
@pytest.mark.parametrize("is_of_other", [True, False], ids=["of another user", "open to all"])
def test_an_entry_that_others_could_have_written_sets_nothing(make_world, is_of_other):
    world = make_world()
    world.driver[0].power_limit_watts = 250.0  # by an administrator
    Ledger(str(world.ledger)).note(entry_of(world, original=400.0))
    (planted,) = world.ledger.glob("*.json")
    if is_of_other:
        os.chown(planted, MEMBER, -1)
    else:
        planted.chmod(0o666)
    expect_failure(world, f"the daemon cannot start: {planted}", code=1)  # which restores before it reads its policy
    subprocess.run(
        [sys.executable, "-m", "zeus_core", "restore", "--stale"],
        env={**world.environment, "ZEUS_LEDGER_DIR": str(world.ledger)},
        capture_output=True,
    )
    assert world.driver[0].power_limit_watts == 250.0
    assert planted.exists()


@needs_root
def test_a_daemon_restores_the_original_that_it_knows_itself(world):
    process = world.client(HOLD_LIMIT.format(uuid=world.uuids[0]))
    assert process.stdout.readline() == "ready\n"
    (entry,) = Ledger(str(world.ledger)).entries()
    Ledger(str(world.ledger)).note(replace(entry, original=600.0))
    process.kill()
    until(lambda: world.driver[0].power_limit_watts != 250.0)
    assert world.driver[0].power_limit_watts == ORIGINAL_WATTS
