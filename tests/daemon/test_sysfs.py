"""The daemon changes AMD boards, whose limits are files: in the mounts that its unit makes, all else is read-only."""

import os
import re
import shlex
import signal
import subprocess
import sys

import pytest

from tests.daemon.conftest import MEMBER, needs_root, until
from tests.support.fake_sysfs import LOWEST_WATTS, ORIGINAL_WATTS, FakeSysfs
from tests.support.pages import ROOT
from tests.support.sysfs_training import add

pytestmark = needs_root

TRAINING = """
    import sys
    from zeus_core.device import discover_gpus
    from zeus_core.settings.limit_knob import PowerLimitKnob
    knob = PowerLimitKnob([gpu for gpu in discover_gpus({}) if gpu.driver == "amdgpu"], 25)
    knob.apply(knob.settings[-1])
    print("ready", flush=True)
    sys.stdin.readline()
"""

SEARCH = """
    from pathlib import Path
    from tests.support.fake_sysfs import Board, FakeSysfs, IntelBoard
    from tests.support.sysfs_training import train
    from zeus_core.testing import VirtualTime

    made = {{"AMD": lambda it: Board(it, "1.8"), "Intel": lambda it: IntelBoard(it, "none", joules=1.0)}}
    tree = FakeSysfs.of(made[{vendor!r}](Path({folder!r})))

    def during(step):
        if step == {moves_at}:
            tree.set_range(tree.boards[0], 550, 750)

    _, slowdown, phase = train(tree, VirtualTime(), None, steps={steps}, during=during)
    print(phase.value, slowdown <= 1.2)
"""


@pytest.fixture
def amd_world(make_world):
    """A machine with a GPU of NVIDIA and two of AMD."""
    world = make_world()
    world.tree = FakeSysfs(world.folder)
    world.tree.add()
    world.tree.add(serial=False)
    world.environment["ZEUS_SYSFS"] = str(world.tree.root)
    return world


def caps_of(world):
    return [board.cap_watts for board in world.tree.boards]


def drop_in_of(world):
    """Return what the program on the page of hardware prints."""
    page = (ROOT / "docs" / "hardware.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"sysfs\.conf <<'END'\n(.*?)END\n", page, re.DOTALL)
    command = [sys.executable, "-"]
    return subprocess.run(
        command, input=program, env=world.environment, capture_output=True, text=True, check=True
    ).stdout


def mounts_of(world):
    """Commands that mount the tree as the unit does: read-only, but for the files of the drop-in."""
    root = shlex.quote(str(world.tree.root))
    lines = [f"mount --bind {root} {root}"]
    for line in drop_in_of(world).splitlines()[1:]:
        file = shlex.quote(line.removeprefix("ReadWritePaths=-"))
        lines.append(f"mount --bind {file} {file}")
    return "\n".join([*lines, f"mount -o remount,ro,bind {root}"])


def start_in_mounts(world, monkeypatch):
    """Start the daemon within its own mounts."""
    monkeypatch.setattr(sys, "executable", str(wrapper_of(world)))
    world.start_daemon()
    monkeypatch.undo()


def wrapper_of(world):
    script = world.folder / "python-in-mounts"
    inner = f'set -e\n{mounts_of(world)}\nexec {shlex.quote(sys.executable)} "$@"'
    script.write_text(f'#!/bin/sh\nexec unshare --mount sh -c {shlex.quote(inner)} sh "$@"\n')
    script.chmod(0o755)
    return script


def can_mount():
    return subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode == 0


def test_the_drop_in_names_the_very_files(amd_world):
    files = [str((board.hwmon / "power1_cap").resolve()) for board in amd_world.tree.boards]
    assert drop_in_of(amd_world).splitlines() == ["[Service]", *(f"ReadWritePaths=-{file}" for file in files)]


@pytest.mark.skipif(not can_mount(), reason="NOT TESTED: this machine allows no private mounts")
def test_it_writes_limits_where_all_else_is_read_only(amd_world, monkeypatch):
    start_in_mounts(amd_world, monkeypatch)
    client = amd_world.client(TRAINING)
    assert client.stdout.readline() == "ready\n", client.stderr.read()
    assert caps_of(amd_world) == [LOWEST_WATTS] * 2
    (set_, *_) = amd_world.audited("set")
    assert set_["uid"] == MEMBER
    client.send_signal(signal.SIGKILL)
    until(lambda: caps_of(amd_world) == [ORIGINAL_WATTS] * 2 and not amd_world.entries())


@pytest.mark.long  # in the default suite, without the daemon: tests/process/test_sysfs_restored.py
@pytest.mark.parametrize(("vendor", "moves_at", "ends"), [("AMD", 0, "done"), ("Intel", 0, "done"), ("AMD", 40, "off")])
@pytest.mark.skipif(not can_mount(), reason="NOT TESTED: this machine allows no private mounts")
def test_a_whole_search_by_the_daemon_keeps_the_bound_and_restores(make_world, monkeypatch, vendor, moves_at, ends):
    world = make_world()
    world.tree = FakeSysfs(world.folder)
    board, before = add(world.tree, vendor)
    for folder in board.folder.rglob("*"):  # sensors are written by the training; the limit is a file of root
        if folder.is_dir():
            os.chown(folder, MEMBER, MEMBER)
    os.chown(board.folder, MEMBER, MEMBER)
    world.environment["ZEUS_SYSFS"] = str(world.tree.root)
    start_in_mounts(world, monkeypatch)
    program = SEARCH.format(vendor=vendor, folder=str(board.folder), moves_at=moves_at or -1, steps=300)
    output, errors = world.run(program)
    assert output == f"{ends} True", errors
    set_ = world.audited("set")
    assert {line["uid"] for line in set_} == {MEMBER}
    assert len(set_) > (1 if moves_at else 5)
    until(lambda: board.cap_watts == before.cap_watts and not world.entries())


@pytest.mark.skipif(not can_mount(), reason="NOT TESTED: this machine allows no private mounts")
def test_without_the_drop_in_nothing_is_changed_and_the_reason_said(amd_world, monkeypatch):
    monkeypatch.setitem(globals(), "drop_in_of", lambda world: "[Service]\n")
    start_in_mounts(amd_world, monkeypatch)
    client = amd_world.client(TRAINING)
    _, errors = client.communicate()
    assert "Read-only file system" in errors
    assert caps_of(amd_world) == [ORIGINAL_WATTS] * 2


def test_a_killed_daemon_restores_as_it_starts_again(amd_world):
    amd_world.start_daemon()
    client = amd_world.client(TRAINING)
    assert client.stdout.readline() == "ready\n", client.stderr.read()
    os.killpg(amd_world.daemon.pid, signal.SIGKILL)
    amd_world.daemon.wait()
    client.kill()
    client.wait()
    assert caps_of(amd_world) == [LOWEST_WATTS] * 2
    amd_world.start_daemon()
    until(lambda: caps_of(amd_world) == [ORIGINAL_WATTS] * 2)
