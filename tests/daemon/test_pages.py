"""The pages on the daemon: their files are accepted, and the tests they name exist."""

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import zeus_core.daemon
from tests.support.pages import ROOT
from zeus_core.daemon import _policy_file
from zeus_core.daemon._peer import Peer
from zeus_core.daemon._policy_file import read_policy

SYSTEMD = Path(zeus_core.daemon.__file__).parent / "systemd"
UNIT = SYSTEMD / "zeus-core-daemon.service"


def page(name):
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_the_policies_of_the_page_are_accepted(tmp_path, monkeypatch):
    monkeypatch.setattr(_policy_file, "_group_id", lambda name: {"zeus": 900}[name])
    monkeypatch.setattr(_policy_file, "_user_id", lambda name: {"alice": 1000}[name])
    path = tmp_path / "daemon.toml"
    policies = []
    for text in re.findall(r"```toml\n(.*?)```", page("daemon.md"), re.DOTALL):
        path.write_text(text, encoding="utf-8")
        policies.append(read_policy(path))
    rules, commands = policies
    alice, bob = Peer(1, 1000, frozenset({900})), Peer(2, 1002, frozenset({900}))
    uuid = "GPU-2d4e1e5c-30a0-4c5e-8d6f-6f1b8f1b2c3d"
    assert rules.allowance(alice, uuid, "power_limit", 300.0) == (200.0, 300.0)
    assert rules.allowance(alice, uuid, "sm_clock", None) == (600.0, 1410.0)
    assert rules.allowance(bob, uuid, "power_limit", 300.0).highest > 1e9
    assert rules.original_sm_clock_mhz == 1410
    assert set(commands.commands) == {"set_power_limit", "lock_sm_clock", "unlock_sm_clock"}


def test_every_test_that_the_page_on_security_names_exists():
    named = set(re.findall(r"`(test_\w+)`", page("security.md")))
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert named
    assert {name for name in named if f"def {name}(" not in tests} == set()


def test_the_unit_confines_the_daemon():
    unit = configparser.ConfigParser(strict=False)
    unit.optionxform = str
    unit.read(UNIT)
    service = unit["Service"]
    assert service["ExecStart"] == "/opt/zeus-core/bin/python -I -m zeus_core daemon"
    assert service["CapabilityBoundingSet"] == "CAP_SYS_ADMIN CAP_CHOWN"
    for name in ("NoNewPrivileges", "PrivateNetwork", "ProtectHome", "RestrictNamespaces", "ProtectKernelModules"):
        assert service[name] == "yes"
    assert service["RestrictAddressFamilies"] == "AF_UNIX"
    assert service["RuntimeDirectoryPreserve"] == "yes", "the ledger outlives the daemon"
    assert int(service["TimeoutStopSec"]) > 10, "it restores for 10 s at most"
    for name in (UNIT.name, "zeus-core.conf"):
        assert name in page("daemon.md")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
def test_systemd_calls_the_unit_well_confined():
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=25", UNIT]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-500:]
    assert "Unknown" not in found.stderr, found.stderr
