"""`zeus-core top`, `zeus-core restore` and the report of `doctor`: what processes have left changed."""

import json
import os
import re
from dataclasses import replace

import pytest

from tests.nvml_driver import DeviceSpec
from tests.support.daemons import is_unprivileged
from tests.support.users import needs_root
from zeus_core._identity import ProcessIdentity
from zeus_core.kinds import POWER_LIMIT, SM_CLOCK
from zeus_core.settings.entry import LedgerEntry
from zeus_core.settings.ledger import Ledger, known_ledgers

ORIGINAL_WATTS = 450.0
DEVICE = DeviceSpec(default_limit_watts=650, power_limit_watts=ORIGINAL_WATTS)


@pytest.fixture
def left(on_driver):
    """Two GPUs: a process that has ended has left the first at 250 W, and this one has locked the second's clock."""
    program, driver = on_driver(DEVICE, DEVICE)
    ledger = Ledger(str(driver.ledger_path))
    gone = replace(ProcessIdentity.current(), pid=4_000_001)
    entry = LedgerEntry.of_this_process(driver[0].uuid, driver[0].name, POWER_LIMIT, ORIGINAL_WATTS)
    ledger.note(replace(entry, owner=gone, owner_token="gone", values=(250.0,), program="train.py", job="77"))
    clock = LedgerEntry.of_this_process(driver[1].uuid, driver[1].name, SM_CLOCK, None)
    ledger.note(replace(clock, values=(900.0,)))
    driver[0].power_limit_watts = 250.0
    driver[1].locked_clock_mhz = 900
    return program, driver, ledger


def test_who_controls_which_gpu_is_listed(left):
    program, driver, _ = left
    ended = program("top", "--once")
    assert ended.returncode == 1
    lines = ended.stdout.split("\n\n")[1].splitlines()
    header, first, second = sorted(lines, key=lambda line: line[0].replace("G", " "))
    assert " ".join(header.split()) == "GPU setting set to original state controlled by"
    assert re.match(
        r"0    power limit    250 W     450 W  left behind  process 4000001 \(train.py\) of user .*, job 77,", first
    )
    assert re.match(r"1    SM clock     900 MHz  \S.*  held         process", second)
    alone = program("top", "--once", "--gpus", "1")
    assert (alone.returncode, "left behind" in alone.stdout) == (0, False)
    report = json.loads(program("top", "--json").stdout)
    stale = {lease["device_uuid"]: lease["is_stale"] for lease in report["leases"]}
    assert stale == {driver[0].uuid: True, driver[1].uuid: False}


def residue(program):
    """The check of the doctor."""
    checks = json.loads(program("doctor", "--json").stdout)["checks"]
    return next(check for check in checks if check["name"] == "restored")


def test_the_doctor_reports_what_was_left(left):
    program, driver, _ = left
    check = residue(program)
    assert check["state"] == "limited"
    assert f"({driver[0].uuid}) to 450 W is not restored, left by process 4000001 (train.py)" in check["sentence"]
    ours = f"sudo nvidia-smi -i {driver[0].uuid} -pl 450"  # in a ledger that root does not trust
    fix = check["fix"].removesuffix("  # on the host")
    assert fix == ("sudo zeus-core restore --stale" if os.geteuid() == 0 else ours)
    assert driver[0].power_limit_watts == 250.0, "it changes nothing"


def allow(driver):
    """Give everybody the right that the administrator has."""
    for device in driver:
        device.allow_control()


def refuse_then_allow(program, driver):
    """A user without the right changes nothing, and is told the command that does; then with it."""
    before = driver[0].power_limit_watts
    refused = program("restore", "--stale")
    assert refused.returncode == 1
    assert f"`sudo nvidia-smi -i {driver[0].uuid} -pl 450`" in refused.stdout
    assert driver[0].power_limit_watts == before
    allow(driver)


def test_restore_stale_restores_what_was_left_and_nothing_else(left):
    program, driver, ledger = left
    if is_unprivileged():
        refuse_then_allow(program, driver)
    ended = program("restore", "--stale")
    assert ended.returncode == 0
    assert "to 450 W is restored. It was changed by process 4000001" in ended.stdout
    assert (driver[0].power_limit_watts, driver[1].locked_clock_mhz) == (ORIGINAL_WATTS, 900)
    assert len(ledger.entries()) == 1
    assert program("restore", "--stale").stdout == "Nothing is to be restored.\n"
    assert program("top", "--once").returncode == 0


def test_restore_restores_what_is_in_use_too(left):
    program, driver, ledger = left
    if is_unprivileged():
        refuse_then_allow(program, driver)
    assert program("restore").returncode == 0
    assert (driver[0].power_limit_watts, driver[1].locked_clock_mhz) == (ORIGINAL_WATTS, None)
    assert ledger.entries() == []


def test_a_limit_that_somebody_else_has_set_since_stays(left):
    program, driver, ledger = left
    driver[0].power_limit_watts = 300.0
    ended = program("restore", "--stale")
    assert ended.returncode == 0
    assert "somebody else has set 300 W since, which stays" in ended.stdout
    assert driver[0].power_limit_watts == 300.0
    assert len(ledger.entries()) == 1


def test_what_cannot_be_restored_is_kept_and_told(left):
    program, driver, _ = left
    driver[0].deny_control()
    ended = program("restore", "--stale")
    assert ended.returncode == 1
    assert "could not be restored" in ended.stdout
    assert f"sudo nvidia-smi -i {driver[0].uuid} -pl 450" in ended.stdout
    assert "failed" in program("top", "--once").stdout
    assert "to 450 W is not restored (setting the power" in residue(program)["sentence"]
    allow(driver)
    assert program("restore", "--stale").returncode == 0


def test_a_driver_that_hangs_does_not_keep_a_prologue_from_ending(left):
    _, driver, _ = left
    driver[0].hang("nvmlDeviceSetPowerManagementLimit")
    patience = "import zeus_core.cli._restore as restore; restore._PATIENCE_SECONDS = 0.2; "
    ended = driver.start(f"{patience}from zeus_core.cli import main; raise SystemExit(main(['restore', '--stale']))")
    _, errors = ended.communicate(timeout=240)
    assert ended.returncode == 1
    assert "is not restored: the driver does not answer" in errors
    driver[0].release()


def test_a_file_that_is_no_entry_is_reported(left):
    program, driver, _ = left
    (driver.ledger_path / "GPU-1.power_limit.json").write_text("garbage")
    assert "GPU-1.power_limit.json cannot be read" in program("top", "--once").stdout
    assert "GPU-1.power_limit.json" in residue(program)["sentence"]


def test_no_command_is_named_for_what_none_can_restore(on_driver):
    program, driver = on_driver(DEVICE)
    driver.ledger_path.mkdir(exist_ok=True)
    (driver.ledger_path / "GPU-1.power_limit.json").write_text("garbage")
    assert (residue(program)["state"], residue(program)["fix"]) == ("limited", None)


LATER_VERSION = {"version": 99}
LATER_FIELD = {"colour": "red"}
LATER_KNOB = {"knob": "fan_speed"}


def unread(driver, change):
    """Write the entry of a process that has left the first GPU at 250 W, as another version writes it."""
    document = LedgerEntry.of_this_process(driver[0].uuid, driver[0].name, POWER_LIMIT, ORIGINAL_WATTS).to_json()
    text = json.dumps({**document, **change}) if change else json.dumps(document)[:200]
    path = driver.ledger_path / f"{driver[0].uuid}.power_limit.json"
    driver.ledger_path.mkdir(exist_ok=True)
    path.write_text(text)
    return path, text


@pytest.mark.parametrize("change", [LATER_VERSION, LATER_FIELD, LATER_KNOB, None])
def test_what_this_version_cannot_read_is_named_and_never_written_over(on_driver, change):
    program, driver = on_driver(DEVICE)
    path, text = unread(driver, change)
    driver[0].power_limit_watts = 250.0
    for arguments in (("restore", "--stale"), ("restore",)):
        ended = program(*arguments)
        assert ended.returncode == 1
        assert f"{path} cannot be read" in ended.stderr
        assert "Nothing is to be restored" not in ended.stdout
    assert f"{path} cannot be read" in program("top", "--once").stdout
    assert f"{path} cannot be read" in residue(program)["sentence"]
    for knob in ("PowerLimitKnob(gpus, 25)", "SmClockKnob(gpus[0])"):
        refused = driver.run(
            f"""
            from zeus_core.device import discover_gpus
            from zeus_core.errors import DeviceHeldError, PermissionDeniedError
            from zeus_core.settings.clock_knob import SmClockKnob
            from zeus_core.settings.limit_knob import PowerLimitKnob
            gpus = discover_gpus({{}})
            knob = {knob}
            try:
                knob.apply(knob.settings[-1])
            except (DeviceHeldError, PermissionDeniedError) as error:
                print(error)
            knob.restore()
            """
        )
        if not is_unprivileged():
            assert f"{path} cannot be read" in refused
            assert "remove the file" in refused
    assert (driver[0].power_limit_watts, driver[0].locked_clock_mhz) == (250.0, None)
    assert path.read_text() == text


@pytest.mark.skipif(is_unprivileged(), reason="the daemon keeps the ledger")
@pytest.mark.parametrize("change", [LATER_VERSION, None])
def test_an_entry_that_becomes_unreadable_while_its_owner_lives_stays(on_driver, change):
    """The owner knows its original, and restores it; the next one does not, and changes nothing."""
    program, driver = on_driver(DEVICE)
    ended = driver.start(
        """
        from zeus_core.device import discover_gpus
        from zeus_core.settings.limit_knob import PowerLimitKnob
        knob = PowerLimitKnob(discover_gpus({}), 25)
        knob.apply(knob.settings[-1])
        print("ready", flush=True)
        input()
        """
    )
    assert ended.stdout.readline() == "ready\n"
    path, text = unread(driver, change)
    assert program("restore", "--stale").returncode == 1
    ended.communicate("\n", timeout=240)
    assert driver[0].power_limit_watts == ORIGINAL_WATTS
    assert path.read_text() == text


def test_a_folder_that_the_user_names_is_the_only_one_that_is_read(on_driver, monkeypatch, tmp_path):
    _, driver = on_driver(DEVICE)
    others = Ledger(str(tmp_path / "of-root"))
    entry = LedgerEntry.of_this_process(driver[0].uuid, driver[0].name, POWER_LIMIT, ORIGINAL_WATTS)
    others.note(replace(entry, owner=replace(entry.owner, pid=4_000_001), owner_token="gone", values=(250.0,)))
    monkeypatch.setattr("zeus_core.settings.ledger._ROOT_FOLDER", others.folder)
    Ledger(str(driver.ledger_path))
    named = known_ledgers({"ZEUS_LEDGER_DIR": str(driver.ledger_path)})
    assert [ledger.folder for ledger in named] == [str(driver.ledger_path)]
    assert others.folder in [ledger.folder for ledger in known_ledgers({"XDG_RUNTIME_DIR": str(tmp_path)})]


IMPOSSIBLE = [-5.0, 1e9, 4294967.296 + 300.0]  # the last is 300 W in an unsigned number of 32 bits


@pytest.mark.skipif(is_unprivileged(), reason="it needs the right to set limits")
@pytest.mark.parametrize("restored_by", ["command", "next start", pytest.param("daemon", marks=needs_root)])
@pytest.mark.parametrize("original", IMPOSSIBLE)
def test_an_impossible_original_gives_way_to_the_default_by_whatever_restores(on_driver, original, restored_by):
    program, driver = on_driver(DEVICE)
    entry = LedgerEntry.of_this_process(driver[0].uuid, driver[0].name, POWER_LIMIT, original)
    gone = replace(entry.owner, pid=4_000_001)
    ledger = Ledger(str(driver.ledger_path))
    ledger.note(replace(entry, owner=gone, owner_token="gone", values=(250.0,)))
    driver[0].power_limit_watts = 250.0
    if restored_by == "command":
        assert program("restore", "--stale").returncode == 0
    elif restored_by == "daemon":
        assert program("daemon", "--policy", "missing.toml").returncode != 0  # it restores first
    else:
        driver.run(
            "from zeus_core.device import discover_gpus; from zeus_core.settings.limit_knob import PowerLimitKnob; "
            "PowerLimitKnob(discover_gpus({}), 25)"
        )
    assert driver[0].power_limit_watts == DEVICE.default_limit_watts
    assert ledger.entries() == []
