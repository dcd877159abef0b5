"""The pages on the daemon: their files are accepted, and the tests they name exist."""

import configparser
import contextlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

import zeus_core.daemon
from tests.support.pages import ROOT
from zeus_core.daemon import _policy_file
from zeus_core.daemon._peer import Peer
from zeus_core.daemon._policy_file import read_policy
from zeus_core.errors import PermissionDeniedError, UsageError
from zeus_core.kinds import POWER_LIMIT, SM_CLOCK

SYSTEMD = Path(zeus_core.daemon.__file__).parent / "systemd"
UNIT = SYSTEMD / "zeus-core-daemon.service"


ALICE, BOB = Peer(1, 1000, frozenset({900})), Peer(2, 1002, frozenset({900}))
UUID = "GPU-2d4e1e5c-30a0-4c5e-8d6f-6f1b8f1b2c3d"


def page(name):
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def policies_of_the_page():
    return re.findall(r"```toml\n(.*?)```", page("daemon.md"), re.DOTALL)


def know_names(monkeypatch):
    """Let the machine have the users and groups of the page."""
    monkeypatch.setattr(_policy_file, "_group_id", lambda name: {"zeus": 900}.get(name))
    monkeypatch.setattr(_policy_file, "_user_id", lambda name: {"alice": 1000}.get(name))


def read_text(folder, data):
    path = folder / "daemon.toml"
    path.write_bytes(data)
    return read_policy(path)


def test_the_policies_of_the_page_are_accepted(tmp_path, monkeypatch):
    know_names(monkeypatch)
    rules, commands = [read_text(tmp_path, text.encode()) for text in policies_of_the_page()]
    alice, bob, uuid = ALICE, BOB, UUID
    assert rules.allowance(alice, uuid, POWER_LIMIT, 300.0) == (200.0, 300.0)
    assert rules.allowance(alice, uuid, SM_CLOCK, None) == (600.0, 1410.0)
    assert rules.allowance(bob, uuid, POWER_LIMIT, 300.0).highest > 1e9
    assert rules.originals == {SM_CLOCK: 1410}
    assert set(commands.commands) == {"set_power_limit", "lock_sm_clock", "unlock_sm_clock"}


PEERS = (ALICE, BOB, Peer(3, 1001, frozenset({900})), Peer(4, 1000, frozenset({1000})), Peer(5, 64001, {64001}))


def rights(policy):
    """Return what the policy allows: counts of which fewer are less, and ranges of values, by what they are for."""
    counts = {"requests": policy.requests_per_second, "connections": policy.connections_per_user}
    ranges = {}
    for number, peer in enumerate(PEERS):
        counts[number, "is known"] = policy.is_known(peer)
        counts[number, "energy"] = any(rule.has_cpu_energy for rule in policy.rules if rule.is_for(peer))
        for device in (UUID, "GPU-other"):
            for knob, original in ((POWER_LIMIT, 300.0), (POWER_LIMIT, 500.0), (SM_CLOCK, None)):
                with contextlib.suppress(PermissionDeniedError):
                    ranges[number, device, knob, original] = policy.allowance(peer, device, knob, original)
    return counts, ranges


def is_more(policy, whole):
    """Whether a policy allows anything that the whole one does not, or restores, or changes, in another way."""
    counts, ranges = rights(policy)
    whole_counts, whole_ranges = rights(whole)
    is_wider = any(
        key not in whole_ranges or not whole_ranges[key].lowest <= lowest <= highest <= whole_ranges[key].highest
        for key, (lowest, highest) in ranges.items()
        if lowest <= highest
    )
    ways = [(each.originals, each.commands, each.failure_pattern) for each in (policy, whole)]
    return is_wider or any(count > whole_counts[key] for key, count in counts.items()) or ways[0] != ways[1]


def policy_of_the_manifest():
    manifest = (ROOT / "examples" / "kubernetes" / "daemon.yaml").read_text(encoding="utf-8")
    maps = [each for each in yaml.safe_load_all(manifest) if each["kind"] == "ConfigMap"]
    return maps[0]["data"]["daemon.toml"]


@pytest.mark.parametrize("name", ["rules", "commands", "Kubernetes"])
def test_a_documented_policy_cut_anywhere_is_refused_or_allows_no_more(tmp_path, monkeypatch, name):
    know_names(monkeypatch)
    texts = dict(zip(("rules", "commands"), policies_of_the_page(), strict=True), Kubernetes=policy_of_the_manifest())
    data = texts[name].encode()
    whole, accepted = read_text(tmp_path, data), []
    for size in range(len(data)):
        with contextlib.suppress(UsageError):
            accepted.append((size, is_more(read_text(tmp_path, data[:size]), whole)))
    assert [size for size, more in accepted if more] == []
    assert [size for size, _ in accepted] == [len(data) - 1], "without the last line break only"


def test_a_policy_without_an_end_mark_may_allow_more_where_cut(tmp_path, monkeypatch):
    """Why the page recommends `has_end`."""
    know_names(monkeypatch)
    text = "allow = []\n[limits]\nrequests_per_second = 10\n"
    whole = read_text(tmp_path, text.encode())
    assert is_more(read_text(tmp_path, b"allow = []\n[limits]\n"), whole)
    assert not is_more(whole, whole)


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
    assert (service["Type"], service["Restart"], unit["Unit"]["StartLimitIntervalSec"]) == ("notify", "always", "0")
    assert (service["WatchdogSec"], service["WatchdogSignal"]) == ("2", "SIGKILL")
    for name in (UNIT.name, "zeus-core.conf"):
        assert name in page("daemon.md")


def shown_commands(path):
    """Return what a file shows to be executed: all of it but comments; of a page, the code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".md":
        return re.sub(r"(?m)^\s*#.*$", "", text)
    return "\n".join(re.findall(r"(?ms)^ *```.*?^ *```|`[^`\n]+`", text))


def test_nothing_shows_the_privileged_process_without_isolation():
    """Without -I, the interpreter imports what variables and the folders of users, or the current one, offer it."""
    names = ("*.md", "Dockerfile", "Makefile", "*.service", "*.conf", "*.yaml", "*.yml", "*.sbatch", "*.sh", "*.toml")
    folders = ("docs", "examples", "zeus_core", "integrations", ".github")
    files = {path for name in names for folder in folders for path in (ROOT / folder).rglob(name)}
    files |= {path for name in names for path in ROOT.glob(name)}
    started, wrong = set(), []
    for path in files:
        words = re.sub(r"[\s,\[\]\"']+", " ", shown_commands(path))
        for before, command in re.findall(r"(\S+ \S+ |^)?(zeus[-_]core daemon|zeus_core restore)(?!`)", words):
            started.add((path.name, command))
            if before != "-I -m ":
                wrong.append(f"{path}: {before}{command}")
    assert wrong == []
    daemon = "zeus_core daemon"
    assert {(UNIT.name, daemon), ("daemon.yaml", daemon), ("daemon.md", "zeus_core restore")} <= started


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
def test_systemd_calls_the_unit_well_confined():
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=25", UNIT]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-500:]
    assert "Unknown" not in found.stderr, found.stderr
